"""Qualification: command groups as a payload, and what their evidence says. Pure: files are read by the caller."""
