import json
import subprocess
import sys

import pytest

from harness import preflight
from harness.preflight import fingerprint, look

ROW = "{index}, GPU-{index}, {name}, 570.1, 143771, {used}, {mig}"
TOPOLOGY = "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X\n"


def node(count=4, *, name="NVIDIA H200", used=4, mig="Disabled", torch_sees=None, topology=TOPOLOGY):
    """What the real tools would print on such a node: the parsing is under test, no GPU is pretended to a user."""
    answers = {
        "--query-gpu": "\n".join(ROW.format(index=index, name=name, used=used, mig=mig) for index in range(count)),
        "--query-compute-apps": "GPU-0, 71, 4\n",
        "topo": topology,
        "-c": json.dumps(
            {
                "cuda": "12.8",
                "nccl": [2, 27, 3],
                "visible": count if torch_sees is None else torch_sees,
                "names": [name] * count,
            }
        ),
    }

    def ask(command):
        return next(answer for key, answer in answers.items() if command[1].startswith(key))

    return ask


def problems(ask, slots=4, env=None):
    return look("h200", slots, env or {}, ask).problems


def test_on_a_cpu_set_gpu_facts_are_not_applicable_and_no_tool_is_asked():
    def never(command):
        raise AssertionError(command)

    found = look("cpu", 4, {}, never)
    assert found.problems == ()
    for name in ("gpus", "driver", "cuda", "nccl", "topology", "held_by_others"):
        assert found.facts[name] == "not-applicable"
    assert found.facts["cpus"] >= 1
    json.dumps(found.facts)


@pytest.mark.parametrize("device", ["cpu", "h200"])
def test_an_image_with_torch_alone_is_no_node_to_run_cells_on(monkeypatch, device):
    real = preflight.find_spec
    monkeypatch.setattr(preflight, "find_spec", lambda name: None if name == "numpy" else real(name))
    (problem,) = look(device, 4, {}, node()).problems
    assert problem.endswith(f"{sys.executable} has no numpy")


def test_a_node_as_asked_for_has_no_problem_and_its_facts_are_kept():
    found = look("h200", 4, {}, node())
    assert found.problems == ()
    assert [gpu["name"] for gpu in found.facts["gpus"]] == ["NVIDIA H200"] * 4
    assert (found.facts["driver"], found.facts["cuda"], found.facts["nccl"]) == ("570.1", "12.8", [2, 27, 3])
    assert found.facts["topology"][0].split() == ["GPU0", "GPU1"]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (node(3), "3 GPUs are visible, exactly 4 were asked for"),
        (node(8), "8 GPUs are visible, exactly 4 were asked for"),
        (node(name="NVIDIA H100 80GB HBM3"), "not an H200"),
        (node(used=40_000), "40000 MiB in use by others"),
        (node(mig="Enabled"), "is in MIG mode"),
        (node(torch_sees=0), "torch sees 0 GPUs, nvidia-smi 4"),
    ],
)
def test_a_node_that_is_not_what_was_asked_for_is_named(ask, says):
    found = problems(ask)
    assert any(says in problem for problem in found)
    assert all(problem.startswith("node ") for problem in found)


def test_visible_devices_choose_among_the_gpus():
    assert problems(node(8, torch_sees=4), env={"CUDA_VISIBLE_DEVICES": "0,1,2,GPU-3"}) == ()


@pytest.mark.parametrize("error", [FileNotFoundError("nvidia-smi"), subprocess.TimeoutExpired("nvidia-smi", 120)])
def test_a_tool_that_can_not_be_asked_is_a_problem_and_not_a_crash(error):
    def broken(command):
        raise error

    assert any("could not be asked" in problem for problem in problems(broken))


def test_the_fingerprint_depends_on_hardware_and_software_and_not_on_load_or_name():
    facts = look("h200", 4, {}, node()).facts
    assert fingerprint({**facts, "node": "other", "held_by_others": []}) == facts["fingerprint"]
    assert fingerprint({**facts, "driver": "570.2"}) != facts["fingerprint"]
