"""Traces of collectives: read, compared, exported. docs/trace.md describes the formats and the answers."""
