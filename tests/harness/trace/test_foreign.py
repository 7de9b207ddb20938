"""Programs that know nothing of the recorder, on real gloo ranks."""

import collections
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.trace.format import Flag
from harness.trace.reading import Ending, Stage, read_trace

ROOT = Path(__file__).parents[3]
JOBS = Path(__file__).parent / "jobs"


def traced(directory, *command, options=(), env=None):
    """`command` under the recorder; what it said, and what the runner said of it."""
    summary = directory / "summary.json"
    done = subprocess.run(
        [
            sys.executable, "-m", "harness", "trace_run", "--dir", directory / "trace", "--summary", summary, *options,
            "--", *command,
        ],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **(env or {})},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )  # fmt: skip
    return done, json.loads(summary.read_text()) if summary.exists() else None


def torchrun(ranks, *command):
    rendezvous = ("--nnodes", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
    return sys.executable, "-m", "torch.distributed.run", *rendezvous, "--nproc-per-node", str(ranks), *command


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    done, summary = traced(directory, *torchrun(2, JOBS / "every_way.py"))
    assert done.returncode == 0, done.stderr
    return directory / "trace", summary


@pytest.fixture(scope="module")
def ways(job):
    """Way (a function of the job) -> the records of it, by rank."""
    found = collections.defaultdict(lambda: ([], []))
    for rank in (0, 1):
        for record in read_trace(job[0], rank).records:
            found[record.frames[-2][2]][rank].append(record)
    return found


def said(record):
    op = record.op.removesuffix("_coalesced").removesuffix("_single")  # torch may take one tensor as a list of one
    return op, record.call["input_sizes"], record.call["reduce_op"]


@pytest.mark.parametrize("rank", [0, 1])
def test_aliases_imported_before_are_recorded(ways, rank):
    assert [said(record) for record in ways["aliases"][rank]] == [
        ("all_reduce", [[4]], "sum"),
        ("all_reduce", [[5]], "max"),
        ("all_gather", [[2]], None),
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_functional_collectives_are_recorded_and_so_is_their_wait(ways, rank):
    records = ways["functional_collectives"][rank]
    assert [said(record) for record in records] == [
        ("all_reduce", [[3]], "min"),
        ("all_gather", [[3]], None),
        ("reduce_scatter", [[4]], "sum"),
        ("all_to_all", [[3]], None),
    ]
    assert all(record.flags & Flag.ASYNC and record.is_done and record.wait_ns for record in records)
    assert records[3].call["send_splits"] == [1, 2]
    assert records[3].call["recv_splits"] == [1 + rank] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_torch_distributed_nn_is_recorded_forward_and_backward(ways, rank):
    assert [said(record) for record in ways["with_autograd"][rank]] == [("all_reduce", [[3]], "sum")] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_the_groups_of_a_device_mesh_are_recorded_with_their_ranks(ways, rank):
    dp, tp = (record for record in ways["meshes"][rank] if record.op == "all_reduce")
    assert (dp.call["input_sizes"], dp.ranks) == ([[6]], (0, 1))
    assert (tp.call["input_sizes"], tp.ranks) == ([[7]], (rank,))


def test_subgroups_count_for_themselves(ways):
    (pair, *rest) = ways["subgroups"][1]
    assert (pair.op, pair.ranks, pair.sequence, pair.call["root"]) == ("broadcast", (0, 1), 0, 1)
    (alone,) = rest
    assert (alone.op, alone.ranks, alone.sequence) == ("all_reduce", (1,), 0)
    assert [record.op for record in ways["subgroups"][0]] == ["broadcast"]


def test_point_to_point_operations_name_peer_tag_and_channel(ways):
    zero, one = ways["point_to_point"]
    told = [(record.op, record.call["peer"], record.call["tag"], record.channel) for record in zero]
    assert told == [("send", 1, 5, 0), ("recv", None, 0, 0), ("send", 1, 0, 1), ("send", 1, 0, 2), ("recv", 1, 0, 0)]
    told = [(record.op, record.call["peer"], record.call["tag"], record.channel) for record in one]
    assert told == [("recv", 0, 5, 0), ("send", 0, 0, 0), ("recv", 0, 0, 1), ("send", 0, 0, 1), ("recv", 0, 0, 2)]
    assert all(record.flags & Flag.P2P and record.is_done for record in (*zero, *one))


def test_point_to_point_operations_do_not_count_as_collectives_of_the_group(ways):
    for records in ways["point_to_point"]:
        (sequence,) = {record.sequence for record in records}
        assert ways["objects"][0][0].sequence == sequence


@pytest.mark.parametrize("rank", [0, 1])
def test_object_collectives_are_recorded_as_what_they_call(ways, rank):
    assert [record.op for record in ways["objects"][rank]] == ["all_gather"] * 2 + ["broadcast"] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_barriers_are_recorded(ways, rank):
    assert [record.op for record in ways["barriers"][rank]] == ["barrier", "monitored_barrier"]


@pytest.mark.parametrize("rank", [0, 1])
def test_roots_are_global_ranks(ways, rank):
    assert [(record.op, record.call["root"], record.call["reduce_op"]) for record in ways["rooted"][rank]] == [
        ("broadcast", 1, None),
        ("reduce", 1, "product"),
        ("gather", 1, None),
        ("scatter", 1, None),
    ]


def test_both_split_lists_are_recorded_also_where_they_are_left_out(ways):
    for rank, send, recv in ((0, [1, 3], [1, 2]), (1, [2, 1], [3, 1])):
        uneven, even = ways["uneven"][rank]
        assert (uneven.call["send_splits"], uneven.call["recv_splits"]) == (send, recv)
        assert (even.call["send_splits"], even.call["recv_splits"]) == ([2, 2], [2, 2])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_wait_is_a_part_of_an_asynchronous_collective(ways, rank):
    waited, left = ways["asynchronous"][rank]
    assert waited.flags & left.flags & Flag.ASYNC
    assert waited.start_ns <= waited.wait_ns <= waited.end_ns
    assert left.wait_ns is None
    assert left.stage in {Stage.COMPLETED, Stage.RETURNED}


@pytest.mark.parametrize("rank", [0, 1])
def test_the_reducer_of_distributed_data_parallel_is_recorded(ways, rank):
    *_, bucket = ways["data_parallel"][rank]
    assert (bucket.op, bucket.call["input_sizes"]) == ("all_reduce", [[8]])


@pytest.mark.parametrize("rank", [0, 1])
def test_compiled_code_and_inference_mode_are_recorded(ways, rank):
    assert [said(record) for record in ways["compiled"][rank]] == [("all_reduce", [[11]], "sum")]
    assert [said(record) for record in ways["inference"][rank]] == [("all_reduce", [[12]], "sum")]


def test_the_callers_are_the_users_lines(ways):
    frames = ways["aliases"][0][0].frames
    assert [function for _, _, function in frames[:2]] == ["aliases", "<module>"]
    lines = (JOBS / "every_way.py").read_text().splitlines()
    assert lines[frames[0][1] - 1].strip() == "reduce_alias(torch.ones(4))"


def test_a_job_that_ends_by_itself_leaves_whole_traces_and_a_summary(job):
    directory, summary = job
    for rank in (0, 1):
        trace = read_trace(directory, rank)
        assert trace.ending is Ending.CLOSED
        assert trace.head["world_size"] == 2
        assert {"rank": rank, "records": len(trace.records)}.items() <= summary["ranks"][rank].items()
    assert (summary["exit_code"], summary["verdict"], summary["stalls"]) == (0, "passed", [])
    assert not (directory / "stacks").exists() or not list((directory / "stacks").iterdir())


def test_the_exit_code_of_the_command_is_passed_on(tmp_path):
    done, summary = traced(tmp_path, sys.executable, "-c", "import sys; sys.exit(7)")
    assert (done.returncode, summary["exit_code"], summary["verdict"]) == (7, 7, "failed")
    done, summary = traced(tmp_path, sys.executable, "-c", "import os; os.kill(os.getpid(), 9)")
    assert (done.returncode, summary["signal"]) == (137, 9)


def test_a_command_that_is_not_there_is_bad_input(tmp_path):
    done, summary = traced(tmp_path, "no-such-program")
    assert done.returncode == 2
    assert "no-such-program" in done.stderr
    assert summary is None


def test_a_sitecustomize_of_the_environment_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.mine = 'mine'\n")
    done, _ = traced(
        tmp_path, sys.executable, "-c", "import sitecustomize; print(mine, sitecustomize.__file__)",
        env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.split() == ["mine", str(tmp_path / "sitecustomize.py")]


def test_a_program_that_uses_no_torch_imports_none_and_leaves_no_trace(tmp_path):
    done, summary = traced(tmp_path, sys.executable, "-c", "import sys; print('torch' in sys.modules)")
    assert done.stdout == "False\n"
    assert (summary["records"], summary["ranks"]) == (0, [])


def test_a_package_named_harness_of_the_program_stays_its_own(tmp_path):
    (tmp_path / "harness").mkdir()
    (tmp_path / "harness" / "__init__.py").write_text("name = 'its own'\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import harness, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "dist.all_reduce(torch.ones(1)); print(harness.name)\n"
    )
    done, summary = traced(tmp_path, sys.executable, program)
    assert done.stdout == "its own\n", done.stderr
    assert summary["records"] == 1


def test_a_recorder_that_can_not_write_does_not_stop_the_program(tmp_path):
    program = (
        "import torch, torch.distributed as dist, shutil, os\n"
        "shutil.rmtree(os.environ['COLLECTIVE_TRACE_DIR'])\n"
        "open(os.environ['COLLECTIVE_TRACE_DIR'], 'w').close()\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "x = torch.ones(1); dist.all_reduce(x); print(x.item())\n"
    )
    done, _ = traced(tmp_path, sys.executable, "-c", program)
    assert done.stdout == "1.0\n"
    assert "recording ends here" in done.stderr


def test_a_recorder_that_runs_out_of_room_says_where_and_leaves_the_program_alone(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import resource, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "x = torch.ones(1)\n"
        "for _ in range(17_000): work = dist.all_reduce(x, async_op=True)\n"
        "work.wait(); print('done')\n"
    )
    done, summary = traced(tmp_path, sys.executable, program)
    assert (done.returncode, done.stdout) == (0, "done\n")
    said = [line for line in done.stderr.splitlines() if "orchestrate trace" in line or "Error" in line]
    assert len(said) == 1
    assert "recording ends here" in said[0]
    assert "Traceback" not in done.stderr
    assert summary["ranks"][0]["ending"] == "cut"
    assert json.loads((tmp_path / "trace" / "rank0.beat").read_text())["phase"] == "done"


def test_a_rank_that_is_no_longer_recorded_still_shows_signs_of_life(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import json, os, pathlib, resource, time, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "x = torch.ones(1); dist.all_reduce(x)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "for _ in range(17_000): dist.all_reduce(x)\n"
        "beat = pathlib.Path(os.environ['COLLECTIVE_TRACE_DIR'], 'rank0.beat')\n"
        "count = lambda: json.loads(beat.read_bytes())['count']\n"
        "before, until = count(), time.monotonic() + 60\n"
        "while count() == before and time.monotonic() < until: dist.all_reduce(x)\n"
        "print(count() > before)\n"
    )
    done, summary = traced(tmp_path, sys.executable, program)
    assert (done.stdout, summary["ranks"][0]["ending"]) == ("True\n", "cut"), done.stderr


def test_a_second_job_of_one_command_has_a_folder_of_its_own(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "for _ in range(int(sys.argv[1])): dist.all_reduce(torch.ones(1))\n"
    )
    done, summary = traced(tmp_path, "sh", "-c", f"{sys.executable} {program} 2; {sys.executable} {program} 3")
    assert done.returncode == 0
    assert [(rank["job"], rank["records"]) for rank in summary["ranks"]] == [(".", 2), ("job2", 3)]


def test_the_attempts_of_a_restarted_job_have_folders_of_their_own(tmp_path):
    command = torchrun(2, "--max-restarts", "1", JOBS / "restarted.py")
    # In a store that attempts share, gloo may find the addresses of the ranks that are gone.
    done, summary = traced(tmp_path, *command, env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    assert done.returncode == 0, done.stderr
    told = [(rank["job"], rank["rank"], rank["records"]) for rank in summary["ranks"]]
    assert told == [(".", 0, 1), ("job2", 0, 3), ("job2", 1, 3)]
    first = read_trace(tmp_path / "trace", 0).head
    heads = [read_trace(tmp_path / "trace" / "job2", rank).head for rank in (0, 1)]
    assert (first["restart"], heads[0]["restart"], heads[1]["restart"]) == (0, 1, 1)
    assert heads[0]["job"] == heads[1]["job"]


def test_two_jobs_of_the_same_command_share_no_word(tmp_path):
    script = tmp_path / "job.py"
    script.write_text("import torch, torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n")
    command = " ".join(map(str, torchrun(2, script)))
    done, _ = traced(tmp_path, "sh", "-c", f"{command} && {command}")
    assert done.returncode == 0, done.stderr
    words = [[read_trace(tmp_path / "trace" / job, rank).head["job"] for rank in (0, 1)] for job in (".", "job2")]
    assert words[0][0] == words[0][1] != words[1][0] == words[1][1]
