"""The scheduler: which node a pod gets, whom it pushes aside, and in which words it says that there is none."""

from collections import Counter

from k8s_emulator.quantities import GPU, asked, quantity

FINISHED = {"Succeeded", "Failed"}
AFFINITY = "node(s) didn't match Pod's node affinity/selector"


class Scheduler:
    """Binds pods to nodes by room, selectors and taints; preempts pods of lower priority."""

    def __init__(self, store, clock, events, deletion):
        self.store = store
        self.clock = clock
        self.events = events
        self.deletion = deletion

    def reconcile(self):
        waiting = [
            pod
            for pod in self.store.all("pods")
            if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
            and pod.get("status", {}).get("phase", "Pending") == "Pending"
        ]  # fmt: skip
        for pod in sorted(
            waiting, key=lambda pod: (-pod["spec"].get("priority", 0), int(pod["metadata"]["resourceVersion"]))
        ):
            self._place(pod)

    def free(self, node, *, below=None):
        """What is left on a node; `below` counts only pods with at least that priority as taking room."""
        room = {name: quantity(value) for name, value in node["status"]["allocatable"].items()}
        for pod in self.store.all("pods"):
            on_it = pod["spec"].get("nodeName") == node["metadata"]["name"]
            if on_it and pod.get("status", {}).get("phase") not in FINISHED:
                if below is not None and pod["spec"].get("priority", 0) < below:
                    continue
                for name, value in asked(pod["spec"]).items():
                    room[name] = room.get(name, 0) - value
        return room

    def _place(self, pod):
        nodes = self.store.all("nodes")
        wanted = asked(pod["spec"])
        reasons, victims_on, hopeless = Counter(), None, 0
        for node in nodes:
            if (why := _mismatch(pod, node)) is not None:
                reasons[why] += 1
                hopeless += 1
                continue
            short = _short(wanted, self.free(node))
            if not short:
                return self._bind(pod, node)
            for name in short:
                reasons[f"Insufficient {name}"] += 1
            total = {name: quantity(value) for name, value in node["status"]["allocatable"].items()}
            if _short(wanted, total):
                hopeless += 1
            elif not _short(wanted, self.free(node, below=pod["spec"].get("priority", 0))):
                victims_on = node
        count = len(nodes)
        told = ", ".join(f"{number} {why}" for why, number in sorted(reasons.items()))
        message = f"0/{count} nodes are available: {told}."
        if count == 0:
            message = "no nodes available to schedule pods"
        elif victims_on is None:
            parts = [f"{hopeless} Preemption is not helpful for scheduling"] if hopeless else []
            rest = count - hopeless
            parts += [f"{rest} No preemption victims found for incoming pod"] if rest else []
            message += f" no new claims to deallocate, preemption: 0/{count} nodes are available: {', '.join(parts)}."
        self._refuse(pod, message)
        if victims_on is not None:
            self._preempt(pod, victims_on)
        return None

    def _bind(self, pod, node):
        stamp = self.clock.stamp()

        def bind(tree):
            tree["spec"]["nodeName"] = node["metadata"]["name"]
            set_condition(tree, "PodScheduled", "True", stamp)

        meta = pod["metadata"]
        self.store.update("pods", meta["namespace"], meta["name"], bind, uid=meta["uid"])
        message = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node['metadata']['name']}"
        self.events.of_scheduler(pod, "Normal", "Scheduled", message, "Binding")

    def _refuse(self, pod, message):
        stamp = self.clock.stamp()
        before = [c for c in pod.get("status", {}).get("conditions", []) if c["type"] == "PodScheduled"]
        if before and before[0].get("message") == message:
            return

        def refuse(tree):
            set_condition(tree, "PodScheduled", "False", stamp, reason="Unschedulable", message=message)

        meta = pod["metadata"]
        self.store.update("pods", meta["namespace"], meta["name"], refuse, uid=meta["uid"])
        self.events.of_scheduler(pod, "Warning", "FailedScheduling", message, "Scheduling")

    def _preempt(self, pod, node):
        """Push the cheapest pods of lower priority off the node, one after the other, until there is room."""
        wanted, priority = asked(pod["spec"]), pod["spec"].get("priority", 0)
        on_it = [
            other
            for other in self.store.all("pods")
            if other["spec"].get("nodeName") == node["metadata"]["name"]
            and other["spec"].get("priority", 0) < priority
            and other.get("status", {}).get("phase") not in FINISHED
        ]
        if any("deletionTimestamp" in other["metadata"] for other in on_it):
            return  # room is being made already
        room = self.free(node)
        for victim in sorted(
            on_it, key=lambda other: (other["spec"].get("priority", 0), -asked(other["spec"]).get(GPU, 0))
        ):
            if not _short(wanted, room):
                break
            for name, value in asked(victim["spec"]).items():
                room[name] = room.get(name, 0) + value
            disrupt(self.store, self.clock, victim, "PreemptionByScheduler",
                    "default-scheduler: preempting to accommodate a higher priority pod")  # fmt: skip
            message = f"Preempted by pod {pod['metadata']['uid']} on node {node['metadata']['name']}"
            self.events.of_scheduler(victim, "Normal", "Preempted", message, "Preempting")
            self.deletion.delete("pods", victim["metadata"]["namespace"], victim["metadata"]["name"])


def set_condition(pod, kind, status, stamp, *, reason=None, message=None):
    """Set a pod condition; a kubelet lists what it knows of before the rest, newest first."""
    conditions = pod.setdefault("status", {}).setdefault("conditions", [])
    condition = {
        "lastProbeTime": None, "lastTransitionTime": stamp, **({"message": message} if message else {}),
        "observedGeneration": 1, **({"reason": reason} if reason else {}), "status": status, "type": kind,
    }  # fmt: skip
    for index, old in enumerate(conditions):
        if old["type"] == kind:
            if old["status"] == status:
                condition["lastTransitionTime"] = old["lastTransitionTime"]
            conditions[index] = condition
            return
    conditions.append(condition)


def disrupt(store, clock, pod, reason, message):
    """The condition by which a pod tells that somebody else ends it."""
    stamp = clock.stamp()
    meta = pod["metadata"]
    store.update(
        "pods", meta["namespace"], meta["name"], uid=meta["uid"],
        edit=lambda tree: set_condition(tree, "DisruptionTarget", "True", stamp, reason=reason, message=message),
    )  # fmt: skip


def _short(wanted, room):
    return [name for name in sorted(wanted) if wanted[name] > 0 and wanted[name] > room.get(name, 0)]


def _mismatch(pod, node):
    labels = node["metadata"].get("labels", {})
    if any(labels.get(key) != value for key, value in (pod["spec"].get("nodeSelector") or {}).items()):
        return AFFINITY
    taints = [taint for taint in node["spec"].get("taints", []) if taint["effect"] != "PreferNoSchedule"]
    if node["spec"].get("unschedulable"):
        return "node(s) were unschedulable"
    for taint in taints:
        if not any(_tolerates(toleration, taint) for toleration in pod["spec"].get("tolerations", [])):
            value = f": {taint['value']}" if taint.get("value") else ""
            return f"node(s) had untolerated taint {{{taint['key']}{value}}}"
    return None


def _tolerates(toleration, taint):
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return not toleration.get("key") or toleration["key"] == taint["key"]
    return toleration.get("key") == taint["key"] and toleration.get("value", "") == taint.get("value", "")
