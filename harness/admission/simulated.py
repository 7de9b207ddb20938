"""A caching allocator that is simulated: deterministic, with the traits of CUDA's that admission depends on.

Segments are taken from the driver in whole granules and cut into blocks; a freed block stays in the cache and merges
with free neighbours; only a segment that is wholly free can go back. Other processes hold memory too and can take more
at any time. Before it fails, `allocate` flushes the cache by itself and counts that, as CUDA's does. Time is simulated:
work and releases move the clock, nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.admission.probe import Reading, Release, ReleaseRefused

__all__ = ["Block", "Latency", "SimulatedAllocator", "SimulatedOutOfMemory"]

_BLOCK_BYTES = 512


class SimulatedOutOfMemory(MemoryError):  # noqa: N818 - as CUDA's own is called
    """An allocation that neither the cache nor the driver could serve."""


@dataclass(slots=True, eq=False)
class Block:
    """A stretch of a segment; `live` while a tensor is in it."""

    size: int
    live: bool
    segment: Segment


@dataclass(slots=True, eq=False)
class Segment:
    """One allocation from the driver, as its blocks in order of address."""

    size: int
    blocks: list[Block] = field(default_factory=list)

    @property
    def idle(self) -> bool:
        """Whether no block of it is live."""
        return not any(block.live for block in self.blocks)


@dataclass(frozen=True, slots=True)
class Latency:
    """What things take: a release some time and more for each segment it returns, a forward a time for each token."""

    release_ns: int = 2_000_000
    segment_ns: int = 100_000
    token_ns: int = 10_000


class SimulatedAllocator:
    """A device of `total_bytes` of which other processes hold `others_bytes`; also a `Probe`.

    `device` "cpu" makes it one that never releases. `others_bytes` may be changed at any time; `others_at_read` lets
    other processes take or give memory just before the reading of that number, counted from 1.
    """

    def __init__(
        self,
        total_bytes: int,
        *,
        others_bytes: int = 0,
        granularity_bytes: int = 2 << 20,
        latency: Latency = Latency(),
        device: str = "cuda",
    ) -> None:
        self.total_bytes = total_bytes
        self.others_bytes = others_bytes
        self.others_at_read: dict[int, int] = {}
        self.latency = latency
        self.device = device
        self._granularity_bytes = granularity_bytes
        self._segments: list[Segment] = []
        self._reads = 0
        self._now_ns = 0
        self._alloc_retries = 0
        self._peak_bytes = 0

    @property
    def can_release(self) -> bool:
        """Not on a CPU."""
        return self.device != "cpu"

    @property
    def free_bytes(self) -> int:
        """Physically free; never below zero even where the others hold more than there is."""
        return max(0, self.total_bytes - self.others_bytes - self._reserved())

    def read(self) -> Reading:
        """The memory now."""
        self._reads += 1
        self.others_bytes = self.others_at_read.get(self._reads, self.others_bytes)
        split = [segment for segment in self._segments if not segment.idle]
        return Reading(
            total_bytes=self.total_bytes,
            free_bytes=self.free_bytes,
            reserved_bytes=self._reserved(),
            allocated_bytes=self._allocated(),
            inactive_split_bytes=sum(block.size for each in split for block in each.blocks if not block.live),
            peak_bytes=self._peak_bytes,
            alloc_retries=self._alloc_retries,
            granularity_bytes=self._granularity_bytes,
        )

    def release(self) -> Release:
        """Return every idle segment to the driver.

        Raises:
            ReleaseRefused: the device is a CPU.
        """
        if not self.can_release:
            raise ReleaseRefused("a CPU device has no cache to release")
        before, started = self.read(), self.clock_ns()
        self._flush()
        elapsed = self.clock_ns() - started
        return Release(before, self.read(), elapsed)

    def reset_peak(self) -> None:
        """Start `peak_bytes` again from what is allocated now."""
        self._peak_bytes = self._allocated()

    def clock_ns(self) -> int:
        """The simulated time."""
        return self._now_ns

    def work(self, elapsed_ns: int) -> None:
        """Let time pass, whether in a forward, a backward or in idleness."""
        self._now_ns += elapsed_ns

    def allocate(self, size: int) -> Block:
        """A live block of at least `size` bytes: from the smallest free block that holds it, or from the driver.

        Raises:
            SimulatedOutOfMemory: neither can, also after the allocator's own flush.
        """
        size = max(_BLOCK_BYTES, -(-size // _BLOCK_BYTES) * _BLOCK_BYTES)
        block = self._cached(size) or self._fresh(size)
        if block is None:
            self._alloc_retries += 1
            self._flush()
            block = self._fresh(size)
        if block is None:
            raise SimulatedOutOfMemory(f"{size} bytes wanted, {self.free_bytes} free, {self._reserved()} reserved")
        if block.size > size:
            rest = Block(block.size - size, live=False, segment=block.segment)
            blocks = block.segment.blocks
            blocks.insert(blocks.index(block) + 1, rest)
            block.size = size
        block.live = True
        self._peak_bytes = max(self._peak_bytes, self._allocated())
        return block

    def preload(self, segment_bytes: int, live_bytes: int) -> None:
        """Add a segment as earlier work left it, of which `live_bytes` are still in use."""
        segment = Segment(segment_bytes)
        if live_bytes:
            segment.blocks.append(Block(live_bytes, live=True, segment=segment))
        if live_bytes < segment_bytes:
            segment.blocks.append(Block(segment_bytes - live_bytes, live=False, segment=segment))
        self._segments.append(segment)

    def free(self, block: Block) -> None:
        """Put `block` into the cache and merge it with free neighbours."""
        if not block.live:
            raise ValueError("a block is freed twice")
        block.live = False
        merged: list[Block] = []
        for each in block.segment.blocks:
            if merged and not merged[-1].live and not each.live:
                merged[-1].size += each.size
            else:
                merged.append(each)
        block.segment.blocks = merged

    def _cached(self, size: int) -> Block | None:
        fitting = [block for each in self._segments for block in each.blocks if not block.live and block.size >= size]
        return min(fitting, key=lambda block: block.size, default=None)

    def _fresh(self, size: int) -> Block | None:
        taken = -(-size // self._granularity_bytes) * self._granularity_bytes
        if taken > self.total_bytes - self.others_bytes - self._reserved():
            return None
        segment = Segment(taken)
        block = Block(taken, live=False, segment=segment)
        segment.blocks.append(block)
        self._segments.append(segment)
        return block

    def _flush(self) -> None:
        kept = [segment for segment in self._segments if not segment.idle]
        self.work(self.latency.release_ns + (len(self._segments) - len(kept)) * self.latency.segment_ns)
        self._segments = kept

    def _reserved(self) -> int:
        return sum(segment.size for segment in self._segments)

    def _allocated(self) -> int:
        return sum(block.size for each in self._segments for block in each.blocks if block.live)
