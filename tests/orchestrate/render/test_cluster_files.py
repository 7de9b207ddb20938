"""The files of `k8s/` that a cluster's owner applies: valid, least privileged, and hardened."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from orchestrate.backends.kubernetes_preflight import NEEDED_RIGHTS
from orchestrate.commands.audit import command
from orchestrate.render.schema import KUBERNETES_VERSION
from orchestrate.render.templates import TEMPLATES

FOLDER = Path(__file__).parents[3] / "k8s"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml") if path.name not in TEMPLATES.values())


def documents(name):
    return list(yaml.safe_load_all((FOLDER / name).read_text("utf-8")))


def one(name, kind):
    (found,) = (document for document in documents(name) if document["kind"] == kind)
    return found


def rights(role):
    """(API group, resource) -> verbs."""
    found = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                assert (group, resource) not in found, "a right is given twice"
                found[group, resource] = set(rule["verbs"])
    return found


def test_every_file_is_looked_at():
    assert FILES == ["audit.yaml", "rbac-capacity.yaml", "rbac.yaml", "resource-quota.yaml"]


@pytest.mark.parametrize("name", FILES)
def test_each_file_holds_the_strict_schema_of_its_kinds(name):
    for document in documents(name):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("name", FILES)
def test_a_misspelt_field_would_not_hold_it(name):
    document = documents(name)[0]
    document["metadata"]["lables"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)


@pytest.mark.parametrize("name", FILES)
def test_every_binding_binds_a_role_and_an_account_that_the_files_define(name):
    everything = [document for each in FILES for document in documents(each)]
    defined = {(document["kind"], document["metadata"]["name"]) for document in everything}
    for document in documents(name):
        if document["kind"].endswith("Binding"):
            assert (document["roleRef"]["kind"], document["roleRef"]["name"]) in defined
            for subject in document["subjects"]:
                assert (subject["kind"], subject["name"]) in defined
                assert subject["namespace"] == "orchestrate"


@pytest.mark.parametrize("name", FILES)
def test_no_role_has_a_wildcard_a_write_beyond_need_or_a_secret(name):
    for document in documents(name):
        for rule in document.get("rules", ()):
            assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
            assert not {"secrets", "serviceaccounts", "roles", "rolebindings"} & set(rule["resources"])
            assert not {"update", "patch", "deletecollection", "escalate", "bind", "impersonate"} & set(rule["verbs"])


def test_the_runner_may_do_what_the_backend_asks_for_and_nothing_else():
    needed = {(group, resource): set(verbs) for group, resource, verbs in NEEDED_RIGHTS}
    assert rights(one("rbac.yaml", "Role")) == needed


def test_the_audit_can_create_nothing():
    found = rights(one("audit.yaml", "Role"))
    assert set(found) == {("batch", "jobs"), ("", "configmaps"), ("", "pods")}
    assert {frozenset(verbs) for verbs in found.values()} == {frozenset({"get", "list", "delete"})}


def test_what_is_optional_only_reads():
    for document in documents("rbac-capacity.yaml"):
        for verbs in rights(document).values() if "rules" in document else ():
            assert verbs <= {"get", "list"}
    assert rights(one("rbac-capacity.yaml", "ClusterRole")) == {("", "nodes"): {"list"}, ("", "pods"): {"list"}}


def test_the_audit_runs_as_nobody_on_a_read_only_root_with_its_own_account():
    cron = one("audit.yaml", "CronJob")["spec"]
    job = cron["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert cron["concurrencyPolicy"] == "Forbid"
    assert (job["backoffLimit"], job["activeDeadlineSeconds"] < 900) == (0, True)
    assert pod["serviceAccountName"] == one("audit.yaml", "ServiceAccount")["metadata"]["name"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "memory" in container["resources"]["limits"]


def test_the_audit_is_not_found_by_itself():
    text = (FOLDER / "audit.yaml").read_text("utf-8")
    assert "orchestrate/run-id" not in text
    assert "orchestrate/token" not in text


def test_a_run_that_goes_on_fails_no_audit_and_what_could_not_be_removed_does(tmp_path):

    (container,) = one("audit.yaml", "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    for given, expected in ((0, 0), (1, 0), (70, 70), (2, 2)):
        stand_in = tmp_path / "orchestrate"
        stand_in.write_text(f'#!/bin/sh\necho "$@" > "$0.said"\nexit {given}\n')
        stand_in.chmod(0o755)
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "POD_NAMESPACE": "ns 1"}
        assert subprocess.run(container["command"], env=env, check=False).returncode == expected
        assert (tmp_path / "orchestrate.said").read_text() == "audit --backend k8s --namespace ns 1 --reap\n"


def test_the_options_that_the_audit_is_given_exist():

    known = {option for parameter in command.params for option in parameter.opts}
    (container,) = one("audit.yaml", "CronJob")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert set(re.findall(r"--[a-z-]+", container["command"][-1])) <= known


def test_the_quota_limits_gpus_as_kubernetes_wants_extended_resources_limited():
    hard = one("resource-quota.yaml", "ResourceQuota")["spec"]["hard"]
    assert int(hard["requests.nvidia.com/gpu"]) >= 4
    assert not [name for name in hard if name.startswith("limits.nvidia")]
