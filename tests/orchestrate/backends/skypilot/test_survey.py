"""An audit without local state: found by marks alone, reaped exactly, neighbours left alone."""

from orchestrate.backends.skypilot_calls import Calls
from orchestrate.backends.skypilot_sdk import ServerRequest
from orchestrate.backends.skypilot_survey import SkySurveyor


def surveyor(bed):
    sdk = bed.backend()._calls.sdk
    calls = Calls(sdk, bed.clock)
    calls._warm = True
    return SkySurveyor(calls, (bed.backend()._login,), "slurm/bed", pause=bed.clock.pause)


def test_a_run_is_found_with_owner_expiry_and_gpus_and_reaped_whole(bed):
    bed.forward(bed.backend())
    found = surveyor(bed).survey()
    assert not found.unknown
    (owned,) = found.owned
    assert (owned.run_id, owned.owner, owned.gpus, owned.where) == (bed.ownership.run_id, "ann", 4, "slurm/bed")
    assert owned.expires_at == "2026-11-30T22:44:10.000Z"
    assert surveyor(bed).reap(owned) == ()
    assert not bed.world.jobs
    assert not bed.world.clusters


def test_an_allocation_that_skypilot_forgot_is_found_and_reaped(bed):
    bed.forward(bed.backend())
    bed.world.clusters.clear()
    (owned,) = surveyor(bed).survey().owned
    assert owned.items[0].startswith("Slurm job")
    assert surveyor(bed).reap(owned) == ()
    assert not bed.world.jobs


def test_a_reap_takes_the_job_that_was_listed_and_none_whose_name_differs_in_its_end(bed):
    bed.forward(bed.backend())
    stranger = bed.world.add_job(f"{bed.cluster}-deadbeef")
    (owned,) = surveyor(bed).survey().owned
    assert surveyor(bed).reap(owned) == ()
    assert list(bed.world.jobs.values()) == [stranger]


def test_a_launch_that_waits_in_the_queue_is_found_before_it_has_made_anything(bed):
    launch = ServerRequest("req7", "sky.launch", "PENDING", bed.cluster)
    bed.world.requests = {
        "req7": launch,
        "req8": ServerRequest("req8", "sky.launch", "SUCCEEDED", f"{bed.cluster[:-1]}x"),
        "req9": ServerRequest("req9", "sky.launch", "RUNNING", "training"),
        "req10": ServerRequest("req10", "sky.status", "RUNNING", bed.cluster),
        "req11": ServerRequest("req11", "sky.launch", "RUNNING", None),
    }
    (owned,) = surveyor(bed).survey().owned
    assert owned.items == ("SkyPilot request req7 sky.launch PENDING",)
    assert owned.handle["cluster"] == bed.cluster


def test_a_name_alone_is_no_proof(bed):
    token = bed.ownership.token
    names = {
        f"{bed.cluster}-fcd1e5cf": "",  # a copied name
        "orc-0123456789abcd-2611302245-fcd1e5cf":  # ours by its form, with another run's comment
            f"orchestrate/1,run=r1,owner=ann,token={token},expires=20261130T224410Z",
        "training": f"orchestrate/1,run=r1,owner=ann,token={token},expires=20261130T224410Z",
    }  # fmt: skip
    for name, comment in names.items():
        bed.world.add_job(name, comment=comment)
    assert surveyor(bed).survey().owned == ()


def test_what_can_not_be_asked_is_unknown_and_the_rest_is_told(bed):
    bed.forward(bed.backend())
    bed.world.scheduler_up = False
    found = surveyor(bed).survey()
    assert found.unknown[0].startswith("Slurm cluster bed could not be asked")
    assert len(found.owned) == 1
    left = surveyor(bed).reap(found.owned[0])
    assert left
