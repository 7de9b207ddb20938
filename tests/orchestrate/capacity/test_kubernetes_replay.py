"""Each recorded case, replayed: the right word at the end, and never a wrong one on the way."""

from __future__ import annotations

import pytest

from orchestrate.capacity.kubernetes import refusal
from orchestrate.capacity.kubernetes_ending import HowEnded, ending
from orchestrate.capacity.seen import Seen, remember, started
from orchestrate.capacity.taxonomy import Reason
from orchestrate.verdict import Verdict

AT = "2026-11-30T18:00:00.000Z"
NODE = {
    "metadata": {"name": "k8sbed-node", "labels": {}},
    "spec": {},
    "status": {
        "allocatable": {"nvidia.com/gpu": "4", "cpu": "64", "memory": "256Gi", "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True"}],
    },
}

ENDS = {
    ("success", "ok"): (HowEnded.COMPLETE, 0),
    ("failure", "bad"): (HowEnded.EXITED, 3),
    ("failure_retry", "bad2"): (HowEnded.EXITED, 3),
    ("gpu_queue", "g0"): (HowEnded.COMPLETE, 0),
    ("gpu_queue", "g1"): (HowEnded.COMPLETE, 0),
    ("gpu_queue", "g2"): (HowEnded.COMPLETE, 0),
    ("deadline", "slow"): (HowEnded.DEADLINE, None),
    ("oom", "oom"): (HowEnded.OUT_OF_MEMORY, 137),
    ("bad_command", "nocmd"): (HowEnded.NEVER_STARTED, None),
    ("delete", "del"): (HowEnded.DELETED, 143),
    ("ttl", "ttl"): (HowEnded.COMPLETE, 0),
    ("quota_used", "first"): (HowEnded.COMPLETE, 0),
    ("quota_used", "second"): (HowEnded.COMPLETE, 0),
    ("preempted", "low"): (HowEnded.PREEMPTED, None),
    ("preempted", "high"): (HowEnded.COMPLETE, 0),
    ("suspend", "sus"): (HowEnded.COMPLETE, 0),
}
"""How each recorded Job that ends, ends: the container's exit code where it says something about the payload."""

STUCK = {
    ("unschedulable", "big"): Reason.NEVER_FITS,
    ("quota_never", "big"): Reason.QUOTA_TOO_SMALL,
    ("image_pull", "noimg"): Reason.PROVIDER_FAULT,
    ("no_configmap", "nocm"): Reason.MISCONFIGURED,
    ("bad_command", "nocmd"): Reason.MISCONFIGURED,
}
"""Why each recorded Job that never starts does not, once its waiting time is over."""

ON_THE_WAY = {
    ("gpu_queue", "g2"): {Reason.NOTHING_FREE},
    ("preempted", "high"): {Reason.NOTHING_FREE},
    ("quota_used", "second"): {Reason.QUOTA_USED},
    ("suspend", "sus"): {Reason.QUEUED},
}
"""What keeps a recorded Job waiting for a while. A lack is said of these and of no other."""

UNSTRUCK = {HowEnded.COMPLETE, HowEnded.EXITED, HowEnded.DEADLINE}
ALL = sorted({*ENDS, *STUCK})
RAN = sorted(set(ENDS) - {("bad_command", "nocmd")})


def refuse(seen, **more):
    return refusal(seen, asked={"accelerators": "H200:4"}, where="here", at=AT, **more)


def with_nodes(seen):
    return Seen(seen.job, seen.job_gone, seen.pods, seen.events, nodes=(NODE,))


def test_every_recorded_case_is_replayed():
    assert len({case for case, _ in ALL}) == 16


@pytest.mark.parametrize(("case", "job"), sorted(ENDS))
def test_at_its_end_a_recorded_job_is_read_right(recording, case, job):
    seen = None
    for look in recording(case).moments(job):
        seen = remember(seen, look)
    assert seen is not None
    found = ending(seen)
    assert found is not None
    assert (found.how, found.exit_code) == ENDS[case, job]


@pytest.mark.parametrize(("case", "job"), ALL)
def test_at_no_moment_is_the_end_of_a_recorded_job_read_wrong(recording, case, job):
    expected = ENDS.get((case, job))
    answers = 0
    for look in recording(case).looks(job):
        found = ending(remember(None, look))
        if found is not None and found.how is HowEnded.DELETED and look.job_gone:
            continue  # a look that begins after the Job is gone can know no more; the next test remembers
        if found is not None:
            assert (found.how, found.exit_code) == expected
            answers += 1
    pod_gone_before_the_job_says_so = case in {"delete", "preempted"}
    assert answers or expected is None or pod_gone_before_the_job_says_so


@pytest.mark.parametrize(("case", "job"), ALL)
def test_whatever_was_missed_before_it_a_poll_that_remembers_reads_the_end_right(recording, case, job):
    looks = list(recording(case).moments(job))
    for skipped in range(len(looks)):
        seen = remember(remember(None, looks[skipped]), looks[-1])
        found = ending(seen)
        if found is not None and found.how is not HowEnded.DELETED:
            assert found.exit_code == ENDS[case, job][1]
            assert (found.fault is None) == (ENDS[case, job][0] in UNSTRUCK)


@pytest.mark.parametrize(("case", "job"), ALL)
def test_no_moment_makes_a_job_that_goes_on_a_refused_one(recording, case, job):
    for look in recording(case).looks(job):
        found = refuse(with_nodes(remember(None, look)), waited_s=1000)
        if found is not None and (case, job) in RAN:
            assert look.job_gone, (case, found.offers)  # and it never had begun, as far as this look can tell
            assert found.offers[0].reason is Reason.TAKEN_AWAY
        elif found is not None:
            assert found.offers[0].reason is STUCK[case, job]


@pytest.mark.parametrize(("case", "job"), ALL)
def test_only_a_job_that_waits_for_gpus_is_said_to_lack_them(recording, case, job):
    for look in recording(case).looks(job):
        found = refuse(with_nodes(remember(None, look)), out_of_time=True)
        if found is not None and found.offers[0].reason.verdict is not Verdict.INFRASTRUCTURE:
            assert found.offers[0].reason in ON_THE_WAY.get((case, job), {STUCK.get((case, job))})


@pytest.mark.parametrize(("case", "job"), sorted(ON_THE_WAY))
def test_a_recorded_job_that_waited_would_have_been_told_so(recording, case, job):
    cases = [refuse(with_nodes(remember(None, look)), out_of_time=True) for look in recording(case).moments(job)]
    assert ON_THE_WAY[case, job] <= {found.offers[0].reason for found in cases if found is not None}


@pytest.mark.parametrize(("case", "job"), sorted(STUCK))
def test_a_recorded_job_that_never_starts_is_told_why(recording, case, job):
    *_, last = recording(case).moments(job)
    found = refuse(with_nodes(remember(None, last)), out_of_time=True)
    assert found is not None
    assert found.offers[0].reason is STUCK[case, job]
    assert found.offers[0].detail


@pytest.mark.parametrize(("case", "job"), RAN)
def test_nothing_is_refused_once_a_container_has_run(recording, case, job):
    for look in recording(case).moments(job):
        seen = remember(None, look)
        if started(seen):
            assert refuse(seen, out_of_time=True) is None


def test_a_preempted_run_is_no_failed_test_though_its_job_says_so(recording):
    *_, last = recording("preempted").moments("low")
    assert any(item["reason"] == "BackoffLimitExceeded" for item in last.job["status"]["conditions"])
    seen = None
    for look in recording("preempted").moments("low"):
        seen = remember(seen, look)
    found = ending(seen)
    assert found.verdict is Verdict.INFRASTRUCTURE
    assert "priority" in found.fault


def test_a_failed_job_whose_pod_nobody_saw_is_not_read_as_a_failed_test(recording):
    *_, last = recording("failure").moments("bad")
    blind = Seen(last.job)
    assert ending(blind) is None
    found = ending(blind, settled=True)
    assert found.how is HowEnded.UNKNOWN
    assert found.verdict is Verdict.INFRASTRUCTURE


def test_a_job_that_its_ttl_removed_keeps_the_end_that_was_seen(recording):
    seen = None
    for look in recording("ttl").moments("ttl"):
        seen = remember(seen, look)
    assert seen.job_gone
    assert ending(seen).how is HowEnded.COMPLETE


def test_without_rights_to_see_nodes_never_and_not_now_can_not_be_told_apart(recording):
    *_, last = recording("unschedulable").moments("big")
    assert refuse(remember(None, last), waited_s=1000) is None
    found = refuse(remember(None, last), out_of_time=True)
    assert found.offers[0].reason is Reason.CAN_NOT_TELL
    assert found.availability[0].total is None


def test_eight_gpus_of_a_node_with_four_never_fit_but_that_is_said_only_after_an_autoscaler_had_its_time(recording):
    *_, last = recording("unschedulable").moments("big")
    seen = with_nodes(remember(None, last))
    assert refuse(seen, waited_s=5) is None
    assert refuse(seen, waited_s=50).offers[0].reason is Reason.NEVER_FITS


def test_a_quota_below_the_request_is_refused_at_once(recording):
    *_, last = recording("quota_never").moments("big")
    assert refuse(remember(None, last)).offers[0].reason is Reason.QUOTA_TOO_SMALL
