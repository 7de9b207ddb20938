import pytest

from orchestrate.errors import UsageError
from orchestrate.gate.policy import needs_gpus, parse_policy, stricter

GOOD = b"""schema: orchestrate.gate-policy/1
gpu_paths: [/harness/, "*.cu"]
accept_via_server: {reason: only the server holds the credentials}
"""


def test_a_policy_names_paths_as_gitignore_does():
    policy = parse_policy(GOOD, "gpu-gate.yml")
    assert needs_gpus(policy, ["harness/a/b.py", "src/x.cu", "docs/harness.md"]) == ("harness/a/b.py", "src/x.cu")
    assert policy.device == "h200"
    assert policy.pinned_image is True
    assert policy.via_server == "only the server holds the credentials"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "must be an object"),
        (b"{", "line 1 column 2: "),
        (GOOD + b"device: h200\ndevice: cpu\n", "line 5 column 1: the key 'device' is there twice"),
        (GOOD + b"device: !!bool x\n", "is not what its tag"),
        (GOOD.replace(b'[/harness/, "*.cu"]', b"[]"), "names no path"),
        (GOOD.replace(b"{reason: only the server holds the credentials}", b"{}"), "has no 'reason'"),
        (GOOD.replace(b"{reason: only the server holds the credentials}", b"true"), "must be an object"),
        (GOOD + b"device: tpu\n", "must be h200 or cpu"),
        (GOOD + b"pinned_image: 'no'\n", "true or false"),
        (GOOD + b"waive: everything\n", "unknown member"),
        (GOOD + b"newer_base: 1\n", "true or false"),
        (GOOD.replace(b"/harness/", b"'x[[:digit:]].py'"), "write it out"),
    ],
)
def test_what_is_no_policy_is_refused(data, said):
    with pytest.raises(UsageError, match=said):
        parse_policy(data, "gpu-gate.yml")


def test_two_policies_together_ask_all_that_each_asks_and_accept_what_both_accept():
    other = parse_policy(
        b"schema: orchestrate.gate-policy/1\ndevice: cpu\ngpu_paths: ['*', '!/harness/*']\npinned_image: false\n"
        b"groups: [unit]\nsigned_by: [key]\nnewer_base: true\n",
        "other.yml",
    )
    both = stricter(parse_policy(GOOD, "gpu-gate.yml"), other)
    assert needs_gpus(both, ["harness/a", "docs"]) == ("harness/a", "docs")
    assert (both.device, both.via_server, both.pinned_image) == ("h200", None, True)
    assert (both.groups, both.signed_by, both.newer_base) == (("unit",), ("key",), False)
