"""Who belongs to a run, and that nobody else is ever signalled."""

import os
import secrets
import signal
import time
from itertools import count

import pytest

from orchestrate.backends import members as members_module
from orchestrate.backends.members import Members, Snapshot, end_members
from orchestrate.backends.process_table import (
    Process,
    ProcessIdentity,
    environment,
    identity_of,
    processes,
    read_process,
    send_signal,
)

FORKS = """
import os, time
child = os.fork()
if child == 0:
    os.setsid()
    time.sleep(120)
print(child, flush=True)
time.sleep(120)
"""


def token():
    return secrets.token_hex(16)


def line(child):
    return int(child.stdout.readline())


def test_the_process_table_knows_this_process():
    me = read_process(os.getpid())
    assert (me.parent, me.group, me.session) == (os.getppid(), os.getpgid(0), os.getsid(0))
    assert me.identity in {process.identity for process in processes()}
    assert me.rss_bytes > 1 << 20
    assert environment(os.getpid()).get("PATH") == os.environ["PATH"]


def test_a_process_that_is_gone_is_none_and_is_not_signalled(nursery):
    child = nursery.start()
    identity = identity_of(child.pid)
    child.kill()
    child.wait()
    assert identity_of(child.pid) is None
    assert send_signal(identity, signal.SIGTERM) is False


def test_a_pid_that_is_used_again_is_not_signalled(nursery):
    child = nursery.start()
    other = ProcessIdentity(child.pid, identity_of(child.pid).start_ticks - 1)
    assert send_signal(other, signal.SIGKILL) is False
    assert child.poll() is None


def test_a_token_makes_a_member_and_another_token_does_not(nursery):
    ours = token()
    mine, other, none = nursery.start(token=ours), nursery.start(token=token()), nursery.start()
    alive = {process.pid for process in Members(ours).look().alive}
    assert mine.pid in alive
    assert not alive & {other.pid, none.pid, os.getpid()}


def test_children_in_sessions_of_their_own_are_members(nursery):
    ours = token()
    child = nursery.start(FORKS, token=ours)
    grandchild = line(child)
    assert {process.pid for process in Members(ours).look().alive} == {child.pid, grandchild}


def test_a_remembered_process_is_a_member_without_its_token(nursery):
    child = nursery.start()
    members = Members(token())
    members.recall(read_process(child.pid))
    assert [process.pid for process in members.look().alive] == [child.pid]


def test_a_remembered_pid_of_another_process_is_not(nursery):
    child = nursery.start()
    seen = read_process(child.pid)
    identity = ProcessIdentity(child.pid, seen.identity.start_ticks - 5)
    members = Members(token())
    members.recall(Process(identity, 1, seen.group, seen.session, "S", 1, 0, "python3"))
    assert members.look().alive == ()


def test_a_spared_process_is_never_a_member(nursery):
    ours = token()
    warden = nursery.start(token=ours)
    members = Members(ours)
    members.keep_out(identity_of(warden.pid))
    assert members.look().alive == ()


def test_this_process_and_its_ancestors_are_never_members():
    members = Members(token())
    for pid in (os.getpid(), os.getppid()):
        members.recall(read_process(pid))
    assert members.look().alive == ()


def test_ending_members_leaves_the_neighbour_alone(nursery):
    ours = token()
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(120)"
    mine = nursery.start(deaf, token=ours)
    neighbour = nursery.start(deaf, token=token())
    line(mine), line(neighbour)
    members = Members(ours)
    members.leave_to_its_waiter(mine.pid)
    ended = end_members(members.look, grace_s=0.2, kill_s=5)
    assert (ended.terminated, ended.killed, ended.left) == (1, 1, ())
    assert mine.wait() == -signal.SIGKILL
    assert neighbour.poll() is None


def test_only_the_top_is_told_so_that_it_can_end_its_own(nursery):
    ours = token()
    child = nursery.start(FORKS, token=ours)
    grandchild = line(child)
    members = Members(ours)
    members.leave_to_its_waiter(child.pid)
    ended = end_members(members.look, grace_s=3, kill_s=5)
    assert child.wait() == -signal.SIGTERM
    # The orphan came to the top and was told in its turn.
    assert (ended.terminated, ended.killed) == (2, 0)
    assert identity_of(grandchild) is None or read_process(grandchild).is_zombie


def test_a_stopped_process_is_ended_by_sigterm_too(nursery):
    ours = token()
    child = nursery.start(token=ours)
    os.kill(child.pid, signal.SIGSTOP)
    members = Members(ours)
    members.leave_to_its_waiter(child.pid)
    ended = end_members(members.look, grace_s=5, kill_s=5)
    assert (ended.killed, child.wait()) == (0, -signal.SIGTERM)


def test_a_zombie_is_not_alive_and_is_reaped_only_by_its_own_parent(nursery):
    ours = token()
    child = nursery.start(token=ours)
    members = Members(ours)
    members.leave_to_its_waiter(child.pid)
    assert len(members.look().alive) == 1
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    snapshot = members.look()
    assert (snapshot.alive, [process.pid for process in snapshot.zombies]) == ((), [child.pid])
    assert child.wait() == -signal.SIGKILL


def test_a_fork_that_races_a_look_is_found_by_the_next_one(monkeypatch):
    fakes = [Process(ProcessIdentity(100 + turn, 1), 1, 1, 1, "R", 1, 0, "fork") for turn in range(3)]
    # A fork is alive whenever one looks, though each look shows another process; then one empty look lies between.
    looks = [Snapshot((fake,), ()) for fake in fakes] + [Snapshot((), ()), Snapshot((fakes[2],), ())]
    looks += [Snapshot((), ())] * 2
    turn = count()
    killed = []

    def remember(identity, signum):
        killed.append((identity.pid, signum))
        return True

    monkeypatch.setattr(members_module, "send_signal", remember)
    ended = end_members(lambda: looks[next(turn)], grace_s=0, kill_s=5, pause=lambda _: None)
    assert next(turn) == len(looks)
    assert [pid for pid, signum in killed] == [100, 101, 102, 102]
    assert ended.left == ()


def test_who_can_not_be_killed_is_named():
    stuck = Process(ProcessIdentity(2**22 + 5, 1), 1, 1, 1, "D", 1, 0, "stuck")
    times = count()
    ended = end_members(
        lambda: Snapshot((stuck,), ()), grace_s=1, kill_s=1, pause=lambda _: None, clock=lambda: next(times) * 0.1
    )
    assert ended.left == (stuck,)


@pytest.mark.parametrize("name", ["plain", "with ) and (", "a b c"])
def test_a_name_can_hold_anything(nursery, name, tmp_path):
    child = nursery.start(
        f"import time; open('/proc/self/comm', 'w').write({name!r}); print(1, flush=True); time.sleep(99)"
    )
    line(child)
    assert read_process(child.pid).name == name
    assert time.time() > 0
