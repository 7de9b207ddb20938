"""Resource quotas: admission of pods, and what the quota says is used."""

from k8s_emulator.answers import ApiError
from k8s_emulator.quantities import asked, quantity, text

FINISHED = {"Succeeded", "Failed"}
COUNTED = {"count/jobs.batch": "jobs", "count/configmaps": "configmaps", "configmaps": "configmaps"}


class Quotas:
    """The quota admission plugin and the quota controller."""

    def __init__(self, store):
        self.store = store

    def admit(self, plural, tree):
        """Refuse what would exceed a quota of the namespace, in the words of the admission plugin."""
        namespace, name = tree["metadata"]["namespace"], tree["metadata"]["name"]
        for quota in self.store.all("resourcequotas", namespace):
            hard = quota["spec"].get("hard", {})
            wanted = _wanted(plural, tree, hard)
            used = self._used(namespace, hard)
            over = [key for key in sorted(wanted) if wanted[key] and used[key] + wanted[key] > quantity(hard[key])]
            if over:
                told = [
                    ", ".join(f"{word}: " + ",".join(f"{key}={text(values[key])}" for key in over) for word, values in (
                        ("requested", wanted), ("used", used),
                        ("limited", {key: quantity(hard[key]) for key in over}),
                    ))
                ]  # fmt: skip
                message = f'{plural} "{name}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, {told[0]}'
                raise ApiError(403, message, details={"name": name, "kind": plural})

    def reconcile(self):
        for quota in self.store.all("resourcequotas"):
            hard = quota["spec"].get("hard", {})
            meta = quota["metadata"]
            used = {key: text(value) for key, value in self._used(meta["namespace"], hard).items()}

            def write(tree, hard=hard, used=used):
                tree["status"] = {"hard": hard, "used": used}

            self.store.update("resourcequotas", meta["namespace"], meta["name"], write)

    def _used(self, namespace, hard):
        used = dict.fromkeys(hard, 0)
        for pod in self.store.all("pods", namespace):
            if pod.get("status", {}).get("phase") not in FINISHED:
                for key, value in _wanted("pods", pod, hard).items():
                    used[key] += value
        for key, plural in COUNTED.items():
            if key in used:
                used[key] = len(self.store.all(plural, namespace))
        return used


def _wanted(plural, tree, hard):
    if plural != "pods":
        return {key: 1 for key in hard if COUNTED.get(key) == plural}
    requests = asked(tree["spec"])
    wanted = {}
    for key in hard:
        if key in {"pods", "count/pods"}:
            wanted[key] = 1
        elif key.startswith("requests."):
            wanted[key] = requests.get(key.removeprefix("requests."), 0)
        elif key in {"cpu", "memory"}:
            wanted[key] = requests.get(key, 0)
    return wanted
