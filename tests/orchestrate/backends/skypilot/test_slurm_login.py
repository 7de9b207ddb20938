"""What Slurm's commands print, read; a stand-in for `ssh` runs them."""

import subprocess

import pytest

from orchestrate.backends import slurm_login
from orchestrate.backends.slurm_login import SlurmLogin, hosts_of
from orchestrate.errors import BackendError

NAME = "orc-0123456789abcd-2611302245"
LINES = [
    f"2\x1fRUNNING\x1f30:00\x1f2026-11-30T22:50:00\x1fNone\x1fgres:gpu:H200:4\x1f(null)\x1f{NAME}-fcd1e5cf",
    "3\x1fPENDING\x1f1-02:03:04\x1fN/A\x1fResources\x1fN/A\x1forchestrate/1\x1ftraining",
    f"4\x1fCANCELLED\x1fUNLIMITED\x1f2026-11-30T22:50:00\x1fNone\x1fgres:gpu:4\x1f\x1f{NAME}-fcd1e5cf",
]


@pytest.fixture
def login(tmp_path, monkeypatch):
    made = SlurmLogin(tmp_path / "config", "bed")
    ran = []

    def run(arguments, **_options):
        ran.append(arguments)
        return subprocess.CompletedProcess(arguments, made_of["code"], made_of["out"].encode(), b"first\nlast word\n")

    made_of = {"out": "", "code": 0}
    monkeypatch.setattr(subprocess, "run", run)
    return made, made_of, ran


def test_jobs_are_read_with_limits_reasons_and_marks(login):
    made, answer, _ = login
    answer["out"] = "\n".join(LINES)
    running, pending, ended = made.jobs()
    assert (running.limit_s, running.gpus, running.comment, running.is_there) == (1800, 4, "", True)
    assert (pending.limit_s, pending.reason, pending.gpus) == (93784, "Resources", None)
    assert (ended.limit_s, ended.gpus, ended.is_there) == (None, 4, False)
    assert [job.id for job in made.jobs_of(NAME)] == ["2"]


def test_gpus_are_counted_by_kind_and_nodes_out_of_order_left_out(login):
    made, answer, _ = login
    answer["out"] = """\
n1 mix gpu:H200:4(S:0-1),lustre:1 gpu:H200:3(IDX:0-2),lustre:0
n1 mix gpu:H200:4(S:0-1),lustre:1 gpu:H200:3(IDX:0-2),lustre:0
n2 drain gpu:H200:8 gpu:H200:0
n3 idle (null) (null)
n4 idle gpu:a100:2,gpu:H200:1 gpu:a100:0(IDX:N/A),gpu:H200:0(IDX:N/A)
"""
    assert [(node.name, node.kind, node.total, node.used) for node in made.nodes()] == [
        ("n1", "H200", 4, 3), ("n4", "a100", 2, 0), ("n4", "H200", 1, 0),
    ]  # fmt: skip


def test_a_login_that_fails_is_an_error_with_its_last_word(login):
    made, answer, _ = login
    answer["code"] = 255
    with pytest.raises(BackendError, match="last word"):
        made.jobs()


def test_only_folders_of_the_cluster_itself_are_taken(login):
    made, answer, ran = login
    own = (f"/dev/shm/{NAME}-fcd1e5cf", f".sky_clusters/{NAME}-fcd1e5cf", f".sky_provision/{NAME}-fcd1e5cf.sh")
    foreign = (f".sky_clusters/{NAME}-other", "/etc/passwd", f"/dev/shm/{NAME}-fcd1e5cf/..", f"/etc/{NAME}-fcd1e5cf")
    answer["out"] = "\n".join((*own, *foreign))
    found = made.folders_of(NAME)
    assert sorted(found) == sorted(own)
    made.remove(found)
    assert ran[-1][-1].startswith("cd && rm -rf -- ./.sky_clusters/orc-")
    assert f" /dev/shm/{NAME}-fcd1e5cf" in ran[-1][-1]


def test_nothing_reaches_the_shell_unquoted(login):
    made, _, ran = login
    made.tail("a b; rm -rf ~/'x", 0)
    assert "'a b; rm -rf ~/'\"'\"'x'" in ran[-1][-1]


def test_a_command_that_takes_too_long_is_an_error(tmp_path, monkeypatch):
    def run(arguments, **options):
        raise subprocess.TimeoutExpired(arguments, options["timeout"])

    monkeypatch.setattr(slurm_login.subprocess, "run", run)
    with pytest.raises(BackendError, match="no answer within"):
        SlurmLogin(tmp_path, "bed").jobs()


def test_the_clusters_of_a_machine_are_its_hosts_without_patterns(tmp_path):
    config = tmp_path / "config"
    config.write_text("Host *\n  User x\nhost bed lab\n  HostName 127.0.0.1\nHost gpu-?\n  HostName h\n")
    assert hosts_of(config) == ("bed", "lab")
    assert hosts_of(tmp_path / "none") == ()
