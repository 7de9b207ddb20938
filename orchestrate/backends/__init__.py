"""The providers: one protocol and its implementations."""
