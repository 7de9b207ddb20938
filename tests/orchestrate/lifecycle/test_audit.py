"""An audit over surveyors, without a provider: what is planned, what is reaped, and what is left alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from orchestrate.backends.protocol import Look, Resource
from orchestrate.backends.survey import OwnedResources, Survey
from orchestrate.clock import to_wire
from orchestrate.errors import RunsDirError
from orchestrate.lifecycle.audit import apply, plan_audit
from orchestrate.lifecycle.findings import Action, Filter
from orchestrate.lifecycle.journal import Journal, is_chained
from orchestrate.lifecycle.plan import PLAN_SCHEMA
from orchestrate.lifecycle.run_directory import BEING_MADE, RunDirectory, RunLock
from orchestrate.lifecycle.runs import RunState, list_runs
from orchestrate.render.text import cloud_label_value, label_value

NOW = datetime(2026, 11, 30, 18, tzinfo=UTC)
PAST, FUTURE = to_wire(NOW - timedelta(hours=1)), to_wire(NOW + timedelta(hours=1))


class Provider:
    """A provider that holds things by name, and a surveyor of it."""

    def __init__(self, name="k8s", *, unknown=(), refuses=()):
        self.name = name
        self.there = {}
        self.unknown = unknown
        self.refuses = refuses
        self.reaped = []

    def hold(self, run_id, *, owner="ada@ws", expires_at=FUTURE, gpus=4, age_s=1800.0, uid="1", **more):
        items = (f"job ns/{run_id} uid {uid}", f"config-map ns/{run_id}-harness uid {uid}c")
        self.there[run_id, uid] = OwnedResources(
            self.name, "ctx/ns", run_id, owner, expires_at, age_s, items, handle={"uid": uid}, gpus=gpus, **more
        )

    def survey(self):
        return Survey(tuple(self.there.values()), ("jobs in ns",), self.unknown)

    def reap(self, owned):
        key = (owned.run_id, owned.handle["uid"])
        self.reaped.append(key)
        if owned.run_id in self.refuses:
            return owned.items
        self.there.pop(key, None)
        return ()


class Recovery:
    """Stands in for what closes runs that have a directory; only that it was asked matters here."""

    by = "audit"

    def __init__(self):
        self.asked = []

    def end(self, run, why):
        self.asked.append(("end", run.run_id, why))

    def look_again(self, run, why):
        self.asked.append(("look-again", run.run_id, why))


def nothing_there(_run):
    return Look("", (), (), ())


@pytest.fixture
def provider():
    return Provider()


@pytest.fixture
def plan(tmp_path, provider):
    def make(*, local_runs=False, surveyors=None, look=nothing_there, **wanted):
        surveyors = [provider] if surveyors is None else surveyors
        return plan_audit(surveyors, tmp_path / "runs", Filter(**wanted), NOW, local_runs=local_runs, look=look)

    return make


@pytest.fixture
def run(tmp_path):
    """Make a run directory with a journal that ends as told."""

    def make(run_id, *, closed=None):
        directory = RunDirectory(tmp_path / "runs" / run_id)
        directory.path.mkdir(parents=True)
        directory.lock.touch()
        journal = Journal(directory.journal)
        for number in range(5):
            journal.append("note", text=f"note {number}")
        if closed is not None:
            facts = {"verdict": closed, "owner": "ada@ws", "created_at": PAST, "cell_set": "smoke", "run_id": run_id}
            journal.append("closure", **facts)
        journal.close()
        return directory

    return make


def actions(found):
    return {finding.run_id: finding.action for finding in found.findings}


def test_nothing_is_clean_and_says_where_was_looked(plan):
    found = plan()
    assert (found.findings, found.unknown) == ((), ())
    assert found.looked == ("k8s: jobs in ns",)


def test_what_has_expired_is_ended_and_what_has_not_is_left_without_any_local_state(plan, provider):
    provider.hold("r-old", expires_at=PAST)
    provider.hold("r-new")
    found = plan()
    assert actions(found) == {"r-old": Action.END, "r-new": Action.NONE}
    done = {finding.run_id: finding for finding in apply(found, Recovery())}
    assert [key[0] for key in provider.there] == ["r-new"]
    assert (done["r-old"].left, bool(done["r-new"].left)) == ((), True)


def test_overdue_is_what_somebody_has_to_act_on(plan, provider, run):
    provider.hold("r-old", expires_at=PAST)
    provider.hold("r-new")
    provider.hold("r-untold", expires_at="")
    provider.hold("r-odd", expires_at="soon")
    run("r-open")
    found = plan(overdue=True, local_runs=True)
    assert actions(found) == {
        "r-old": Action.END, "r-untold": Action.NONE, "r-odd": Action.NONE, "r-open": Action.CLOSE,
    }  # fmt: skip


@pytest.mark.parametrize("expires_at", ["", "soon", "2026-11-30T17:00:00"])
def test_what_does_not_say_when_it_expires_is_left_to_a_person(plan, provider, expires_at):
    provider.hold("r1", expires_at=expires_at)
    assert actions(plan()) == {"r1": Action.NONE}
    assert actions(plan(run_id="r1")) == {"r1": Action.END}


def test_a_named_run_or_owner_may_go_before_it_expires_and_nobody_elses_does(plan, provider):
    provider.hold("r1", owner="ada@ws")
    provider.hold("r2", owner="bob@ws")
    assert actions(plan(run_id="r1")) == {"r1": Action.END}
    assert actions(plan(owner="bob@ws")) == {"r2": Action.END}
    assert actions(plan(owner="bob@w")) == {}
    assert actions(plan(run_id="r")) == {}


@pytest.mark.parametrize("written", [label_value, cloud_label_value])
def test_an_owner_is_known_by_the_label_that_a_provider_keeps_of_it(plan, provider, written):
    provider.hold("r1", owner=written("Ada@ws"))
    provider.hold("r2", owner=written("Bob@ws"))
    assert actions(plan(owner="Ada@ws")) == {"r1": Action.END}
    assert actions(plan(owner="ada@ws")) == {}


def test_what_appears_after_the_plan_is_not_touched(plan, provider):
    provider.hold("r1", expires_at=PAST, uid="1")
    found = plan()
    provider.hold("r1", expires_at=PAST, uid="2")
    provider.hold("r9", expires_at=PAST)
    list(apply(found, Recovery()))
    assert provider.reaped == [("r1", "1")]
    assert set(provider.there) == {("r1", "2"), ("r9", "1")}


def test_a_plan_changes_nothing(plan, provider):
    provider.hold("r1", expires_at=PAST)
    before = dict(provider.there)
    plan()
    assert provider.there == before
    assert provider.reaped == []


def test_younger_things_are_not_meant(plan, provider):
    provider.hold("r1", expires_at=PAST, age_s=60)
    assert actions(plan(older_than_s=3600.0)) == {}
    assert actions(plan(older_than_s=30.0)) == {"r1": Action.END}


def test_side_resources_are_told_and_taken_with_the_rest(plan, provider):
    provider.hold("r1", expires_at=PAST)
    (finding,) = plan().findings
    assert [item.split()[0] for item in finding.items] == ["job", "config-map"]


def test_what_can_not_be_taken_is_left(tmp_path):
    stubborn = Provider(refuses=("r1",))
    stubborn.hold("r1", expires_at=PAST)
    stubborn.hold("r2", expires_at=PAST)
    found = plan_audit([stubborn], tmp_path, Filter(), NOW, local_runs=False, look=nothing_there)
    done = {finding.run_id: finding for finding in apply(found, Recovery())}
    assert done["r1"].outcome.startswith("not all could be ended")
    assert done["r2"].left == ()


def test_a_question_without_an_answer_is_unknown_and_never_absence(tmp_path):
    dark = Provider(unknown=("jobs: 503",))
    assert plan_audit([dark], tmp_path, Filter(), NOW, local_runs=False, look=nothing_there).unknown == (
        "k8s: jobs: 503",
    )


def test_gpu_hours_are_told_where_they_are_known(plan, provider):
    provider.hold("r1", gpus=4, age_s=1800.0)
    provider.hold("r2", gpus=None)
    tree = {finding.run_id: finding.as_json() for finding in plan().findings}
    assert (tree["r1"]["gpus"], tree["r1"]["gpu_hours"]) == (4, 2.0)
    assert (tree["r2"]["gpus"], tree["r2"]["gpu_hours"]) == (None, None)


def test_what_bears_a_runs_name_without_its_token_is_somebody_elses(plan, provider, run):
    mine = run("r1", closed="passed")
    mine.token.write_text("mine\n")
    provider.hold("r1", uid="forged", token="other", expires_at=FUTURE)
    provider.hold("r1", uid="bare", token="", expires_at=PAST)
    for named in ({}, {"run_id": "r1"}):
        found = plan(**named)
        assert sorted(finding.action for finding in found.findings) == [Action.END, Action.NONE]
        assert all("not its token" in finding.because for finding in found.findings)
    recovery = Recovery()
    done = list(apply(plan(), recovery))
    assert recovery.asked == []
    assert list(provider.there) == [("r1", "forged")]
    assert [bool(finding.left) for finding in done if finding.action is Action.NONE] == [True]


def test_what_bears_a_runs_token_is_the_runs(plan, provider, run):
    run("r1", closed="passed").token.write_text("mine\n")
    provider.hold("r1", token="mine", expires_at=PAST)
    assert actions(plan()) == {"r1": Action.LOOK_AGAIN}


def test_a_run_at_two_providers_is_found_at_both(plan):
    one, other = Provider("k8s"), Provider("sky")
    for each in (one, other):
        each.hold("r1", expires_at=PAST)
    found = plan(surveyors=[one, other])
    assert [finding.held[0].surveyor.name for finding in found.findings] == ["k8s", "sky"]
    list(apply(found, Recovery()))
    assert not one.there
    assert not other.there


class TestWithRunDirectories:
    def test_a_live_run_is_never_touched_even_when_expired_and_named(self, plan, provider, run):
        directory = run("r1")
        provider.hold("r1", expires_at=PAST)
        lock = RunLock.try_take(directory)
        try:
            found = plan(run_id="r1")
            (finding,) = found.findings
            assert (finding.live, finding.action) == (True, Action.NONE)
            recovery = Recovery()
            list(apply(found, recovery))
        finally:
            lock.release()
        assert provider.reaped == []
        assert recovery.asked == []

    def test_a_run_that_became_live_after_the_plan_is_left_alone(self, plan, provider, run):
        directory = run("r1")
        provider.hold("r1", expires_at=PAST)
        found = plan()
        assert actions(found) == {"r1": Action.CLOSE}
        lock = RunLock.try_take(directory)
        try:
            (done,) = apply(found, Recovery())
        finally:
            lock.release()
        assert done.live
        assert "living owner" in done.outcome

    def test_a_run_whose_owner_is_gone_is_closed_by_its_own_backend(self, plan, provider, run):
        run("r1")
        provider.hold("r1")
        recovery = Recovery()
        list(apply(plan(), recovery))
        assert [asked[:2] for asked in recovery.asked] == [("end", "r1"), ("look-again", "r1")]
        assert provider.reaped == []

    def test_a_closed_run_that_left_something_is_looked_at_again(self, plan, provider, run):
        run("r1", closed="passed")
        assert actions(plan(local_runs=True)) == {}
        provider.hold("r1")
        (finding,) = plan().findings
        assert (finding.action, finding.because) == (Action.LOOK_AGAIN, "it is closed, but something of it is there")

    def test_a_closed_run_whose_teardown_was_never_confirmed_is_looked_at_again(self, plan, run):
        run("r1", closed="teardown-unconfirmed")
        (finding,) = plan(local_runs=True).findings
        assert (finding.action, finding.because) == (Action.LOOK_AGAIN, "its teardown was never confirmed")

    def test_a_run_that_was_never_finished_being_made_is_removed_with_its_folder(self, plan, tmp_path):
        husk = RunDirectory(tmp_path / "runs" / f"{BEING_MADE}r1")
        husk.path.mkdir(parents=True)
        husk.lock.touch()
        found = plan(local_runs=True)
        assert actions(found) == {"r1": Action.REMOVE_HUSK}
        assert found.findings[0].items == (f"folder {husk.path}",)
        list(apply(found, Recovery()))
        assert not husk.path.exists()

    def test_a_closed_run_that_is_named_is_looked_at_with_all_that_its_journal_knows(self, plan, run):
        run("r1", closed="passed")
        run("r2", closed="passed")
        asked = []

        def look(directory):
            asked.append(directory.run_id)
            return Look("", (), (Resource("shared-memory", "/dev/shm/torch_7"),), ("ports: no answer",))

        found = plan(local_runs=True, run_id="r1", look=look)
        assert asked == ["r1"]
        assert [finding.items for finding in found.findings] == [("shared-memory /dev/shm/torch_7",)]
        assert actions(found) == {"r1": Action.LOOK_AGAIN}
        assert found.unknown == ("run r1: ports: no answer",)
        assert plan(local_runs=True, look=look).findings == ()

    def test_a_named_run_that_can_not_be_looked_at_is_unknown(self, plan, run):
        run("r1", closed="passed")

        def look(_directory):
            raise RunsDirError("no plan", remedy="restore it")

        assert plan(local_runs=True, run_id="r1", look=look).unknown == ("run r1 can not be looked at: no plan",)

    def test_runs_that_nothing_was_found_of_are_only_read_for_the_local_backend(self, plan, run):
        run("r1")
        assert actions(plan()) == {}
        assert actions(plan(local_runs=True)) == {"r1": Action.CLOSE}

    def test_a_label_can_not_lead_out_of_the_runs_directory(self, plan, provider, run):
        run("r1")
        provider.hold("../runs/r1", expires_at=PAST)
        assert actions(plan()) == {"../runs/r1": Action.END}

    @pytest.mark.parametrize("place", [0.1, 0.5, 0.8, 0.97])
    def test_a_damaged_journal_is_never_clean_though_its_end_be_whole(self, plan, run, place):
        directory = run("r1", closed="passed")
        assert plan(local_runs=True).findings == ()
        data = bytearray(directory.journal.read_bytes())
        data[int(len(data) * place)] ^= 1
        directory.journal.write_bytes(data)
        found = plan(local_runs=True)
        assert "r1" in found.unknown[0]
        assert "damaged" in found.unknown[0]

    def test_a_journal_without_a_line_in_its_middle_is_damaged(self, run):
        directory = run("r1", closed="passed")
        lines = directory.journal.read_bytes().splitlines(keepends=True)
        assert is_chained(directory.journal)
        directory.journal.write_bytes(b"".join(lines[:2] + lines[3:]))
        assert not is_chained(directory.journal)
        directory.journal.write_bytes(b"".join(lines[1:]))
        assert not is_chained(directory.journal)


def test_a_copy_is_no_run_and_what_an_open_one_may_own_is_not_told_from_it(plan, run):
    closed, open_run = run("r1", closed="teardown-unconfirmed"), run("r2")
    for directory, name in ((closed, "copy"), (open_run, "other")):
        plan_json = {"schema": PLAN_SCHEMA, "run_id": directory.run_id}
        directory.plan.write_text(json.dumps(plan_json))
        shutil.copytree(directory.path, directory.path.with_name(name))
    heads = {head.run.run_id: (head.state, head.verdict) for head in list_runs(closed.path.parent)}
    assert heads == {
        "r1": (RunState.CLOSED, "teardown-unconfirmed"),
        "r2": (RunState.OPEN, None),
        "copy": (RunState.MISNAMED, None),
        "other": (RunState.MISNAMED, None),
    }
    found = plan(local_runs=True)
    assert actions(found) == {"r1": Action.LOOK_AGAIN, "r2": Action.CLOSE}
    (unknown,) = found.unknown
    assert "other: it is the run r2 under another name" in unknown


def test_whether_a_named_run_is_known_anywhere_is_told(plan, provider, run):
    provider.hold("r1")
    run("r2", closed="passed")
    assert plan(run_id="r1").known_runs == 1
    assert plan(run_id="r2", local_runs=True).known_runs == 1
    assert plan(run_id="r3", local_runs=True).known_runs == 0


def test_the_owner_decides_only_about_what_the_plan_lists(plan, provider):
    provider.hold("r1", expires_at=PAST)
    found = plan()
    changed = replace(found, findings=())
    assert list(apply(changed, Recovery())) == []
    assert provider.there
