"""The launcher is killed before and after every record of a journal, enumerated from a journal and not by hand."""

import pytest

from orchestrate.receipts.verify import verify_run


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_launcher_killed_at_any_record_leaves_nothing_and_the_right_verdict(bed, moment):
    model = bed.launch("--behaviour", "complete", name="model")
    assert model.answer()[1] == 0
    kinds = model.kinds()
    told = []
    for wave in bed.waves(len(kinds)):
        runs = {
            number: bed.launch("--behaviour", "complete", f"--strike-{moment}", str(number), name=f"{moment}{number}")
            for number in wave
        }
        for number, run in runs.items():
            run.process.wait(60)
            told.append((number, kinds[number - 1], judge(bed, run)))
    print(f"\nlauncher killed {moment} each of {len(kinds)} records:")
    for number, kind, outcome in told:
        print(f"  {number:3} {kind:16} {outcome}")
    allowed = {
        "closed by its warden",
        "closed by audit",
        "closed before",
        "not killed: a record less",
        "a husk, removed",
    }
    assert {outcome for _, _, outcome in told} <= allowed, told
    assert [outcome for _, _, outcome in told].count("closed by its warden") > len(kinds) // 2


def judge(bed, run):
    """What became of a run whose launcher is gone; anything wrong is said in words that are not allowed."""
    if run.path is None:
        husks = list(run.runs_dir.glob(".making-*"))
        for husk in husks:
            run_id = husk.name.removeprefix(".making-")
            bed.command("audit", "--backend", "local", "--runs-dir", str(run.runs_dir), "--run", run_id, "--reap")
        return "a husk, removed" if not any(husk.exists() for husk in husks) else "a husk that stays"
    if run.process.returncode >= 0:
        return "not killed: a record less" if run.process.returncode == 0 else f"exit {run.process.returncode}"
    by = "its warden"
    if "warden-started" not in run.kinds() and not run.alive():
        by = "audit"  # killed between making the run and starting the warden: nothing was asked for
        bed.command("audit", "--backend", "local", "--runs-dir", str(run.runs_dir), "--run", run.run_id, "--reap")
    closure = run.gone()
    verification = verify_run(run.path)
    if not verification.holds:
        return f"does not verify: {verification.problems}"
    if not closure["teardown"]["confirmed"]:
        return "teardown not confirmed"
    takeovers = [record["facts"]["by"] for record in run.records() if record["kind"] == "takeover"]
    if closure["verdict"] == "passed" and not takeovers:
        return "closed before"
    if (closure["verdict"], closure["reason"]) != ("cancelled", "launcher-lost"):
        return f"verdict {closure['verdict']}: {closure['reason']}"
    return f"closed by {by}"
