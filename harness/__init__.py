"""The node side: torch and the standard library; imports nothing of orchestrate."""
