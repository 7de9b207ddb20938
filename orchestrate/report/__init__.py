"""What a run looks like to people: console and HTML."""
