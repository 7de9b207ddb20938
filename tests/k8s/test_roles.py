"""The shipped roles suffice for everything that a run and an audit do, and no verb in them is there for nothing."""

import pytest
from k8s_bed import EmulatorBed, until, why_no_emulator
from k8s_roles import ACCOUNT, CAPACITY, RUNNER, apply_roles, permissions, token_of
from kubernetes import client, config

IMAGE = "bed.local/torch:1"
RUNNER_PERMISSIONS = sorted(permissions(RUNNER))


class Site:
    """One emulated cluster, with a namespace for each test."""

    def __init__(self, bed):
        self.bed = bed
        self.api = config.new_client_from_config(str(bed.kubeconfig))
        self.core, self.batch = client.CoreV1Api(self.api), client.BatchV1Api(self.api)

    def user(self, tool, namespace, files, edit=lambda _: None):
        """Have the tool act as the runner's service account of a new namespace."""
        self.core.create_namespace({"metadata": {"name": namespace}})
        apply_roles(self.api, namespace, files, edit)
        tool.as_user(self.bed.write_kubeconfig(namespace, token_of(self.api, namespace)), namespace)
        return f"system:serviceaccount:{namespace}:{ACCOUNT}"

    def left(self, namespace):
        return [
            item.metadata.name
            for items in (
                self.batch.list_namespaced_job(namespace).items,
                self.core.list_namespaced_pod(namespace).items,
                self.core.list_namespaced_config_map(namespace).items,
            )
            for item in items
        ]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if (why := why_no_emulator()) is not None:
        pytest.skip(why)
    bed = EmulatorBed(tmp_path_factory.mktemp("roles"), pace=0.0)
    yield Site(bed)
    bed.close()


@pytest.mark.timeout(600)
def test_the_shipped_roles_are_exactly_what_runs_and_audits_use(site, tool, tmp_path):
    user = site.user(tool, "exact", (RUNNER, CAPACITY))
    site.bed.pull("forget-calls")
    answer, code = tool.launch("--image", IMAGE).answer()
    assert (answer["verdict"], code) == ("passed", 0), answer
    lose_the_job_but_not_what_it_owns(site, tool)
    audit_away_what_nobody_owns(site, tool, tmp_path)
    assert site.left("exact") == []
    calls = [call for call in site.bed.pull("calls") if call["user"] == user]
    assert [(call["verb"], call["resource"], call["namespace"]) for call in calls if call["code"] == 403] == []
    used = {(call["verb"], call["resource"]) for call in calls if not call["resource"].startswith("selfsubject")}
    if ("get", "pods/exec") in used:
        used.add(("create", "pods/exec"))  # the server asks for both
    assert used == permissions(RUNNER) | permissions(CAPACITY)


def lose_the_job_but_not_what_it_owns(site, tool):
    """Somebody deletes the Job with `--cascade=orphan`: pod and ConfigMaps have to be given back one by one."""
    launched = tool.launch("--image", IMAGE, behaviour="hold")
    launched.wait_for("submitted")
    (job,) = site.batch.list_namespaced_job("exact").items
    orphan = client.V1DeleteOptions(propagation_policy="Orphan")
    site.batch.delete_namespaced_job(job.metadata.name, "exact", body=orphan)
    answer, code = launched.answer()
    assert (answer["verdict"], code) == ("infrastructure", 5), answer
    assert site.left("exact") == []


def audit_away_what_nobody_owns(site, tool, tmp_path):
    launched = tool.launch("--image", IMAGE, behaviour="hold")
    launched.wait_for("submitted")
    launched.kill_both()
    (tmp_path / "empty").mkdir()
    code, out, err = tool.command("audit", "--backend", "k8s", "--namespace", "exact", "--run", launched.run_id,
                                  "--reap", "--runs-dir", str(tmp_path / "empty"))  # fmt: skip
    assert code == 0, (out, err)
    until(lambda: not site.left("exact"), lambda: f"{site.left('exact')} to go")


@pytest.fixture(scope="module")
def each_verb_missing(site, make_tool):
    """(verb, resource) -> the answer of a launch without it, its exit code, and what it left; all at the same time."""
    started = {}
    for verb, resource in RUNNER_PERMISSIONS:
        namespace = f"no-{verb}-{resource.replace('/', '-')}"
        tool = make_tool()
        site.user(tool, namespace, (RUNNER,), without(verb, resource))
        started[verb, resource] = namespace, tool.launch("--image", IMAGE)
    answers = {key: (namespace, *launched.answer()) for key, (namespace, launched) in started.items()}
    return {key: (answer, code, site.left(namespace)) for key, (namespace, answer, code) in answers.items()}


@pytest.mark.parametrize(("verb", "resource"), RUNNER_PERMISSIONS, ids=[" ".join(each) for each in RUNNER_PERMISSIONS])
def test_without_any_one_verb_a_run_does_not_start_and_the_verb_is_named(each_verb_missing, verb, resource):
    answer, code, left = each_verb_missing[verb, resource]
    assert (answer["verdict"], code) == ("unsatisfiable", 78), answer
    assert f"{verb} {resource}" in answer["reason"], answer["reason"]
    assert left == []


def without(verb, resource):
    """An edit of a role that takes one verb away."""

    def edit(tree):
        for rule in tree.get("rules", []):
            if resource in rule["resources"]:
                rule["verbs"] = [each for each in rule["verbs"] if each != verb]

    return edit


def test_without_the_cluster_role_a_lack_of_gpus_can_not_be_told(site, tool):
    site.user(tool, "blind", (RUNNER,))
    container = {"name": "main", "image": IMAGE, "command": ["/bin/sh", "-c", "trap 'exit 0' TERM; sleep 600 & wait"],
                 "resources": {"limits": {"nvidia.com/gpu": "4"}}}  # fmt: skip
    template = {"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}}
    body = {"metadata": {"name": "holder"}, "spec": {"backoffLimit": 0, "template": template}}
    site.batch.create_namespaced_job("default", body)
    try:
        until(lambda: [pod.status.phase for pod in site.core.list_namespaced_pod("default").items] == ["Running"], "it")
        answer, code = tool.launch("--image", IMAGE, "--provision-timeout", "6s").answer()
        assert (answer["verdict"], code) == ("capacity", 75), answer
        assert [offer["reason"] for offer in answer["capacity"]["offers"]] == ["can-not-tell"], answer
        assert site.left("blind") == []
    finally:
        options = client.V1DeleteOptions(propagation_policy="Foreground")
        site.batch.delete_namespaced_job("holder", "default", body=options)
