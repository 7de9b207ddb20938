"""Cells, cell sets and the manifest, read from the data that the harness owns."""
