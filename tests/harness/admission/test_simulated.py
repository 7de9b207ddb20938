import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from harness.admission.probe import ReleaseRefused
from harness.admission.simulated import Latency, SimulatedAllocator, SimulatedOutOfMemory

MIB = 1 << 20


def test_a_freed_segment_stays_reserved_until_it_is_released():
    device = SimulatedAllocator(100 * MIB)
    device.free(device.allocate(30 * MIB))
    assert (device.read().reserved_bytes, device.free_bytes) == (30 * MIB, 70 * MIB)
    assert device.release().came_back_bytes == 30 * MIB
    assert device.free_bytes == 100 * MIB


def test_a_segment_with_a_live_block_can_not_be_returned():
    device = SimulatedAllocator(100 * MIB)
    device.free(device.allocate(30 * MIB))
    small = device.allocate(MIB)
    assert device.read().inactive_split_bytes == 29 * MIB
    assert device.release().came_back_bytes == 0
    device.free(small)
    assert device.read().inactive_split_bytes == 0
    assert device.release().came_back_bytes == 30 * MIB


def test_the_cache_serves_before_the_driver_and_by_best_fit():
    device = SimulatedAllocator(100 * MIB)
    large, small = device.allocate(40 * MIB), device.allocate(10 * MIB)
    device.free(large)
    device.free(small)
    assert device.allocate(8 * MIB) is small
    assert device.read().reserved_bytes == 50 * MIB


def test_before_it_fails_it_flushes_its_cache_and_counts_that():
    device = SimulatedAllocator(100 * MIB)
    device.free(device.allocate(60 * MIB))
    device.allocate(80 * MIB)
    assert device.read().alloc_retries == 1
    with pytest.raises(SimulatedOutOfMemory):
        device.allocate(30 * MIB)


def test_other_processes_leave_less_and_may_come_just_before_a_reading():
    device = SimulatedAllocator(100 * MIB, others_bytes=30 * MIB)
    device.others_at_read = {2: 90 * MIB}
    assert [device.read().free_bytes for _ in range(3)] == [70 * MIB, 10 * MIB, 10 * MIB]


def test_a_release_takes_its_time_and_nothing_else_moves_the_clock():
    device = SimulatedAllocator(100 * MIB, latency=Latency(release_ns=1000, segment_ns=10, token_ns=1))
    for block in [device.allocate(10 * MIB) for _ in range(3)]:
        device.free(block)
    assert device.clock_ns() == 0
    assert device.release().elapsed_ns == 1030


def test_a_simulated_cpu_refuses_to_release():
    device = SimulatedAllocator(100 * MIB, device="cpu")
    assert not device.can_release
    with pytest.raises(ReleaseRefused):
        device.release()


def test_a_block_is_not_freed_twice():
    device = SimulatedAllocator(100 * MIB)
    block = device.allocate(MIB)
    device.free(block)
    with pytest.raises(ValueError, match="twice"):
        device.free(block)


@given(st.lists(st.tuples(st.integers(1, 8), st.booleans()), max_size=12))
def test_two_devices_with_the_same_history_are_the_same(history):
    def after():
        device = SimulatedAllocator(64 * MIB)
        for size, kept in history:
            try:
                block = device.allocate(size * MIB // 2)
            except SimulatedOutOfMemory:
                device.release()
                continue
            if not kept:
                device.free(block)
        return device.read(), device.clock_ns()

    assert after() == after()


class Accounts(RuleBasedStateMachine):
    """Whatever is allocated and freed, the books balance and no two live blocks overlap."""

    blocks = Bundle("blocks")

    def __init__(self):
        super().__init__()
        self.device = SimulatedAllocator(40 * MIB, granularity_bytes=2 * MIB)
        self.live = {}

    @rule(target=blocks, size=st.integers(1, 9 * MIB))
    def allocate(self, size):
        try:
            block = self.device.allocate(size)
        except SimulatedOutOfMemory:
            return None
        assert block not in self.live
        assert block.size >= size
        self.live[block] = block.size
        return block

    @rule(block=consumes(blocks))
    def free(self, block):
        if block is not None:
            del self.live[block]
            self.device.free(block)

    @rule()
    def release(self):
        assert self.device.release().after.allocated_bytes == sum(self.live.values())

    @invariant()
    def the_books_balance(self):
        reading = self.device.read()
        assert reading.allocated_bytes == sum(self.live.values())
        assert reading.free_bytes + reading.reserved_bytes == reading.total_bytes
        assert reading.allocated_bytes + reading.inactive_split_bytes <= reading.reserved_bytes
        assert all(block.size == size for block, size in self.live.items())


TestAccounts = Accounts.TestCase
