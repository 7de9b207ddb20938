"""What a server does to objects before it stores them: defaults, priorities, and the refusal of what is not valid."""

import copy
import re
import uuid

from k8s_emulator.answers import ApiError, not_found
from k8s_emulator.resources import BY_PLURAL

NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
CONFIG_MAP_BYTES = 1048576
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


class Admission:
    """Checks and completes new objects. With `queues`, a Job that names a queue starts suspended."""

    def __init__(self, store, quotas, *, queues=False):
        self.store = store
        self.quotas = quotas
        self.queues = queues

    def set_queues(self, on):
        self.queues = on

    def create(self, plural, tree, *, dry_run=False):
        """Store a new object; the object as stored."""
        tree = copy.deepcopy(tree)
        resource = BY_PLURAL[plural]
        meta = tree.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{uuid.uuid4().hex[:5]}"
        self._check(resource, tree)
        if plural == "jobs":
            self._complete_job(tree)
        elif plural == "pods":
            self._complete_pod(tree)
        elif plural == "namespaces":
            tree.setdefault("status", {})["phase"] = "Active"
        elif plural == "persistentvolumeclaims":
            tree.setdefault("status", {})["phase"] = "Bound"
        elif plural == "nodes":
            tree.setdefault("spec", {})
        if resource.namespaced and plural != "events":
            self.quotas.admit(plural, tree)
        if dry_run:
            return {"kind": resource.kind, "apiVersion": resource.api_version, **tree}
        stored = self.store.create(plural, tree, complete=_mark_job if plural == "jobs" else None)
        if plural == "namespaces":
            self.store.create("serviceaccounts", {"metadata": {"name": "default", "namespace": meta["name"]}})
        return stored

    def check_update(self, plural, old, new):
        """Refuse to change what can not be changed."""
        if plural == "jobs" and old["spec"]["template"] != new["spec"]["template"]:
            raise ApiError(422, f'Job.batch "{old["metadata"]["name"]}" is invalid: spec.template: field is immutable')
        if (
            plural == "configmaps"
            and old.get("immutable")
            and any(old.get(key) != new.get(key) for key in ("data", "binaryData"))
        ):
            raise ApiError(422, f'ConfigMap "{old["metadata"]["name"]}" is invalid: data: field is immutable')
        self._check_labels(BY_PLURAL[plural], new)

    def _check(self, resource, tree):
        meta = tree["metadata"]
        name = meta.get("name")
        if not name:
            raise ApiError(
                422, f"{resource.kind} is invalid: metadata.name: Required value: name or generateName is required"
            )
        if resource.group != "rbac.authorization.k8s.io" and (len(name) > 253 or not NAME.fullmatch(name)):
            raise ApiError(422, f'{resource.kind} "{name}" is invalid: metadata.name: Invalid value')
        if resource.namespaced:
            namespace = self.store.get("namespaces", None, meta["namespace"])
            if namespace is None:
                raise not_found(BY_PLURAL["namespaces"], meta["namespace"])
            if namespace["metadata"].get("deletionTimestamp") and resource.plural != "events":
                why = f"unable to create new content in namespace {meta['namespace']} because it is being terminated"
                raise ApiError(403, f'{resource.title} "{name}" is forbidden: {why}')
        self._check_labels(resource, tree)
        if resource.plural == "configmaps":
            sizes = [len(text.encode()) for text in (tree.get("data") or {}).values()]
            sizes += [len(text) * 3 // 4 for text in (tree.get("binaryData") or {}).values()]
            if sum(sizes) > CONFIG_MAP_BYTES:
                why = f"[]: Too long: may not be more than {CONFIG_MAP_BYTES} bytes"
                raise ApiError(422, f'ConfigMap "{name}" is invalid: {why}')

    def _check_labels(self, resource, tree):
        for key, value in (tree["metadata"].get("labels") or {}).items():
            if not isinstance(value, str) or len(value) > 63 or not LABEL.fullmatch(value):
                why = f"metadata.labels: Invalid value: {value!r}: a valid label must consist of ..."
                raise ApiError(422, f'{resource.kind} "{tree["metadata"]["name"]}" is invalid: {why} ({key})')

    def _complete_job(self, tree):
        spec = tree["spec"]
        spec.setdefault("backoffLimit", 6)
        spec.setdefault("completions", 1)
        spec.setdefault("parallelism", 1)
        spec.update(completionMode="NonIndexed", manualSelector=False, podReplacementPolicy="TerminatingOrFailed")
        spec.setdefault("suspend", False)
        if self.queues and (tree["metadata"].get("labels") or {}).get(QUEUE_LABEL):
            spec["suspend"] = True
        pod = spec["template"].setdefault("spec", {})
        _complete_template(pod)
        if pod["restartPolicy"] not in {"Never", "OnFailure"}:
            raise ApiError(422, "Job is invalid: spec.template.spec.restartPolicy: Required value: valid values: ...")
        tree["status"] = {}

    def _complete_pod(self, tree):
        spec = tree["spec"]
        _complete_template(spec)
        spec.setdefault("enableServiceLinks", True)
        spec.setdefault("serviceAccountName", "default")
        spec["serviceAccount"] = spec["serviceAccountName"]
        name = spec.get("priorityClassName")
        spec["priority"] = 0
        if name is not None:
            found = self.store.get("priorityclasses", None, name)
            if found is None:
                why = f"no PriorityClass with name {name} was found"
                raise ApiError(403, f'pods "{tree["metadata"]["name"]}" is forbidden: {why}')
            spec["priority"] = found["value"]
        spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
        tolerations = spec.setdefault("tolerations", [])
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
            if not any(toleration.get("key") == key for toleration in tolerations):
                tolerations.append({"effect": "NoExecute", "key": key, "operator": "Exists", "tolerationSeconds": 300})
        requests = any((container.get("resources") or {}) for container in spec["containers"])
        tree["status"] = {"phase": "Pending", "qosClass": "Burstable" if requests else "BestEffort"}


def _complete_template(spec):
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    for container in spec.get("containers", []):
        container.setdefault("imagePullPolicy", "IfNotPresent")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        resources = container.setdefault("resources", {})
        for name, value in (resources.get("limits") or {}).items():
            resources["limits"][name] = str(value)
            resources.setdefault("requests", {}).setdefault(name, str(value))


def _mark_job(job):
    uid, name = job["metadata"]["uid"], job["metadata"]["name"]
    marks = {"batch.kubernetes.io/controller-uid": uid}
    job["spec"]["selector"] = {"matchLabels": dict(marks)}
    meta = job["spec"]["template"].setdefault("metadata", {})
    meta["labels"] = {
        **(meta.get("labels") or {}), **marks, "batch.kubernetes.io/job-name": name, "controller-uid": uid,
        "job-name": name,
    }  # fmt: skip
