"""The roles that `k8s/` ships, applied to a namespace of a test."""

from pathlib import Path

import yaml
from kubernetes import client

K8S = Path(__file__).parents[3] / "k8s"
ACCOUNT = "orchestrate-runner"
RUNNER, CAPACITY = "rbac.yaml", "rbac-capacity.yaml"


def apply_roles(api, namespace, files=(RUNNER, CAPACITY), edit=lambda _: None):
    """Create what the files have, in this namespace; `edit` may change each manifest before."""
    for name in files:
        for tree in yaml.safe_load_all((K8S / name).read_text()):
            edit(tree)
            create(api, namespaced(tree, namespace))


def permissions(name):
    """Every (verb, resource) that the roles of a file grant, without those of other products' groups."""
    return {
        (verb, resource)
        for tree in yaml.safe_load_all((K8S / name).read_text())
        for rule in tree.get("rules", [])
        if set(rule["apiGroups"]) <= {"", "batch"}
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def token_of(api, namespace):
    """A token of the runner's service account."""
    made = client.CoreV1Api(api).create_namespaced_service_account_token(ACCOUNT, namespace, {"spec": {}})
    return made.status.token


def namespaced(tree, namespace):
    """A manifest of `k8s/` for another namespace, which what belongs to the whole cluster gets into its name."""
    if "namespace" in tree["metadata"]:
        tree["metadata"]["namespace"] = namespace
    else:
        tree["metadata"]["name"] += f"-{namespace}"
        if "roleRef" in tree:
            tree["roleRef"]["name"] += f"-{namespace}"
    for subject in tree.get("subjects", []):
        subject["namespace"] = namespace
    return tree


def create(api, tree):
    rbac, core = client.RbacAuthorizationV1Api(api), client.CoreV1Api(api)
    namespace = tree["metadata"].get("namespace")
    match tree["kind"]:
        case "ServiceAccount":
            core.create_namespaced_service_account(namespace, tree)
        case "Role":
            rbac.create_namespaced_role(namespace, tree)
        case "RoleBinding":
            rbac.create_namespaced_role_binding(namespace, tree)
        case "ClusterRole":
            rbac.create_cluster_role(tree)
        case "ClusterRoleBinding":
            rbac.create_cluster_role_binding(tree)
