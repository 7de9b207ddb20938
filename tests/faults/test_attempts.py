"""A place that is full is asked again, another one is asked instead; each try is visible, and gone before the next."""

import json
import signal

import pytest

from orchestrate.receipts.attempts import attempts_of
from orchestrate.receipts.record import load_record
from orchestrate.receipts.statement import Stage
from orchestrate.receipts.verify import verify_run

WAIT = ["--backend", "k8s", "--behaviour", "complete", "--wait", "60"]


def capacity(run):
    return json.loads((run.path / "capacity.json").read_bytes())


def stages(run):
    """The stages of each attempt, as the receipts have them."""
    return [[receipt.stage for receipt in attempt] for attempt in attempts_of(load_record(run.path).receipts)]


GIVEN_BACK = [Stage.ADMIT, Stage.ACQUIRE, Stage.TEARDOWN, Stage.CENSUS]
WHOLE = [Stage.ADMIT, Stage.ACQUIRE, Stage.RUN, Stage.COLLECT, Stage.TEARDOWN, Stage.CENSUS, Stage.CLOSURE]


def holds(run):
    verification = verify_run(run.path)
    assert verification.holds, verification.problems
    return verification


def test_a_full_place_is_asked_again_and_each_try_is_gone_before_the_next(bed):
    bed.pretend(**{"*": ["capacity", "capacity", "grant"]})
    run = bed.launch(*WAIT)
    answer, code = run.answer()
    assert (code, answer["verdict"]) == (0, "passed"), run.err.read_text()
    assert [each["there"] for each in bed.asked()] == [[], [], []]
    assert stages(run) == [GIVEN_BACK, GIVEN_BACK, WHOLE]
    record = load_record(run.path)
    assert [(each["attempt"], each["refused"]) for each in record.closure.facts["attempts"]] == [
        (1, "capacity"), (2, "capacity"), (3, None),
    ]  # fmt: skip
    assert sorted({receipt.attempt for receipt in record.receipts}) == [1, 2, 3]
    assert holds(run).verdict.label == "passed"
    assert run.leftovers() == []


def test_without_a_wait_one_refusal_is_the_end(bed):
    bed.pretend(**{"*": ["capacity", "grant"]})
    run = bed.launch("--backend", "k8s", "--behaviour", "complete")
    answer, code = run.answer()
    assert (code, answer["verdict"], answer["test_verdict"]) == (75, "capacity", "capacity")
    assert len(bed.asked()) == 1
    report = capacity(run)
    assert report["nothing_ran"] is True
    assert report["withdrawal"] == {"withdrawn": True, "confirmed": True, "how": "two looks found nothing of it"}
    assert [(offer["where"], offer["reason"]) for offer in report["offers"]] == [("here", "nothing-free")]
    assert report["availability"][0]["total"] == 8
    assert report["asked"]["accelerators"] == "H200:4"
    holds(run)


def test_the_asking_ends_when_no_place_is_merely_full(bed):
    bed.pretend(**{"*": ["capacity", "capacity", "unsatisfiable"]})
    run = bed.launch("--backend", "k8s", "--wait", "600", "--first-pause", "0.1")
    answer, code = run.answer()
    assert (code, answer["verdict"]) == (75, "capacity")
    asked = bed.asked()
    assert len(asked) == 3
    assert asked[0]["budget_s"] < 120, "the run's own deadline bounds the first try"
    assert "all 3 attempts were refused" in answer["reason"]
    assert len(capacity(run)["offers"]) == 3
    holds(run)


@pytest.mark.parametrize(
    ("answer", "verdict", "code"), [("unsatisfiable", "unsatisfiable", 78), ("outage", "infrastructure", 5)]
)
def test_only_capacity_is_waited_for(bed, answer, verdict, code):
    bed.pretend(**{"*": [answer]})
    run = bed.launch(*WAIT)
    said, found = run.answer()
    assert (found, said["verdict"]) == (code, verdict)
    assert len(bed.asked()) == 1
    holds(run)


def test_another_place_is_asked_when_one_refuses_for_whatever_reason(bed):
    bed.pretend(a=["unsatisfiable"], b=["outage"], c=["no-such-place"], d=["grant"])
    run = bed.launch("--backend", "k8s", "--behaviour", "complete", "--namespaces", "a", "b", "c", "d")
    answer, code = run.answer()
    assert (code, answer["verdict"]) == (0, "passed"), run.err.read_text()
    assert [each["namespace"] for each in bed.asked()] == ["a", "b", "d"]
    assert [each["why"] for each in load_record(run.path).closure.facts["attempts"]] == ["first", *["elsewhere"] * 3]
    assert stages(run)[2] == [Stage.ADMIT]
    holds(run)


def test_a_mixed_refusal_says_so_and_only_the_full_places_are_asked_again(bed):
    bed.pretend(a=["capacity", "capacity", "unsatisfiable"], b=["unsatisfiable"])
    run = bed.launch("--backend", "k8s", "--wait", "600", "--first-pause", "0.1", "--namespaces", "a", "b")
    answer, code = run.answer()
    assert (code, answer["verdict"]) == (75, "capacity")
    assert "for different reasons" in answer["reason"]
    assert capacity(run)["mixed"] is True
    assert [each["namespace"] for each in bed.asked()] == ["a", "b", "a", "a"]
    holds(run)


def test_what_could_not_be_taken_back_ends_the_run_as_unconfirmed(bed):
    bed.pretend(**{"*": ["stay", "grant"]})
    run = bed.launch(*WAIT)
    answer, code = run.answer()
    assert (code, answer["verdict"]) == (70, "teardown-unconfirmed")
    assert len(bed.asked()) == 1
    assert answer["teardown"]["remaining"]
    report = capacity(run)
    assert report["withdrawal"]["confirmed"] is False
    holds(run)


def test_a_bug_of_a_backend_is_a_fault_with_a_teardown_and_no_retry(bed):
    bed.pretend(**{"*": ["bug"]})
    run = bed.launch(*WAIT)
    answer, code = run.answer()
    assert (code, answer["verdict"]) == (5, "infrastructure")
    assert "ZeroDivisionError" in answer["reason"]
    assert len(bed.asked()) == 1
    assert answer["teardown"] == {"confirmed": True, "remaining": []}
    holds(run)


@pytest.mark.parametrize("moment", ["while waiting for the grant", "between two tries"])
def test_a_stop_signal_ends_the_asking_at_once(bed, moment):
    bed.pretend(**{"*": ["wait"] if moment.startswith("while") else ["capacity"]})
    run = bed.launch("--backend", "k8s", "--wait", "600", "--first-pause", "300")
    if moment.startswith("while"):
        bed.wait(lambda: list((bed.folder / "cloud").glob("things/*")), "the request to be there")
    else:
        run.wait_for("look")
        bed.wait(lambda: run.kinds().count("look") == 2, "the second look")
    run.process.send_signal(signal.SIGINT)
    answer, code = run.answer()
    assert (code, answer["verdict"]) == (130, "cancelled")
    assert list((bed.folder / "cloud").glob("things/*")) == []
    assert run.gone()["teardown"]["confirmed"]
    holds(run)


def test_a_call_that_hangs_does_not_keep_a_stop_signal_from_its_teardown(bed):
    bed.pretend(**{"*": ["hang"]})
    run = bed.launch("--backend", "k8s")
    bed.wait(lambda: list((bed.folder / "cloud").glob("things/*")), "the request to be there")
    run.process.send_signal(signal.SIGINT)
    answer, code = run.answer()
    assert (code, answer["verdict"]) == (130, "cancelled")
    assert list((bed.folder / "cloud").glob("things/*")) == []
    assert answer["teardown"]["confirmed"]
    holds(run)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_launcher_killed_at_any_record_of_a_retried_run_leaves_nothing(bed, moment):
    bed.pretend(**{"*": ["capacity", "grant"]})
    model = bed.launch(*WAIT, name="model")
    assert model.answer()[1] == 0
    kinds = model.kinds()
    first, last = kinds.index("refused"), kinds.index("submitting")
    for wave in bed.waves(last + 1 - first):
        clouds = {number: bed.pretend(f"cloud{first + number}", **{"*": ["capacity", "grant"]}) for number in wave}
        runs = {}
        for number, cloud in clouds.items():
            bed.environ["PRETEND_CLOUD"] = str(cloud)
            at = str(first + number)
            runs[number] = bed.launch(*WAIT, f"--strike-{moment}", at, name=f"{moment}{at}")
        for number, run in runs.items():
            run.process.wait(60)
            closure = run.gone()
            told = (number, kinds[first + number - 1])
            assert (closure["verdict"], closure["reason"]) == ("cancelled", "launcher-lost"), told
            assert closure["teardown"]["confirmed"], told
            assert list(clouds[number].glob("things/*")) == [], told
            holds(run)
