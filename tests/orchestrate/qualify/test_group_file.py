import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.concealing import secret_values
from orchestrate.errors import UsageError
from orchestrate.qualify.group_file import Report, parse_qualification
from orchestrate.redaction import holds_secret

GOOD = b"""
schema: orchestrate.qualification/1
name: self
device: cpu
groups:
  - name: unit
    command: python -m pytest -q "tests/a b"
    env: {WORD: apple}
    timeout: 15m
  - name: numerics
    command: [python, -m, harness, checks]
    needs: [unit]
    report: exit-code
  - name: other
    command: make check
    report: junit
    junit: out/j.xml
"""

BOMB = (
    b"device: [&a [x,x,x,x,x,x,x,x,x,x]"
    + b"".join(b", &%c [%s]" % (n + 1, b",".join([b"*%c" % n] * 10)) for n in b"abcde")
    + b"]"
)


def test_a_file_of_groups_is_read_as_it_is_written():
    found = parse_qualification(GOOD, "qualification.yaml")
    unit, numerics, other = found.groups
    assert unit.command == ("python", "-m", "pytest", "-q", "tests/a b")
    assert (unit.env, unit.timeout_s, unit.report) == ({"WORD": "apple"}, 900, Report.PYTEST)
    assert numerics.needs == ("unit",)
    assert other.junit == "out/j.xml"
    assert found.slots == 4
    node = found.for_node("r1", "0" * 64)
    assert [group["name"] for group in node["groups"]] == ["unit", "numerics", "other"]
    assert "junit" not in node["groups"][0]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"name: numerics", b"name: unit", "a second time"),
        (b"needs: [unit]", b"needs: [other]", "does not come before"),
        (b"timeout: 15m", b"timeout: 15", "groups\\[0\\].timeout: must be a duration"),
        (b"timeout: 15m", b"timeout: 25h", "at most a day"),
        (b"WORD: apple", b"WORD: 1", "must be a text"),
        (b"WORD: apple", b"ORCHESTRATE_TOKEN: x", "can not be set"),
        (b"WORD: apple", b"PYTEST_PLUGINS: x", "can not be set"),
        (
            b"WORD: apple",
            b"MY_API_TOKEN: a1b2c3d4",
            "env.MY_API_TOKEN: holds a secret .*the node's",
        ),
        (b"device: cpu", b"device: tpu", "must be cpu or h200"),
        (b"junit: out/j.xml", b"junit: ../j.xml", "below the source"),
        (b"junit: out/j.xml", b"timeout: 5m", "must name `junit`"),
        (b"command: make check", b'command: "make \'check"', "can not be split"),
        (b"command: make check", b"comand: make", "has no 'command'|unknown member 'comand'"),
        (b"device: cpu", b"device: cpu\ndevice: h200", "line 5 column 1: the key 'device' is there twice"),
        (b"device: cpu", b"device: !!python/object:os.system x", "could not determine a constructor"),
        (b"schema: orchestrate.qualification/1", b"schema: orchestrate.qualification/9", "orchestrate.qualification/1"),
        (
            b"command: make check",
            b'command: ["make", "a\\0b"]',
            "groups\\[2\\].command: holds what no process can be given",
        ),
        (b"WORD: apple", b'WORD: "\\ud800"', "groups\\[0\\].env.WORD: holds what no process"),
        (b"junit: out/j.xml", b'junit: "a\\0"', "groups\\[2\\].junit: holds what no process"),
        (b"device: cpu", b"device: !!int ''", "line 4 column 9: the value is not what its tag"),
        (b"device: cpu", b"device: !!bool x", "is not what its tag"),
        (b"device: cpu", b"device: !!timestamp x", "is not what its tag"),
        (b"device: cpu", b"device: &a [*a]", "line 4 column 9: this holds itself"),
        (b"device: cpu", BOMB, "stands for more than 100000 values"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(old, new, said):
    assert old in GOOD
    with pytest.raises(UsageError, match=said):
        parse_qualification(GOOD.replace(old, new), "qualification.yaml")


def test_no_group_is_not_a_qualification():
    with pytest.raises(UsageError, match="names no group"):
        parse_qualification(GOOD[: GOOD.index(b"  - name")].replace(b"groups:", b"groups: []"), "q.yaml")


@given(st.binary(max_size=200))
def test_garbage_is_an_error_of_the_file_and_nothing_else(data):
    with pytest.raises(UsageError):
        parse_qualification(data, "q.yaml")


@pytest.mark.parametrize(
    ("device", "gpus", "why"),
    [
        ("cpu", "1", "needs 1 GPUs, and this qualification has no GPU: its device is cpu"),
        ("h200", "5", "needs 5 GPUs, and this qualification has 4 GPUs"),
        ("h200", "0", "must be an integer from 1 to 64"),
    ],
)
def test_a_group_can_not_need_gpus_that_are_not_asked_for(device, gpus, why):
    text = f"schema: orchestrate.qualification/1\nname: a\ndevice: {device}\ngroups:\n"
    with pytest.raises(UsageError, match=why):
        parse_qualification(f"{text}  - {{name: b, command: 'true', gpus: {gpus}}}\n".encode(), "q.yaml")


NAMES = ("A_TOKEN", "db_password", "OPENAI_API_KEY", "TOKENIZERS_PARALLELISM", "WORD")
VALUES = (
    "",
    "false",
    "4096",
    "gpt2",
    "a1b2c3d4",
    "p" * 20,
    "/run/token-1",
    "https://a.example",
    "https://a:b1@c.example",
    "a\nb2b2b2b2",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", VALUES)
def test_the_file_may_not_hold_exactly_what_the_node_would_conceal(name, value):
    assert holds_secret(name, value) is bool(secret_values({name: value}))
