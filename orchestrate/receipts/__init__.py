"""Receipts: canonical statements, their store and their verification."""
