"""Every call to a provider fails once: before it acts, after it acted, and by not coming back in time."""

from contextlib import suppress

import pytest

from orchestrate.errors import BackendError

MODES = ("before", "after", "timeout")


def test_whichever_call_fails_nothing_of_the_run_is_left_and_nobody_elses_is_touched(bed, capsys):
    clean = _run(bed, {})
    calls = list(clean.world.calls)
    assert len(calls) > 30
    table = {}
    for number, name in enumerate(calls, start=1):
        for mode in MODES:
            bed.__init__(bed.folder, _NoPatch())
            foreign = [bed.world.add_job(f"{bed.cluster}1-fcd1e5cf").name, bed.world.add_job("training").name]
            _run(bed, {number: mode})
            case = f"call {number} ({name}) fails: {mode}"
            assert sorted(job.name for job in bed.world.jobs.values()) == sorted(foreign), case
            assert not bed.world.clusters, case
            assert not [each for each in bed.world.requests.values() if each.may_create and not each.is_over], case
            assert not bed.world.killed or set(bed.world.killed).isdisjoint(foreign), case
            table[name, mode] = table.get((name, mode), 0) + 1
    with capsys.disabled():
        print(
            f"\nSkyPilot in memory: {len(calls)} calls x {len(MODES)} ways to fail; nothing left, nothing foreign gone"
        )
        for name in sorted({each for each, _ in table}):
            print(f"  {name:18}", *(f"{mode} {table[name, mode]:3}" for mode in MODES))


def _run(bed, faults):
    """A run with `faults`; then, without any, whoever goes on after it: with what was told, and nothing else."""
    bed.world.faults = faults
    backend = bed.backend()
    with suppress(BackendError, ConnectionError):
        bed.forward(backend)
    bed.observe(backend)
    look = None
    try:
        look = bed.back(backend)
    except ConnectionError:
        raise AssertionError(f"stop, collect, release and census never raise: {faults}") from None
    if faults and not look.is_clean:
        bed.world.faults = {}
        heir = bed.backend()
        heir.stop()
        heir.release()
        look = heir.census()
    assert look.is_clean, (faults, look)
    return bed


class _NoPatch:
    """The clock is patched already."""

    def setattr(self, *_):
        return None


@pytest.mark.parametrize("mode", MODES)
def test_a_lost_answer_to_the_launch_is_found_by_the_name_of_the_cluster(bed, mode):
    backend = bed.backend()
    bed.world.pending_looks = 10**6
    launch = [*_names_until_launch(bed)]
    bed.world.faults = {len(launch): mode}
    with pytest.raises((BackendError, ConnectionError)):
        bed.forward(backend)
    assert not backend._known.requests, "the answer was lost"
    assert bed.back(backend).is_clean
    assert not bed.world.jobs
    assert all(each.is_over for each in bed.world.requests.values())


def _names_until_launch(bed):
    probe = bed.backend()
    probe.preflight(bed.request)
    before = len(bed.world.calls)
    bed.world.calls.clear()
    return ["call"] * (before + 2)  # parse again, then launch
