"""Each option of a provider suits some backends, and what it is given becomes the plan's settings."""

import click
import pytest
from click.testing import CliRunner

from orchestrate.cells.cell_set import select
from orchestrate.commands.provider_options import places_of, provider_options, settings_of
from orchestrate.commands.provider_values import Needs
from orchestrate.errors import UsageError

PINNED = "registry.example/harness@sha256:" + "0" * 64


def given(*arguments):
    seen = {}

    @click.command()
    @provider_options
    def command(**values):
        seen.update(values)

    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return seen


def settings(backend, *arguments, cell_set="main", deadline_s=3600, corpus=None):
    return settings_of(backend, given(*arguments), Needs.of_cells(select(cell_set, None, {})), deadline_s, corpus)


@pytest.mark.parametrize(
    ("backend", "arguments", "suits"),
    [
        ("local", ["--accelerators", "H200:4"], "sky and k8s"),
        ("local", ["--any-of", "a,b"], "sky and k8s"),
        ("local", ["--accept-no-cap"], "sky and k8s"),
        ("k8s", ["--infra", "slurm/bed"], "sky"),
        ("sky", ["--namespace", "team"], "k8s"),
        ("sky", ["--node-selector", "a=b"], "k8s"),
        ("sky", ["--toleration", "a"], "k8s"),
        ("sky", ["--queue", "gpus"], "k8s"),
        ("sky", ["--priority-class", "high"], "k8s"),
        ("sky", ["--context", "here"], "k8s"),
    ],
)
def test_an_option_that_does_not_suit_the_backend_is_refused_and_says_which_it_suits(backend, arguments, suits):
    with pytest.raises(UsageError, match=f"{arguments[0]} means nothing to the backend {backend}; it is for {suits}"):
        settings(backend, *arguments)


def test_a_local_run_has_no_settings():
    assert settings("local") == {}


def test_four_h200s_are_asked_for_where_none_are_named_also_for_cells_that_run_on_a_cpu():
    assert settings("sky", cell_set="smoke") == {"accelerators": "H200:4"}


def test_everything_that_is_given_is_in_the_settings_under_the_name_of_the_contract():
    found = settings(
        "k8s", "--context", "lab", "--namespace", "team", "--node-selector", "pool=gpu", "--queue", "gpus",
        "--toleration", "gpu:NoSchedule", "--priority-class", "high", "--image", PINNED, "--cpus", "8",
        "--memory", "64", "--ttl", "10m",
        "--sink", "pvc:evidence/runs", "--provision-timeout", "5m", "--accept-no-cap",
        corpus={"location": "pvc:data/tokens", "sha256": "0" * 64},
    )  # fmt: skip
    assert found == {
        "accelerators": "H200:4", "context": "lab", "namespace": "team", "node_selector": {"pool": "gpu"},
        "tolerations": ["gpu:NoSchedule"], "queue": "gpus", "priority_class": "high", "image": PINNED, "cpus": 8,
        "memory_gib": 64, "ttl_s": 600, "sink": "pvc:evidence/runs", "provision_timeout_s": 300, "accept_no_cap": True,
        "corpus": {"location": "pvc:data/tokens", "sha256": "0" * 64},
    }  # fmt: skip


def test_none_alone_takes_the_selector_and_the_tolerations_away():
    found = settings("k8s", "--node-selector", "none", "--toleration", "none")
    assert (found["node_selector"], found["tolerations"]) == ({}, [])


@pytest.mark.parametrize(
    ("backend", "arguments"),
    [
        ("sky", ["--sink", "s3://bucket"]),
        ("sky", ["--ttl", "10m"]),
        ("k8s", ["--sink", "s3://bucket"]),
        ("k8s", ["--namespace", "Not a name"]),
        ("k8s", ["--queue", "Not a name"]),
        ("k8s", ["--node-selector", "no equals"]),
        ("k8s", ["--toleration", "a:Never"]),
        ("sky", ["--accelerators", "H200:2"]),
        ("sky", ["--accelerators", "A100:4"]),
        ("sky", ["--image", "docker:thing"]),
        ("sky", ["--infra", "a\x00b"]),
    ],
)
def test_a_value_that_rendering_would_refuse_is_refused_before_anything_is_made(backend, arguments):
    with pytest.raises(UsageError):
        settings(backend, *arguments)


def test_a_deadline_of_more_than_a_day_is_refused_where_a_provider_keeps_it():
    with pytest.raises(UsageError, match="more than a day"):
        settings("sky", deadline_s=90000)


def test_places_are_infras_for_sky_and_context_with_namespace_for_k8s():
    assert places_of("sky", given()) == ({},)
    assert places_of("sky", given("--any-of", "slurm/a, k8s/b")) == ({"infra": "slurm/a"}, {"infra": "k8s/b"})
    assert places_of("k8s", given("--any-of", "k8s:arn:aws:eks:x/lab/team,k8s:b/c")) == (
        {"context": "arn:aws:eks:x/lab", "namespace": "team"},
        {"context": "b", "namespace": "c"},
    )


@pytest.mark.parametrize(
    ("backend", "arguments"),
    [
        ("sky", ["--any-of", "a,a"]),
        ("sky", ["--any-of", "a,"]),
        ("sky", ["--any-of", "a", "--infra", "b"]),
        ("k8s", ["--any-of", "a/b"]),
        ("k8s", ["--any-of", "k8s:b"]),
        ("k8s", ["--any-of", "k8s:a/b", "--namespace", "c"]),
    ],
)
def test_places_that_can_not_be_meant_are_refused(backend, arguments):
    with pytest.raises(UsageError):
        places_of(backend, given(*arguments))
