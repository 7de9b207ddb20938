"""From plan to closure: journal, supervisor, warden, census."""
