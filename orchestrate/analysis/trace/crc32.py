"""CRC-32 of many equally long messages at once.

The checksum is linear over GF(2) up to a constant: that of a message is the exclusive or of one table entry per byte,
chosen by the byte's position and value, and of the checksum of as many zero bytes.
"""

from __future__ import annotations

import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["crc32_rows"]


def crc32_rows(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """The CRC-32 (as zlib's) of each row of `rows` (n, length); (n,)."""
    tables, zero = _tables(rows.shape[1])
    total = np.full(rows.shape[0], zero, np.uint32)
    for position, table in enumerate(tables):
        total ^= table[rows[:, position]]
    return total


@lru_cache(maxsize=4)
def _tables(length: int) -> tuple[NDArray[np.uint32], int]:
    """(length, 256): what a byte of that value at that position changes; and the checksum of zero bytes."""
    zero = zlib.crc32(bytes(length))
    tables = np.empty((length, 256), np.uint32)
    for position in range(length):
        after = bytes(length - position - 1)
        before = bytes(position)
        bits = [zlib.crc32(before + bytes([1 << bit]) + after) ^ zero for bit in range(8)]
        values = np.zeros(256, np.uint32)
        for bit, change in enumerate(bits):
            values[(np.arange(256) >> bit) & 1 == 1] ^= np.uint32(change)
        tables[position] = values
    return tables, zero
