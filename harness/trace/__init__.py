"""What each rank did: the record of its collectives, and the watch over its progress."""
