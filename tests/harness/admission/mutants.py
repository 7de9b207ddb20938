"""Flips each decision of admission, one at a time, and lets the suite find it: `python mutants.py` prints the table.

`python mutants.py WORDS` runs only the mutants whose description has the words in it.

Every mutant is one replacement in one file of a copy of `harness`. It is killed when the suite fails on the copy. The
suite runs in a fork, so that torch and hypothesis are imported once. Exit code 0 when all mutants are killed.
"""

# ruff: noqa: E501 - a mutant is one row of a table

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import hypothesis  # noqa: F401 - imported before the forks
import pytest
import torch  # noqa: F401 - imported before the forks

HERE = Path(__file__).parent
HARNESS = HERE.parents[2] / "harness"
SUITE = ("test_ledger.py", "test_scenarios.py", "test_admission.py", "test_lifetime.py", "test_worlds.py")


class Mutant(NamedTuple):
    decision: str
    what: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant("allowance", "the first release needs a budget", "ledger.py", "return True", "return False"),
    Mutant("allowance", "every release is the first", "ledger.py", "old.releases + 1", "old.releases"),
    Mutant("allowance", "releases are not charged", "ledger.py", "old.release_ns + release_ns", "old.release_ns"),
    Mutant("budget", "just below 5 % instead of up to it", "ledger.py", ") <= BUDGET", ") < BUDGET"),
    Mutant("budget", "the comparison is turned round", "ledger.py", ") <= BUDGET", ") > BUDGET"),
    Mutant("budget", "6 % instead of 5 %", "ledger.py", "BUDGET_PERCENT = 5", "BUDGET_PERCENT = 6"),
    Mutant("budget", "asked once too often", "decide.py", "if not budget.allows:", "if False:"),
    Mutant("budget", "warm-up earns nothing", "ledger.py", "old.forward_ns + forward_ns,", "old.forward_ns + forward_ns - warm_ns,"),
    Mutant("budget", "work is credited twice", "admission.py", "self._uncredited_ns = self._uncredited_warm_ns = 0\n        self.ledger", "self.ledger"),
    Mutant("budget", "backward and idle time earn", "admission.py", "started = self._probe.clock_ns()\n", "started = 0\n"),
    Mutant("budget", "failed work earns", "admission.py",
           "        results = {index", "        self.credit(10**9, warm=False)\n        results = {index"),
    Mutant("budget", "the last forward earns nothing", "admission.py",
           "self._settle(self._vote(self._with_work(Ballot(Step.SETTLE,", "id(self._vote(self._with_work(Ballot(Step.SETTLE,"),
    Mutant("record", "a release is lost with its vote", "admission.py",
           "if decision.action is Action.RELEASE:  #", "if False:  #"),
    Mutant("reserve", "nothing is kept for the next release", "ledger.py", "(self.release_ns + self.reserve_ns)", "(self.release_ns)"),
    Mutant("reserve", "the latest release instead of the dearest", "ledger.py", "max(old.reserve_ns, release_ns)", "release_ns"),
    Mutant("order", "a fitting split is accepted before a release", "decide.py", "return Decision(Action.RELEASE)",
           "return Decision(Action.RELEASE) if any(v.parts == 0 for v in votes) else _split_or_refuse(votes)"),
    Mutant("order", "a release before narrower waves", "decide.py", "if not askers:",
           "if not askers and (released or min(vote.fitting for vote in votes) == votes[0].rungs):"),
    Mutant("order", "a release by itself admits the old plan", "decide.py", "return Decision(Action.SEARCH)", "return _split_or_refuse(searched)"),
    Mutant("order", "a second release in one admission", "admission.py", "released = True", "released = False"),
    Mutant("order", "a split runs without its own check", "decide.py",
           "if all(vote.outcome in {Outcome.HEALTHY, Outcome.EMPTY} for vote in votes):", "if votes:"),
    Mutant("order", "the kept split is checked on the old reading", "steps.py", "option = self._search.recheck(kept, reading)", "option = kept"),
    Mutant("order", "the smaller layout is not tried", "search.py", "for goal in Goal:", "for goal in [Goal.PREFERRED]:"),
    Mutant("order", "wide waves run on untrusted prices", "search.py", "or (rung > 0 and not option.trusted)", ""),
    Mutant("reduction", "the widest wave of any rank", "decide.py", "min(vote.fitting for", "max(vote.fitting for"),
    Mutant("reduction", "the fewest parts of any rank", "decide.py", "max(vote.parts for", "min(vote.parts for"),
    Mutant("reduction", "only the first rank's error counts", "decide.py",
           "if any(vote.outcome is Outcome.ERROR for vote in votes):", "if votes[0].outcome is Outcome.ERROR:"),
    Mutant("reduction", "bytes must come back on every rank", "decide.py",
           "if any(vote.came_back_bytes > 0 for vote in votes):", "if all(vote.came_back_bytes > 0 for vote in votes):"),
    Mutant("reduction", "starved ranks are outvoted", "decide.py",
           "if any(vote.outcome is Outcome.NEEDS_RECOVERY for vote in searched):",
           "if all(vote.outcome is Outcome.NEEDS_RECOVERY for vote in searched):"),
    Mutant("reduction", "one rank's override is enough", "decide.py", "if all(vote.allow_oversized", "if any(vote.allow_oversized"),
    Mutant("reduction", "one rank's release cost is the world's", "admission.py", "sum(vote.release_ns for vote in votes)", "votes[0].release_ns"),
    Mutant("reduction", "one rank's work is the world's", "admission.py", "sum(vote.forward_ns for vote in votes)", "votes[0].forward_ns"),
    Mutant("reduction", "well ranks release too", "steps.py", "if not asking([mine]) or not", "if not"),
    Mutant("clearing", "the kept plan outlives its admission", "admission.py",
           "outlive its admission.\n            self._kept = None", "outlive its admission."),
    Mutant("clearing", "the kept plan outlives a real release", "admission.py",
           "case Action.SEARCH:\n                        self._kept = None", "case Action.SEARCH:\n                        pass"),
    Mutant("clearing", "the stream holds the wave it gave", "admission.py",
           "yield self._drive(self._procedure(call))", "yield (held := self._drive(self._procedure(call)))"),
    Mutant("memory", "the allocator's cache counts as free", "search.py",
           "reading.free_bytes - self._headroom_bytes", "reading.free_bytes + reading.reserved_bytes - reading.allocated_bytes"),
    Mutant("memory", "a CPU is asked to release", "decide.py", "if not any(votes[rank].can_release for rank in askers):", "if False:"),
    Mutant("memory", "the bound adds what overlaps", "search.py", "return max(peak, sum(", "return peak + max(0, sum("),
)  # fmt: skip


def main(words: str = "") -> int:
    """Print the table; 0 when the suite passes unmutated and kills every mutant."""
    code = 0
    if not words:
        code, _ = run_suite(HARNESS)
        print(f"{'unmutated':<11} {'the suite passes' if code == 0 else 'THE SUITE FAILS'}", flush=True)
    chosen = [mutant for mutant in MUTANTS if words in mutant.what]
    dead = sum(killed(mutant) for mutant in chosen)
    print(f"{dead} of {len(chosen)} mutants killed")
    return 0 if code == 0 and 0 < dead == len(chosen) else 1


def killed(mutant: Mutant) -> bool:
    """Whether the suite fails on `mutant`; prints its row."""
    with mutated(mutant) as harness:
        code, seconds = run_suite(harness)
    fate = {0: "SURVIVED", 1: "killed"}.get(code, f"no verdict ({code})")
    print(f"{mutant.decision:<11} {mutant.what:<48} {fate:<10} {seconds:5.1f} s", flush=True)
    return code == 1


@contextmanager
def mutated(mutant: Mutant) -> Iterator[Path]:
    """A copy of `harness` with one replacement, which must be possible in exactly one place."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        harness = Path(directory) / "harness"
        shutil.copytree(HARNESS, harness, ignore=shutil.ignore_patterns("__pycache__"))
        file = harness / "admission" / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            raise SystemExit(f"{mutant.what}: {mutant.old!r} is {text.count(mutant.old)} times in {mutant.file}")
        file.write_text(text.replace(mutant.old, mutant.new))
        yield harness


def run_suite(harness: Path) -> tuple[int, float]:
    """Run the suite in a fork that imports `harness` from there; pytest's exit code and the seconds it took."""
    started = time.monotonic()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        sys.path.insert(0, str(harness.parent))
        sys.dont_write_bytecode = True
        files = [str(HERE / name) for name in SUITE]
        options = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=mutants", "-k", "not command"]
        os._exit(int(pytest.main([*options, *files])))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
