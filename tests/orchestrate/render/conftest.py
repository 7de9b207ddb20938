"""A plain request, a small archive and the trees of rendered documents."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from orchestrate.render import Backend, HarnessArchive, RenderRequest, render


@pytest.fixture(scope="session")
def archive():
    return HarnessArchive(gz=b"gz", sha256=hashlib.sha256(b"tar").hexdigest())


@pytest.fixture(scope="session")
def plain():
    return RenderRequest(run_id="r1", cell_set="ellavox", cells=("a|b|L1|tp1|cp4|g1",), owner="ann")


@pytest.fixture(scope="session")
def task(plain):
    """`task(**fields)` is the tree of a rendered task."""
    return lambda **fields: render(Backend.SKY, replace(plain, **fields)).documents[0].tree


@pytest.fixture(scope="session")
def job(plain, archive):
    """`job(**fields)` is the tree of a rendered Job."""
    return lambda **fields: render(Backend.K8S, replace(plain, **fields), archive=archive).documents[0].tree


@pytest.fixture(scope="session")
def container():
    """`container(job)` is the one container of a Job's tree."""
    return lambda tree: tree["spec"]["template"]["spec"]["containers"][0]


@pytest.fixture(scope="session")
def env(container):
    """`env(job)` is the environment of a Job's container, name to value."""
    return lambda tree: {entry["name"]: entry["value"] for entry in container(tree)["env"]}
