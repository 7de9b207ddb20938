"""How objects go: preconditions, propagation, garbage collection by owner, lifetimes of finished Jobs."""

from k8s_emulator.answers import ApiError, conflict
from k8s_emulator.clock import seconds
from k8s_emulator.resources import BY_PLURAL

FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"


class Deletion:
    """Answers delete requests, and is the garbage collector and the TTL controller."""

    def __init__(self, store, clock):
        self.store = store
        self.clock = clock

    def delete(self, plural, namespace, name, options=None):
        """Delete as a request asks for it; the object as it is afterwards."""
        options = options or {}
        resource = BY_PLURAL[plural]
        found = self.store.must(plural, namespace, name)
        meta = found["metadata"]
        for field, value in (options.get("preconditions") or {}).items():
            key = {"uid": "uid", "resourceVersion": "resourceVersion"}[field]
            if value and value != meta[key]:
                word = "UID" if field == "uid" else "ResourceVersion"
                why = f"Precondition failed: {word} in precondition: {value}, {word} in object meta: {meta[key]}"
                raise conflict(resource, name, why)
        policy = options.get("propagationPolicy")
        if policy not in {None, "Foreground", "Background", "Orphan"}:
            raise ApiError(422, f"invalid DeleteOptions: propagationPolicy: {policy}")
        if policy is None:
            # The API keeps an old promise for Jobs: without a policy their pods stay.
            policy = "Orphan" if plural == "jobs" else "Background"
        grace = self._grace(plural, found, options.get("gracePeriodSeconds"))

        def mark(tree):
            meta = tree["metadata"]
            finalizer = {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(policy)
            if finalizer and plural != "pods" and "deletionTimestamp" not in meta:
                meta["finalizers"] = [*meta.get("finalizers", []), finalizer]
            if "deletionTimestamp" not in meta:
                meta["deletionTimestamp"] = self.clock.stamp(self.clock.now() + grace)
                meta["deletionGracePeriodSeconds"] = grace
                if "generation" in meta:
                    meta["generation"] += 1
            elif grace < meta.get("deletionGracePeriodSeconds", 0):
                meta["deletionGracePeriodSeconds"] = grace
            if plural == "namespaces":
                tree.setdefault("status", {})["phase"] = "Terminating"
                meta["finalizers"] = meta.get("finalizers") or ["kubernetes"]

        return self.store.update(plural, namespace, name, mark) or found

    def reconcile(self):
        """One pass of the garbage collector."""
        objects = [tree for tree in self.store.all() if tree["kind"] != "Event"]
        uids = {tree["metadata"]["uid"] for tree in objects}
        for tree in objects:
            meta = tree["metadata"]
            if ORPHAN in meta.get("finalizers", []):
                self._orphan(objects, meta["uid"])
                self._drop(tree, ORPHAN)
            elif FOREGROUND in meta.get("finalizers", []):
                self._foreground(objects, tree)
            elif meta.get("ownerReferences") and not any(ref["uid"] in uids for ref in meta["ownerReferences"]):
                if "deletionTimestamp" not in meta:
                    self._delete(tree, "Background")
            elif tree["kind"] == "Job":
                self._expire(tree)
            elif tree["kind"] == "Namespace" and "deletionTimestamp" in meta:
                self._empty(tree)

    def _grace(self, plural, found, asked):
        if plural != "pods":
            return 0
        if not found["spec"].get("nodeName"):
            return 0
        return found["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked

    def _orphan(self, objects, uid):
        for tree in objects:
            if any(ref["uid"] == uid for ref in tree["metadata"].get("ownerReferences", [])):

                def cut(tree):
                    rest = [ref for ref in tree["metadata"]["ownerReferences"] if ref["uid"] != uid]
                    tree["metadata"]["ownerReferences"] = rest
                    if not rest:
                        del tree["metadata"]["ownerReferences"]

                self._edit(tree, cut)

    def _foreground(self, objects, owner):
        uid = owner["metadata"]["uid"]
        blocking = False
        for tree in objects:
            refs = [ref for ref in tree["metadata"].get("ownerReferences", []) if ref["uid"] == uid]
            if refs:
                if "deletionTimestamp" not in tree["metadata"]:
                    self._delete(tree, "Background")
                there = self.store.holds(tree["metadata"]["uid"])
                blocking = blocking or (there and bool(refs[0].get("blockOwnerDeletion")))
        if not blocking:
            self._drop(owner, FOREGROUND)

    def _expire(self, job):
        ttl = job["spec"].get("ttlSecondsAfterFinished")
        ended = [
            condition
            for condition in job.get("status", {}).get("conditions", [])
            if condition["type"] in {"Complete", "Failed"} and condition["status"] == "True"
        ]
        if ttl is None or not ended or "deletionTimestamp" in job["metadata"]:
            return
        due = seconds(ended[-1]["lastTransitionTime"]) + ttl
        if self.clock.now() >= due:
            self._delete(job, "Foreground")

    def _empty(self, namespace):
        left = self.store.all(namespace=namespace["metadata"]["name"])
        for tree in left:
            if tree["kind"] == "Event":
                self.store.remove("events", tree["metadata"]["namespace"], tree["metadata"]["name"])
            elif "deletionTimestamp" not in tree["metadata"]:
                self._delete(tree, "Background")
        if not self.store.all(namespace=namespace["metadata"]["name"]):
            self._drop(namespace, "kubernetes")

    def _delete(self, tree, policy):
        meta = tree["metadata"]
        plural = _plural(tree)
        if (now := self.store.get(plural, meta.get("namespace"), meta["name"])) and now["metadata"]["uid"] == meta[
            "uid"
        ]:
            self.delete(plural, meta.get("namespace"), meta["name"], {"propagationPolicy": policy})

    def _drop(self, tree, finalizer):
        def drop(tree):
            rest = [name for name in tree["metadata"].get("finalizers", []) if name != finalizer]
            tree["metadata"]["finalizers"] = rest
            if not rest:
                del tree["metadata"]["finalizers"]

        self._edit(tree, drop)

    def _edit(self, tree, edit):
        meta = tree["metadata"]
        self.store.update(_plural(tree), meta.get("namespace"), meta["name"], edit, uid=meta["uid"])


def _plural(tree):
    return next(plural for plural, resource in BY_PLURAL.items() if resource.kind == tree["kind"])
