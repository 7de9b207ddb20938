"""The kubelets: what becomes of pods that have a node."""

import asyncio
import hashlib
import re
import uuid

from k8s_emulator.container import Container, expand
from k8s_emulator.quantities import GPU, quantity
from k8s_emulator.scheduler import disrupt, set_condition
from k8s_emulator.volumes import MountError

EPOCH = "1970-01-01T00:00:00Z"
FINISHED = {"Succeeded", "Failed"}
OOM_LOOK_S = 0.2


class Kubelets:
    """Starts one `PodRun` for each pod that gets a node, and tells it when the pod shall end."""

    def __init__(self, store, clock, events, volumes, *, pullable):
        self.store = store
        self.clock = clock
        self.events = events
        self.volumes = volumes
        self.pullable = re.compile(pullable)
        self.runs = {}
        self.lost_nodes = set()

    def reconcile(self):
        pods = {pod["metadata"]["uid"]: pod for pod in self.store.all("pods")}
        for uid, pod in pods.items():
            node = pod["spec"].get("nodeName")
            if node is None or node in self.lost_nodes:
                continue
            if uid not in self.runs and pod.get("status", {}).get("phase") not in FINISHED:
                self.runs[uid] = PodRun(self, pod)
            run = self.runs.get(uid)
            if "deletionTimestamp" in pod["metadata"]:
                if run is not None and not run.task.done():
                    run.end(pod["metadata"]["deletionGracePeriodSeconds"])
                else:
                    self.finish(pod)
        for uid in [uid for uid in self.runs if uid not in pods]:
            self.runs.pop(uid).abandon()

    def finish(self, pod):
        """The last word of a kubelet on a pod that is being deleted: nothing of it is left here."""
        meta = pod["metadata"]

        def confirm(tree):
            tree["metadata"]["deletionGracePeriodSeconds"] = 0

        self.store.update("pods", meta["namespace"], meta["name"], confirm, uid=meta["uid"])

    def container(self, pod):
        """The container behind a pod, or None."""
        run = self.runs.get(pod["metadata"]["uid"])
        return None if run is None else run.container

    def log_file(self, uid):
        return self.volumes.folder / "logs" / f"{uid}.log"

    async def close(self):
        for run in list(self.runs.values()):
            run.abandon()
        await asyncio.gather(*(run.task for run in self.runs.values()), return_exceptions=True)


class PodRun:
    """One pod on its node, from the first mount to its last status."""

    def __init__(self, kubelets, pod):
        self.k = kubelets
        self.pod = pod
        self.uid = pod["metadata"]["uid"]
        self.spec = pod["spec"]["containers"][0]
        self.container = None
        self.container_id = "containerd://" + hashlib.sha256(uuid.uuid4().bytes).hexdigest()
        self.asked_to_end = asyncio.Event()
        self.grace_s = 0
        self.evicted = None
        self.task = asyncio.create_task(self._guarded())

    def end(self, grace_s):
        if not self.asked_to_end.is_set():
            self.grace_s = grace_s
            self.asked_to_end.set()
        elif grace_s < self.grace_s and self.container is not None:
            self.container.kill()

    def evict(self, message):
        """The node is short of something: the container is killed and the pod fails as `Evicted`."""
        self.evicted = message
        disrupt(self.k.store, self.k.clock, self.pod, "TerminationByKubelet", message)
        self._event("Warning", "Evicted", message, of_container=False)
        if self.container is not None:
            self.container.kill()

    def abandon(self):
        """The pod object is gone, or the server ends."""
        if self.container is not None:
            self.container.kill()
        self.task.cancel()

    async def _guarded(self):
        try:
            await self._run()
        finally:
            if self.container is not None:
                self.container.kill()
                if self.container.process is not None:
                    await self.container.wait()
                self.container.remove()
            self.k.volumes.tear_down(self.uid)

    async def _run(self):
        await self.k.clock.step(0.1)
        self._status(waiting={"reason": "ContainerCreating"}, sandbox=False)
        folders = await self._until_mounted()
        if folders is None:
            return self._gone()
        self._status(waiting={"reason": "ContainerCreating"})
        await self.k.clock.step(0.2)
        if not await self._until_pulled():
            return self._gone()
        await self._live(folders)
        return None

    async def _until_mounted(self):
        wait_s = 0.5
        while not self.asked_to_end.is_set():
            try:
                return self.k.volumes.set_up(self.pod)
            except MountError as error:
                self._event("Warning", "FailedMount", str(error), of_container=False)
                await self._pause(wait_s)
                wait_s = min(wait_s * 2, 8)
        return None

    async def _until_pulled(self):
        image = self.spec["image"]
        wait_s = 10
        while not self.k.pullable.fullmatch(image):
            host = image.split("/")[0]
            cause = (
                f'failed to pull and unpack image "{image}": failed to resolve image: failed to do request: Head '
                f'"https://{host}/v2/manifests": dial tcp: connect: connection refused'
            )
            self._event("Normal", "Pulling", f'Pulling image "{image}"')
            self._event("Warning", "Failed", f'Failed to pull image "{image}": {cause}')
            self._event("Warning", "Failed", "Error: ErrImagePull")
            self._status(waiting={"reason": "ErrImagePull", "message": cause})
            await self._pause(0.3)
            if self.asked_to_end.is_set():
                return False
            self._event("Normal", "BackOff", f'Back-off pulling image "{image}"')
            self._event("Warning", "Failed", "Error: ImagePullBackOff")
            message = f'Back-off pulling image "{image}": ErrImagePull: {cause}'
            self._status(waiting={"reason": "ImagePullBackOff", "message": message})
            await self._pause(wait_s)
            wait_s = min(wait_s * 2, 300)
            if self.asked_to_end.is_set():
                return False
        told = f'Container image "{image}" already present on machine and can be accessed by the pod'
        self._event("Normal", "Pulled", told)
        return not self.asked_to_end.is_set()

    async def _live(self, folders):
        self.container = self._make(folders)
        self._event("Normal", "Created", "Container created")
        await self.container.start()
        waiting = asyncio.create_task(self.container.wait())
        started_at = self.k.clock.stamp()
        try:
            await self._until_started(waiting)
            if waiting.done() and (error := self.container.start_error()) is not None:
                await self._could_not_start(error)
                return
            self._event("Normal", "Started", "Container started")
            self._status(running={"startedAt": started_at}, ready=True)
            code = await self._until_ended(waiting)
        finally:
            waiting.cancel()
        await self._ended(code, started_at)

    async def _until_started(self, waiting):
        """Until process 1 runs the command itself, so that an exec finds the container's root and user."""
        marker = self.container.folder / "error"
        while not waiting.done() and not (marker.exists() and self.container.has_execed()):  # noqa: ASYNC110  # no event
            await asyncio.sleep(0.005)

    async def _until_ended(self, waiting):
        limits = (self.spec.get("resources") or {}).get("limits") or {}
        limit = quantity(limits["memory"]) if "memory" in limits else None
        ending = asyncio.create_task(self.asked_to_end.wait())
        killer = None
        try:
            while not waiting.done():
                await asyncio.wait(
                    [task for task in (waiting, ending) if not task.done()],
                    timeout=OOM_LOOK_S if limit is not None or killer else None, return_when=asyncio.FIRST_COMPLETED,
                )  # fmt: skip
                if limit is not None and self.container.rss() > limit:
                    self.container.kill_for_memory()
                if ending.done() and killer is None and not waiting.done():
                    self._event("Normal", "Killing", f"Stopping container {self.spec['name']}")
                    self.container.terminate()
                    killer = asyncio.create_task(self._kill_after_grace())
        finally:
            ending.cancel()
            if killer:
                killer.cancel()
        return waiting.result()

    async def _kill_after_grace(self):
        await self.k.clock.sleep(self.grace_s)
        self.container.kill()

    async def _ended(self, code, started_at):
        killed = self.container.oom_killed
        reason = "OOMKilled" if killed else "Completed" if code == 0 else "Error"
        message = self.container.message()
        terminated = {
            "containerID": self.container_id, "exitCode": code, "finishedAt": self.k.clock.stamp(),
            **({"message": message} if message else {}), "reason": reason, "startedAt": started_at,
        }  # fmt: skip
        await self._settle(terminated, code)

    async def _could_not_start(self, error):
        program = self.spec["command"][0]
        message = (
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
            f'failed: unable to start container process: exec: "{program}": stat {program}: {error.lower()}'
        )
        self._event("Warning", "Failed", f"Error: {message}")
        await self._settle({
            "containerID": self.container_id, "exitCode": 128, "finishedAt": self.k.clock.stamp(), "message": message,
            "reason": "StartError", "startedAt": EPOCH,
        }, 128)  # fmt: skip

    async def _settle(self, terminated, code):
        """Terminated first, while the pod still says `Running`; some time later the pod's own phase."""
        ended = self.asked_to_end.is_set()
        why = "PodCompleted" if code == 0 and self.evicted is None else "PodFailed"
        if not ended:
            self._status(terminated=terminated, why=why)
            await self.k.clock.step(1.0)
        phase = "Succeeded" if why == "PodCompleted" else "Failed"
        self._status(terminated=terminated, why=why, phase=phase, sandbox=False)
        if not self.asked_to_end.is_set():
            await self.asked_to_end.wait()
        await self.k.clock.step(0.1)
        self._gone()

    def _gone(self):
        if self.pod["spec"]["nodeName"] not in self.k.lost_nodes:
            self.k.finish(self.pod)

    async def _pause(self, seconds):
        """Wait, unless the pod shall end."""
        waits = [asyncio.create_task(self.k.clock.sleep(seconds)), asyncio.create_task(self.asked_to_end.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()

    def _make(self, folders):
        volumes = []
        for mount in self.spec.get("volumeMounts", []):
            if mount["name"] in folders:
                source = folders[mount["name"]]
                if mount.get("subPath"):
                    source /= mount["subPath"]
                    source.mkdir(parents=True, exist_ok=True)
                volumes.append((source, mount["mountPath"], bool(mount.get("readOnly"))))
        log = self.k.log_file(self.uid)
        log.parent.mkdir(parents=True, exist_ok=True)
        folder = self.k.volumes.folder / "pods" / self.uid / "container"
        security = self.pod["spec"].get("securityContext") or {}
        return Container(folder, self.spec, self._env(), volumes, security, log=log)

    def _env(self):
        env = {"HOSTNAME": self.pod["metadata"]["name"]}
        for entry in self.spec.get("env", []):
            if "valueFrom" not in entry:
                env[entry["name"]] = expand(entry.get("value", ""), env)
            elif "fieldRef" in entry["valueFrom"]:
                tree = self.pod
                for part in entry["valueFrom"]["fieldRef"]["fieldPath"].split("."):
                    tree = tree[part]
                env[entry["name"]] = str(tree)
            elif "configMapKeyRef" in entry["valueFrom"]:
                ref = entry["valueFrom"]["configMapKeyRef"]
                found = self.k.store.get("configmaps", self.pod["metadata"]["namespace"], ref["name"]) or {}
                env[entry["name"]] = (found.get("data") or {}).get(ref["key"], "")
        return env

    def _event(self, kind, reason, message, *, of_container=True):
        node = self.pod["spec"]["nodeName"]
        if node in self.k.lost_nodes:
            return
        self.k.events.counted(
            self.pod, kind, reason, message, component="kubelet", host=node,
            field_path=f"spec.containers{{{self.spec['name']}}}" if of_container else None,
        )  # fmt: skip

    def _status(self, *, waiting=None, running=None, terminated=None, ready=False, why=None, phase=None, sandbox=True):
        """Write the pod's status as this kubelet sees it; a lost node's word does not get through."""
        meta = self.pod["metadata"]
        if self.pod["spec"]["nodeName"] in self.k.lost_nodes:
            return
        state = {"waiting": waiting} if waiting else {"running": running} if running else {"terminated": terminated}
        stamp = self.k.clock.stamp()
        name = self.spec["name"]
        started = bool(running)
        evicted = self.evicted

        def write(tree):
            status = tree["status"]
            status["phase"] = phase or (
                "Pending" if waiting else status["phase"] if terminated and status["phase"] != "Running" else "Running"
            )
            status.setdefault("startTime", stamp)
            status.update(hostIP="127.0.0.1", hostIPs=[{"ip": "127.0.0.1"}], observedGeneration=1)
            if sandbox:
                status.update(podIP="10.244.0.2", podIPs=[{"ip": "10.244.0.2"}])
            not_ready = {"reason": why or "ContainersNotReady"}
            if why is None:
                not_ready["message"] = f"containers with unready status: [{name}]"
            rest = [c for c in status["conditions"] if c["type"] in {"PodScheduled", "DisruptionTarget"}]
            old = {"status": {"conditions": [c for c in status["conditions"] if c not in rest]}}
            fresh = {"status": {"conditions": []}}
            for kind, value, more in (
                ("PodReadyToStartContainers", sandbox, {}),
                ("Initialized", True, {"reason": "PodCompleted"} if why == "PodCompleted" else {}),
                ("Ready", ready, {} if ready else not_ready),
                ("ContainersReady", ready, {} if ready else not_ready),
            ):
                since = [
                    c for c in old["status"]["conditions"] if c["type"] == kind and (c["status"] == "True") is value
                ]
                set_condition(fresh, kind, str(value), since[0]["lastTransitionTime"] if since else stamp, **more)
            disrupted = [c for c in rest if c["type"] == "DisruptionTarget"]
            scheduled = [c for c in rest if c["type"] == "PodScheduled"]
            status["conditions"] = [*disrupted, *fresh["status"]["conditions"], *scheduled]
            entry = {
                "image": self.spec["image"], "imageID": "" if waiting else _image_id(self.spec["image"]),
                "lastState": {}, "name": name, "ready": ready, "resources": self.spec.get("resources") or {},
                "restartCount": 0, "started": started, "state": state,
            }  # fmt: skip
            if not waiting:
                entry["containerID"] = self.container_id
            if gpus := ((self.spec.get("resources") or {}).get("limits") or {}).get(GPU):
                entry["allocatedResources"] = {GPU: str(gpus)}
            status["containerStatuses"] = [entry]
            if evicted:
                status.update(reason="Evicted", message=evicted)

        self.k.store.update("pods", meta["namespace"], meta["name"], write, uid=meta["uid"])


def _image_id(image):
    if "@sha256:" in image:
        return image
    return "sha256:" + hashlib.sha256(image.encode()).hexdigest()
