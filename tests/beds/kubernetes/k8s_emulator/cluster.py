"""The cluster: the store, everything that works on it, and the loop that drives them."""

import asyncio
import re

from k8s_emulator.access import Access
from k8s_emulator.admission import Admission
from k8s_emulator.answers import ApiError
from k8s_emulator.clock import Clock
from k8s_emulator.deletion import Deletion
from k8s_emulator.events import Events
from k8s_emulator.faults import Faults
from k8s_emulator.jobs import Jobs
from k8s_emulator.kubelet import Kubelets
from k8s_emulator.quota import Quotas
from k8s_emulator.scheduler import Scheduler, disrupt
from k8s_emulator.store import Store
from k8s_emulator.volumes import Volumes

NODE_INFO = {
    "architecture": "amd64", "bootID": "0", "containerRuntimeVersion": "emulated://1", "kernelVersion": "6.0",
    "kubeProxyVersion": "", "kubeletVersion": "v1.36.0", "machineID": "0", "operatingSystem": "linux",
    "osImage": "emulated", "systemUUID": "0",
}  # fmt: skip
UNREACHABLE = "node.kubernetes.io/unreachable"


class Cluster:
    """All parts of one cluster whose files lie in `folder`."""

    def __init__(self, folder, *, pace, admin_token, pullable, queues):
        self.clock = Clock(pace)
        self.store = Store(self.clock)
        self.events = Events(self.store, self.clock)
        self.deletion = Deletion(self.store, self.clock)
        self.quotas = Quotas(self.store)
        self.admission = Admission(self.store, self.quotas, queues=queues)
        self.jobs = Jobs(
            self.store, self.clock, self.events, self.deletion, lambda pod: self.admission.create("pods", pod)
        )
        self.scheduler = Scheduler(self.store, self.clock, self.events, self.deletion)
        self.volumes = Volumes(self.store, folder)
        self.kubelets = Kubelets(self.store, self.clock, self.events, self.volumes, pullable=pullable)
        self.access = Access(self.store, admin_token)
        self.faults = Faults()
        self.failure = None
        self._kicked = asyncio.Event()
        self._frozen = False

    def add_node(self, name, gpus, product, labels=None):
        """A node on paper, in the units of a kubelet: 64 cores, 512 GiB, so many GPUs."""
        room = {"cpu": "64", "memory": f"{512 << 20}Ki", "pods": "110", "ephemeral-storage": str(500 << 30)}
        if gpus:
            room["nvidia.com/gpu"] = str(gpus)
        marks = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})}
        if gpus:
            marks |= {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": str(gpus)}
        stamp = self.clock.stamp()
        ready = {
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
            "lastHeartbeatTime": stamp, "lastTransitionTime": stamp,
        }  # fmt: skip
        self.store.create("nodes", {
            "metadata": {"name": name, "labels": marks}, "spec": {},
            "status": {"allocatable": room, "capacity": dict(room), "conditions": [ready],
                       "nodeInfo": dict(NODE_INFO)},
        })  # fmt: skip

    def kick(self):
        """Something changed: have the controllers look."""
        self._kicked.set()

    def freeze(self, frozen):
        """Hold the controllers, as a cluster whose control plane is busy elsewhere does."""
        self._frozen = frozen
        self.kick()

    async def run(self):
        """Drive the controllers for ever."""
        changes = self.store.listen()
        ringing = asyncio.create_task(self.clock.ring(self.kick))
        try:
            while True:
                getter = asyncio.create_task(changes.get())
                kicked = asyncio.create_task(self._kicked.wait())
                await asyncio.wait([getter, kicked], return_when=asyncio.FIRST_COMPLETED)
                for task in (getter, kicked):
                    task.cancel()
                self._kicked.clear()
                while not changes.empty():
                    changes.get_nowait()
                if not self._frozen:
                    await self._reconcile()
        finally:
            ringing.cancel()

    def lose_node(self, name):
        """The node stops answering: its kubelet's word no longer counts, and the taints follow."""
        self.kubelets.lost_nodes.add(name)
        stamp = self.clock.stamp()

        def lose(node):
            node["spec"]["taints"] = [
                {"key": UNREACHABLE, "effect": effect, "timeAdded": stamp} for effect in ("NoSchedule", "NoExecute")
            ]
            for condition in node["status"]["conditions"]:
                condition.update(
                    status="Unknown", reason="NodeStatusUnknown", message="Kubelet stopped posting node status.",
                    lastTransitionTime=stamp,
                )  # fmt: skip

        self.store.update("nodes", None, name, lose)
        for pod in self._pods_on(name):
            meta = pod["metadata"]

            def not_ready(tree):
                for condition in tree["status"].get("conditions", []):
                    if condition["type"] in {"Ready", "ContainersReady"}:
                        condition.update(status="False", lastTransitionTime=stamp)

            self.store.update("pods", meta["namespace"], meta["name"], not_ready)
            self.events.counted(pod, "Warning", "NodeNotReady", "Node is not ready", component="node-controller")
            self.clock.alarm(self.clock.now() + 300, lambda pod=pod: self._evict_by_taint(pod))

    def find_node(self, name):
        """The node answers again."""
        self.kubelets.lost_nodes.discard(name)
        stamp = self.clock.stamp()

        def find(node):
            node["spec"].pop("taints", None)
            for condition in node["status"]["conditions"]:
                condition.update(status="True", reason="KubeletReady", message="kubelet is posting ready status",
                                 lastTransitionTime=stamp)  # fmt: skip

        self.store.update("nodes", None, name, find)

    def remove_node(self, name):
        """The node is taken out of the cluster; its pods are failed and removed by the pod garbage collector."""
        pods = self._pods_on(name)
        self.store.remove("nodes", None, name)
        for pod in pods:
            meta = pod["metadata"]
            if (run := self.kubelets.runs.pop(meta["uid"], None)) is not None:
                run.abandon()
            disrupt(self.store, self.clock, pod, "DeletionByPodGC", "PodGC: node no longer exists")
            self.store.update(
                "pods", meta["namespace"], meta["name"], lambda tree: tree["status"].update(phase="Failed")
            )
            self.deletion.delete("pods", meta["namespace"], meta["name"], {"gracePeriodSeconds": 0})

    def evict_by_api(self, namespace, name):
        pod = self.store.must("pods", namespace, name)
        disrupt(self.store, self.clock, pod, "EvictionByEvictionAPI", "Eviction API: evicting")
        self.deletion.delete("pods", namespace, name)

    def evict(self, namespace, name, message):
        """The kubelet is short of something and ends the pod."""
        self._run_of(namespace, name).evict(message)

    def out_of_memory(self, namespace, name):
        """The kernel kills the pod's container for its memory."""
        self._run_of(namespace, name).container.kill_for_memory()

    def claim_folder(self, namespace, name):
        return str(self.volumes.claim(namespace, name))

    def why_failed(self):
        """What ended the controllers, None while they work."""
        return self.failure

    def _run_of(self, namespace, name):
        run = self.kubelets.runs.get(self.store.must("pods", namespace, name)["metadata"]["uid"])
        if run is None:
            raise ApiError(409, f"pod {name} is on no node")
        return run

    async def _reconcile(self):
        for _ in range(200):
            before = self.store.version
            for part in (self.deletion, self.jobs, self.scheduler, self.kubelets, self.quotas):
                part.reconcile()
            if self.store.version == before:
                return
            await asyncio.sleep(0)
        raise RuntimeError("the controllers do not come to rest")

    def _evict_by_taint(self, pod):
        meta = pod["metadata"]
        found = self.store.get("pods", meta["namespace"], meta["name"])
        if found and found["metadata"]["uid"] == meta["uid"] and pod["spec"]["nodeName"] in self.kubelets.lost_nodes:
            message = "Taint manager: deleting due to NoExecute taint"
            disrupt(self.store, self.clock, pod, "DeletionByTaintManager", message)
            self.deletion.delete("pods", meta["namespace"], meta["name"])

    def _pods_on(self, name):
        return [
            pod
            for pod in self.store.all("pods")
            if pod["spec"].get("nodeName") == name and not re.fullmatch("Succeeded|Failed", pod["status"]["phase"])
        ]
