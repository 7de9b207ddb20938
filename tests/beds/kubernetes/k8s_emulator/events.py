"""Events in the two shapes that a cluster has: those of controllers and kubelets, counted; those of the scheduler."""

import time


class Events:
    """Writes events; the same one again only counts up, as the recorders of a cluster do."""

    def __init__(self, store, clock, node="emulated-scheduler"):
        self.store = store
        self.clock = clock
        self.node = node
        self._sequence = int(time.time() * 1e9)
        self._written = {}

    def counted(self, obj, kind, reason, message, *, component, host="", field_path=None):
        """An event of the job controller or of a kubelet."""
        meta = obj["metadata"]
        key = (meta["uid"], reason, message)
        if (name := self._written.get(key)) is not None:

            def count(event):
                event["count"] += 1
                event["lastTimestamp"] = self.clock.stamp()

            if self.store.update("events", meta["namespace"], name, count) is not None:
                return
        involved = self._involved(obj)
        if field_path:
            involved["fieldPath"] = field_path
        stamp = self.clock.stamp()
        self._written[key] = self._write(obj, {
            "count": 1, "eventTime": None, "firstTimestamp": stamp, "lastTimestamp": stamp, "involvedObject": involved,
            "message": message, "reason": reason, "reportingComponent": component, "reportingInstance": host,
            "source": {"component": component, **({"host": host} if host else {})}, "type": kind,
        })  # fmt: skip

    def of_scheduler(self, obj, kind, reason, message, action):
        self._write(obj, {
            "action": action, "eventTime": self.clock.micro_stamp(), "firstTimestamp": None, "lastTimestamp": None,
            "involvedObject": self._involved(obj), "message": message, "reason": reason,
            "reportingComponent": "default-scheduler", "reportingInstance": f"default-scheduler-{self.node}",
            "source": {}, "type": kind,
        })  # fmt: skip

    def _involved(self, obj):
        meta = obj["metadata"]
        return {
            "apiVersion": obj["apiVersion"], "kind": obj["kind"], "name": meta["name"],
            **({"namespace": meta["namespace"]} if "namespace" in meta else {}),
            "resourceVersion": meta["resourceVersion"], "uid": meta["uid"],
        }  # fmt: skip

    def _write(self, obj, event):
        self._sequence += 1
        meta = obj["metadata"]
        name = f"{meta['name']}.{self._sequence:x}"
        namespace = meta.get("namespace", "default")
        self.store.create("events", {"metadata": {"name": name, "namespace": namespace}, **event})
        return name
