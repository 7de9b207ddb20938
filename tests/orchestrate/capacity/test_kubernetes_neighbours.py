"""What was not recorded but stands next to it: each as the objects that a cluster of that kind would show."""

from __future__ import annotations

import pytest

from orchestrate.capacity.kubernetes import refusal, refusal_beforehand
from orchestrate.capacity.kubernetes_ending import HowEnded, ending
from orchestrate.capacity.seen import Seen, remember
from orchestrate.capacity.taxonomy import Basis, Reason, classify
from orchestrate.verdict import Verdict

AT = "2026-11-30T18:00:00.000Z"
T0, T1, T2 = "2026-11-30T17:00:00Z", "2026-11-30T17:01:00Z", "2026-11-30T17:02:00Z"


def job(*, gpus=4, suspend=False, conditions=(), deleted=False, pod_spec=None, labels=None):
    spec = {
        "containers": [
            {"name": "node", "resources": {"limits": {"nvidia.com/gpu": gpus}, "requests": {"memory": "4Gi"}}}
        ],
        **(pod_spec or {}),
    }
    metadata = {"name": "j", "uid": "job", "creationTimestamp": T0, "labels": labels or {}}
    if deleted:
        metadata["deletionTimestamp"] = T1
    return {
        "metadata": metadata,
        "spec": {"suspend": suspend, "template": {"spec": spec}},
        "status": {"conditions": list(conditions)},
    }


def failed(reason="BackoffLimitExceeded"):
    return [
        {"type": "Failed", "status": "True", "reason": reason, "lastTransitionTime": T2},
        {"type": "FailureTarget", "status": "True", "reason": reason, "lastTransitionTime": T2},
    ]


def pod(*, phase="Pending", conditions=(), state=None, deleted=False, uid="pod", spec=None, **status):
    metadata = {"name": uid, "uid": uid, "creationTimestamp": T0, "ownerReferences": [{"uid": "job"}]}
    if deleted:
        metadata["deletionTimestamp"] = T1
    told = {"phase": phase, "conditions": list(conditions), **status}
    if state is not None:
        told["containerStatuses"] = [{"name": "node", "state": state}]
    return {"metadata": metadata, "spec": {**job()["spec"]["template"]["spec"], **(spec or {})}, "status": told}


def event(reason, message, *, about="pod", first=T0, last=T0, component="", uid=None):
    return {
        "metadata": {"uid": uid or f"{reason}{message}"},
        "involvedObject": {"uid": about},
        "reason": reason,
        "message": message,
        "firstTimestamp": first,
        "lastTimestamp": last,
        "source": {"component": component},
    }


def node(
    name="n", *, gpus=4, product="NVIDIA-H200", taints=(), ready="True", memory="512Gi", cordoned=False, marks=None
):
    return {
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": product, **(marks or {})}},
        "spec": {"taints": list(taints), **({"unschedulable": True} if cordoned else {})},
        "status": {
            "allocatable": {"nvidia.com/gpu": str(gpus), "memory": memory},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def unschedulable(message="0/1 nodes are available: 1 Insufficient nvidia.com/gpu. preemption: not helpful."):
    return pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}])


TOO_MUCH = "request > maximum capacity (8 > 4)"
MISMATCH = "node(s) didn't match Pod's node affinity/selector"
SCHEDULED = {"type": "PodScheduled", "status": "True"}
RUNNING = {"running": {"startedAt": T0}}


def exited(code, reason="Error"):
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": T0, "finishedAt": T1}}


def disruption(reason, at=T0):
    return {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "m", "lastTransitionTime": at}


def why(seen, **more):
    found = refusal(remember(None, seen), asked={}, where="here", at=AT, **{"out_of_time": True, **more})
    return None if found is None else found.offers[0].reason


def quota_event(**amounts):
    told = ", ".join(f"{word}: requests.nvidia.com/gpu={amounts[word]}" for word in ("requested", "used", "limited"))
    return event("FailedCreate", f'Error creating: pods "x" is forbidden: exceeded quota: q, {told}', about="job")


def quota(hard, **spec):
    return {"metadata": {"name": "q"}, "spec": {"hard": {"requests.nvidia.com/gpu": hard}, **spec}}


class TestNeverCreated:
    def test_a_quota_that_is_used_up_waits_and_one_below_the_request_does_not(self):
        used = Seen(job(), events=(quota_event(requested=4, used=4, limited=4),))
        assert why(used, out_of_time=False, waited_s=1000) is None
        assert why(used) is Reason.QUOTA_USED
        small = Seen(job(), events=(quota_event(requested=4, used=0, limited=2),))
        assert why(small, out_of_time=False) is Reason.QUOTA_TOO_SMALL

    def test_one_resource_of_several_that_is_too_small_is_enough(self):
        message = (
            'pods "x" is forbidden: exceeded quota: q, requested: pods=1,requests.memory=64Gi, '
            "used: pods=9,requests.memory=1Gi, limited: pods=9,requests.memory=32Gi"
        )
        assert why(Seen(job(), events=(event("FailedCreate", message, about="job"),))) is Reason.QUOTA_TOO_SMALL

    def test_a_quota_that_may_be_read_decides_by_structure(self):
        seen = Seen(job(), events=(quota_event(requested=4, used=4, limited=4),), quotas=(quota("2"),))
        found = refusal(seen, asked={}, where="here", at=AT)
        assert (found.offers[0].reason, found.offers[0].basis) == (Reason.QUOTA_TOO_SMALL, Basis.STRUCTURE)

    def test_a_quota_with_a_scope_may_not_be_ours(self):
        assert why(Seen(job(), quotas=(quota("2", scopes=["NotTerminating"]),))) is Reason.PROVIDER_FAULT

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            ('admission webhook "policy.example" denied the request: no root', Reason.DENIED),
            ('pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot', Reason.DENIED),
            (
                'pods "x" is forbidden: maximum memory usage per Container is 2Gi, but limit is 4Gi',
                Reason.MISCONFIGURED,
            ),
            ('pods "x" is forbidden: failed quota: q: must specify limits.cpu', Reason.MISCONFIGURED),
            ('pods "x" is forbidden: no PriorityClass with name high was found', Reason.MISCONFIGURED),
            (
                'pods "x" is forbidden: error looking up service account a/b: serviceaccount "b" not found',
                Reason.MISCONFIGURED,
            ),
            ('Internal error occurred: failed calling webhook "w": connect: connection refused', Reason.PROVIDER_FAULT),
            ("etcdserver: request timed out", Reason.PROVIDER_FAULT),
        ],
    )
    def test_what_the_api_server_refused_is_told_by_its_own_words(self, message, reason):
        assert why(Seen(job(), events=(event("FailedCreate", message, about="job"),))) is reason

    def test_a_refusal_that_was_overcome_is_forgotten(self):
        events = (
            quota_event(requested=4, used=0, limited=2),
            event("SuccessfulCreate", "Created pod: x", about="job", first=T1, last=T1),
        )
        assert why(Seen(job(), events=events)) is Reason.PROVIDER_FAULT

    def test_a_foreign_event_is_not_ours(self):
        foreign = {**quota_event(requested=4, used=0, limited=2), "involvedObject": {"uid": "another"}}
        assert why(Seen(job(), events=(foreign,))) is Reason.PROVIDER_FAULT


class TestQueue:
    def workload(self, message, *, reason="Pending", **status):
        return {
            "spec": {},
            "status": {
                "conditions": [{"type": "QuotaReserved", "status": "False", "reason": reason, "message": message}],
                **status,
            },
        }

    def test_a_suspended_job_waits_in_a_queue(self):
        assert why(Seen(job(suspend=True)), out_of_time=False, waited_s=1000) is None
        assert why(Seen(job(suspend=True))) is Reason.QUEUED

    @pytest.mark.parametrize(
        ("message", "reason"),
        [
            ("insufficient unused quota for nvidia.com/gpu in flavor a, 2 more needed", Reason.QUEUED),
            (f"insufficient quota in flavor a, {TOO_MUCH}", Reason.QUOTA_TOO_SMALL),
            (f"insufficient quota in flavor a, {TOO_MUCH}, insufficient unused quota in flavor b", Reason.QUEUED),
        ],
    )
    def test_kueue_says_whether_it_ever_can(self, message, reason):
        assert why(Seen(job(suspend=True), workloads=(self.workload(message),))) is reason

    def test_a_queue_that_does_not_exist_is_a_wrong_request(self):
        lost = self.workload("LocalQueue gpus doesn't exist", reason="Inadmissible")
        assert why(Seen(job(suspend=True), workloads=(lost,))) is Reason.MISCONFIGURED
        assert why(Seen(job(suspend=True), workloads=(lost,)), out_of_time=False) is None

    def test_a_workload_that_others_displaced_from_the_queue_was_preempted(self):
        evicted = {"type": "Evicted", "status": "True", "reason": "Preempted", "message": "by workload x"}
        displaced = {"status": {"conditions": [evicted]}}
        assert why(Seen(job(suspend=True), workloads=(displaced,))) is Reason.PREEMPTED
        other = {"status": {"conditions": [{**evicted, "reason": "PodsReadyTimeout"}]}}
        assert why(Seen(job(suspend=True), workloads=(other,))) is Reason.QUEUED
        assert why(Seen(job(suspend=True), workloads=({"spec": {"active": False}},))) is Reason.DENIED

    def test_an_admission_check_that_rejects_is_a_refusal(self):
        checks = [{"name": "prov", "state": "Rejected", "message": "no"}]
        assert why(Seen(job(suspend=True), workloads=(self.workload("x", admissionChecks=checks),))) is Reason.DENIED

    def test_a_scheduling_gate_is_a_queue_too(self):
        gated = pod(conditions=[{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}])
        assert why(Seen(job(), pods=(gated,))) is Reason.QUEUED


class TestScheduling:
    def seen(self, *nodes, pods=None, **pod_spec):
        waiting = unschedulable()
        waiting["spec"] = {**waiting["spec"], **pod_spec}
        return Seen(job(pod_spec=pod_spec), pods=(waiting,), nodes=nodes, foreign_pods=pods)

    def test_a_node_that_would_fit_it_is_only_busy(self):
        assert why(self.seen(node())) is Reason.NOTHING_FREE
        assert why(self.seen(node()), out_of_time=False, waited_s=1e6) is None

    def test_free_and_total_are_counted_where_all_may_be_seen(self):
        held = {"spec": {**job(gpus=3)["spec"]["template"]["spec"], "nodeName": "n"}, "status": {"phase": "Running"}}
        done = {"spec": held["spec"], "status": {"phase": "Succeeded"}}
        elsewhere = {"spec": {**held["spec"], "nodeName": "other"}, "status": {"phase": "Running"}}
        seen = self.seen(node(), pods=(held, done, elsewhere))
        found = refusal(seen, asked={}, where="here", at=AT, out_of_time=True)
        assert [(item.total, item.free) for item in found.availability] == [(4, 1)]

    def test_what_our_own_pod_holds_is_free_for_the_next_try(self):
        ours = pod(spec={"nodeName": "n"}, uid="ours")
        seen = Seen(job(), pods=(ours,), nodes=(node(),), foreign_pods=(ours,))
        found = refusal(seen, asked={}, where="here", at=AT, out_of_time=True)
        assert [(item.total, item.free) for item in found.availability] == [(4, 4)]

    def test_a_larger_node_that_only_lacks_memory_never_fits(self):
        assert why(self.seen(node(memory="2Gi"))) is Reason.NEVER_FITS

    def test_a_pod_that_asks_for_no_gpu_fits_a_node_without_any(self):
        waiting = unschedulable()
        waiting["spec"] = job(gpus=0)["spec"]["template"]["spec"]
        assert why(Seen(job(gpus=0), pods=(waiting,), nodes=(node(gpus=0),))) is Reason.NOTHING_FREE

    def test_another_kind_of_gpu_is_not_the_kind(self):
        selector = {"nvidia.com/gpu.product": "NVIDIA-H200"}
        assert why(self.seen(node(product="NVIDIA-A100"), nodeSelector=selector)) is Reason.UNKNOWN_KIND

    def test_a_selector_of_another_sort_is_a_wrong_request(self):
        assert why(self.seen(node(), nodeSelector={"pool": "gone"})) is Reason.MISCONFIGURED

    def test_required_affinity_is_read_like_a_selector(self):
        terms = [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}]
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
        assert why(self.seen(node(), affinity=affinity)) is Reason.MISCONFIGURED
        assert why(self.seen(node(marks={"pool": "a"}), affinity=affinity)) is Reason.NOTHING_FREE

    @pytest.mark.parametrize(
        ("operator", "values", "chosen"),
        [
            ("In", ["7", "8"], True),
            ("In", ["8"], False),
            ("NotIn", ["8"], True),
            ("NotIn", ["7"], False),
            ("Exists", [], True),
            ("DoesNotExist", [], False),
            ("Gt", ["6"], True),
            ("Gt", ["7"], False),
            ("Lt", ["8"], True),
            ("Lt", ["7"], False),
            ("Gt", ["many"], False),
            ("Lt", [], False),
            ("Like", ["7"], False),
        ],
    )
    def test_each_operator_of_an_affinity_is_read_as_the_scheduler_reads_it(self, operator, values, chosen):
        term = {"matchExpressions": [{"key": "size", "operator": operator, "values": values}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}
        found = why(self.seen(node(marks={"size": "7"}), affinity=affinity))
        assert (found is Reason.NOTHING_FREE) is chosen

    def test_an_affinity_to_a_label_that_is_not_there_and_one_by_name(self):
        def with_terms(*terms):
            required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
            return why(self.seen(node("n"), affinity={"nodeAffinity": required}))

        assert with_terms({"matchExpressions": [{"key": "size", "operator": "Exists"}]}) is Reason.MISCONFIGURED
        assert with_terms({"matchExpressions": [{"key": "size", "operator": "DoesNotExist"}]}) is Reason.NOTHING_FREE
        by_name = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}
        assert with_terms(by_name) is Reason.NOTHING_FREE
        assert with_terms({}, by_name) is Reason.NOTHING_FREE
        assert with_terms({}) is Reason.MISCONFIGURED

    def test_a_taint_that_is_not_tolerated_is_told_from_a_lack(self):
        taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
        assert why(self.seen(node(taints=[taint]))) is Reason.MISCONFIGURED
        tolerated = [{"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"}]
        assert why(self.seen(node(taints=[taint]), tolerations=tolerated)) is Reason.NOTHING_FREE

    @pytest.mark.parametrize(
        ("toleration", "tolerated"),
        [
            ({"operator": "Exists"}, True),
            ({"key": "team", "operator": "Exists"}, True),
            ({"key": "other", "operator": "Exists"}, False),
            ({"key": "team", "operator": "Exists", "effect": "NoExecute"}, False),
            ({"key": "team", "value": "a"}, True),
            ({"key": "team", "value": "b"}, False),
            ({"key": "team"}, False),
        ],
    )
    def test_each_form_of_a_toleration_is_read(self, toleration, tolerated):
        taint = {"key": "team", "value": "a", "effect": "NoSchedule"}
        found = why(self.seen(node(taints=[taint]), tolerations=[toleration]))
        assert (found is Reason.NOTHING_FREE) is tolerated

    def test_what_was_asked_for_is_told_by_the_pod_where_the_caller_does_not_say(self):
        found = refusal(self.seen(node()), asked={}, where="here", at=AT, out_of_time=True)
        assert found.offers[0].asked == "nvidia.com/gpu: 4"
        named = refusal(self.seen(node()), asked={"accelerators": "H200:4"}, where="here", at=AT, out_of_time=True)
        assert (named.offers[0].asked, named.offers[0].where, named.offers[0].at) == ("H200:4", "here", AT)

    def test_a_cordoned_node_comes_back_and_a_dead_one_is_a_fault(self):
        assert why(self.seen(node(cordoned=True))) is Reason.NOTHING_FREE
        team = {"key": "team", "value": "a", "effect": "NoSchedule"}
        assert why(self.seen(node(cordoned=True, taints=[team]))) is Reason.MISCONFIGURED
        cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        assert why(self.seen(node(cordoned=True, taints=[cordon]))) is Reason.NOTHING_FREE
        everything = [{"operator": "Exists"}]
        assert why(self.seen(node(cordoned=True, taints=[cordon]), tolerations=everything)) is Reason.NOTHING_FREE
        assert why(self.seen(node(ready="Unknown"))) is Reason.NODE_FAULT

    def test_no_gpu_node_at_all_is_an_unknown_kind_unless_an_autoscaler_may_bring_one(self):
        assert why(self.seen(node(gpus=0))) is Reason.UNKNOWN_KIND
        scaled = node(gpus=0, marks={"karpenter.sh/nodepool": "default"})
        assert why(self.seen(scaled)) is Reason.CAN_NOT_TELL
        assert why(self.seen(scaled), out_of_time=False, waited_s=1e6) is None

    @pytest.mark.parametrize(
        ("reason", "message", "expected"),
        [
            ("TriggeredScaleUp", "pod triggered scale-up: [{gpu 0->1 (max: 4)}]", Reason.NOTHING_FREE),
            ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached", Reason.NOTHING_FREE),
            ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 in backoff after failed scale-up", Reason.STOCKOUT),
            ("NotTriggerScaleUp", "pod didn't trigger scale-up: 2 Insufficient nvidia.com/gpu", Reason.NEVER_FITS),
            ("NotTriggerScaleUp", f"pod didn't trigger scale-up: 2 {MISMATCH}", Reason.UNKNOWN_KIND),
            ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 untolerated taint {a: b}", Reason.UNKNOWN_KIND),
            ("NotTriggerScaleUp", "pod didn't trigger scale-up:", Reason.CAN_NOT_TELL),
            ("FailedScaleUp", "Node scale up in zones a failed: GCE out of resources", Reason.STOCKOUT),
            ("FailedScaleUp", "Node scale up in zones a failed: GCE quota exceeded", Reason.QUOTA_USED),
        ],
    )
    def test_an_autoscaler_says_what_zero_allocatable_means(self, reason, message, expected):
        said = event(reason, message, component="cluster-autoscaler")
        empty = self.seen(node(gpus=0))
        assert why(Seen(empty.job, pods=empty.pods, events=(said,), nodes=empty.nodes)) is expected
        blind = Seen(empty.job, pods=empty.pods, events=(said,))
        assert why(blind) is expected
        waits = expected.verdict is Verdict.CAPACITY
        assert why(blind, out_of_time=False) is (None if waits else expected)

    def test_karpenters_word_is_an_autoscalers(self):
        words = 'incompatible with nodepool "a", no instance type satisfied resources {"nvidia.com/gpu":"8"}'
        said = event("FailedScheduling", words, component="karpenter")
        assert why(Seen(job(), pods=(unschedulable(),), events=(said,))) is Reason.NEVER_FITS

    def test_the_autoscalers_latest_word_counts(self):
        events = (
            event("NotTriggerScaleUp", "2 Insufficient nvidia.com/gpu", last=T0),
            event("TriggeredScaleUp", "0->1", first=T1, last=T1),
        )
        seen = Seen(job(), pods=(unschedulable(),), events=events)
        assert why(seen, out_of_time=False, waited_s=1000) is None

    @pytest.mark.parametrize(
        ("message", "expected"),
        [
            ("5 Insufficient nvidia.com/gpu", Reason.CAN_NOT_TELL),
            (f"5 {MISMATCH}", Reason.UNKNOWN_KIND),
            (f"1 {MISMATCH}, 1 node(s) had untolerated taint {{team: a}}", Reason.MISCONFIGURED),
            (f"1 {MISMATCH}, 1 Insufficient nvidia.com/gpu", Reason.CAN_NOT_TELL),
            ("1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }", Reason.CAN_NOT_TELL),
            ('persistentvolumeclaim "corpus" not found', Reason.MISCONFIGURED),
            ("pod has unbound immediate PersistentVolumeClaims", Reason.PROVIDER_FAULT),
            ("1 node(s) had volume node affinity conflict", Reason.MISCONFIGURED),
            ("1 node(s) had volume node affinity conflict, 4 Insufficient nvidia.com/gpu", Reason.CAN_NOT_TELL),
            ('persistentvolumeclaim "corpus" bound to non-existent persistentvolume "x"', Reason.CAN_NOT_TELL),
        ],
    )
    def test_without_the_nodes_the_schedulers_words_tell_a_mismatch_but_never_a_lack(self, message, expected):
        told = f"0/5 nodes are available: {message}. preemption: 0/5 nodes are available: 5 x."
        seen = Seen(job(), pods=(unschedulable(told),))
        assert why(seen) is expected
        assert why(seen, out_of_time=False) is None

    def test_what_never_fits_is_refused_before_anything_is_created(self):
        def beforehand(**more):
            known = {"nodes": None, "foreign_pods": None, "quotas": None, **more}
            found = refusal_beforehand(job(), asked={}, where="here", at=AT, **known)
            return None if found is None else found.offers[0].reason

        assert beforehand() is None
        assert beforehand(nodes=[node()]) is None
        assert beforehand(nodes=[node(gpus=2)]) is Reason.NEVER_FITS
        assert beforehand(nodes=[node(gpus=2, marks={"karpenter.sh/nodepool": "x"})]) is None
        assert beforehand(nodes=[node(ready="False")]) is None
        assert beforehand(quotas=[quota("3")]) is Reason.QUOTA_TOO_SMALL


class TestOnTheNode:
    def seen(self, *events, state=None, phase="Pending", **status):
        given = pod(conditions=[SCHEDULED], state=state, phase=phase, **status)
        return Seen(job(), pods=(given,), events=events)

    def waiting(self, reason, message="m"):
        return {"waiting": {"reason": reason, "message": message}}

    def test_a_registry_that_does_not_answer_is_an_outage_and_an_unknown_image_a_wrong_request(self):
        down = self.waiting("ImagePullBackOff", "dial tcp: connect: connection refused")
        assert why(self.seen(state=down)) is Reason.PROVIDER_FAULT
        absent = self.waiting("ErrImagePull", "repo/x:1: not found")
        assert why(self.seen(state=absent)) is Reason.MISCONFIGURED

    def test_one_failed_pull_is_not_the_end_of_it(self):
        absent = self.waiting("ErrImagePull", "repo/x:1: not found")
        once = event("Failed", "Failed to pull image: not found")
        assert why(self.seen(once, state=absent), out_of_time=False, waited_s=1e6) is None
        again = event("Failed", "Failed to pull image: not found", last=T1)
        assert why(self.seen(again, state=absent), out_of_time=False) is Reason.MISCONFIGURED

    def test_a_config_map_that_is_late_is_waited_for_and_one_that_never_comes_is_not(self):
        message = 'MountVolume.SetUp failed for volume "harness": configmap "x" not found'
        late = self.seen(event("FailedMount", message), state=self.waiting("ContainerCreating"))
        assert why(late, out_of_time=False, waited_s=1e6) is None
        never = self.seen(event("FailedMount", message, last=T2), state=self.waiting("ContainerCreating"))
        assert why(never, out_of_time=False) is Reason.MISCONFIGURED

    @pytest.mark.parametrize(
        ("reason", "expected"),
        [
            ("InvalidImageName", Reason.MISCONFIGURED),
            ("CreateContainerConfigError", Reason.MISCONFIGURED),
            ("CreateContainerError", Reason.NODE_FAULT),
            ("ContainerCreating", Reason.NODE_FAULT),
        ],
    )
    def test_what_the_kubelet_waits_for_is_told(self, reason, expected):
        assert why(self.seen(state=self.waiting(reason))) is expected

    def test_a_name_that_is_none_is_refused_at_once(self):
        invalid = self.seen(state=self.waiting("InvalidImageName", "invalid reference format"))
        assert why(invalid, out_of_time=False) is Reason.MISCONFIGURED

    def test_a_container_that_the_gpu_runtime_can_not_start_is_a_fault_of_the_node(self):
        end = {"exitCode": 128, "reason": "StartError", "startedAt": "1970-01-01T00:00:00Z"}
        broken = {"terminated": {**end, "message": "nvidia-container-cli: initialization error: driver not loaded"}}
        assert why(self.seen(state=broken, phase="Failed"), out_of_time=False) is Reason.NODE_FAULT

    @pytest.mark.parametrize(
        "message",
        ['exec: "python9": executable file not found in $PATH', "stat /x: no such file or directory",
         "exec /x: permission denied", "exec /x: exec format error"],
    )  # fmt: skip
    def test_a_program_that_the_image_lacks_is_a_wrong_request(self, message):
        end = {"exitCode": 128, "reason": "StartError", "startedAt": "1970-01-01T00:00:00Z", "message": message}
        assert why(self.seen(state={"terminated": end}, phase="Failed"), out_of_time=False) is Reason.MISCONFIGURED

    def test_a_pod_that_somebody_deleted_before_it_began_was_taken_away(self):
        gone = Seen(job(), pods=(pod(conditions=[SCHEDULED], deleted=True),))
        assert why(gone) is Reason.TAKEN_AWAY
        assert why(gone, out_of_time=False) is None
        by_deadline = Seen(job(conditions=failed("DeadlineExceeded")), pods=gone.pods)
        assert why(by_deadline, out_of_time=False) is Reason.NODE_FAULT

    @pytest.mark.parametrize(
        ("reason", "expected"),
        [
            ("OutOfnvidia.com/gpu", Reason.NOTHING_FREE),
            ("UnexpectedAdmissionError", Reason.NODE_FAULT),
            ("Evicted", Reason.NODE_FAULT),
        ],
    )
    def test_a_pod_that_its_kubelet_refused(self, reason, expected):
        assert why(self.seen(phase="Failed", reason=reason, message="m"), out_of_time=False) is expected

    def test_a_pod_that_was_preempted_before_it_began_is_capacity(self):
        taken = pod(phase="Failed", conditions=[SCHEDULED, disruption("PreemptionByScheduler")], deleted=True)
        found = refusal(Seen(job(conditions=failed()), pods=(taken,)), asked={}, where="here", at=AT)
        assert classify(found.offers).verdict is Verdict.CAPACITY

    def test_a_deadline_that_passed_while_it_waited_keeps_the_reason_of_the_wait(self):
        seen = Seen(job(conditions=failed("DeadlineExceeded")), pods=(unschedulable(),), nodes=(node(),))
        assert why(seen, out_of_time=False) is Reason.NOTHING_FREE

    def test_a_job_that_somebody_deleted_was_taken_away(self):
        assert why(Seen(job(deleted=True), job_gone=True), out_of_time=False) is Reason.TAKEN_AWAY


class TestEndings:
    def end(self, *pods, job_=None, gone=False, settled=False):
        seen = remember(None, Seen(job_ or job(conditions=failed()), gone, pods))
        return ending(seen, settled=settled)

    def test_both_orders_of_the_conditions_read_the_same(self):
        pods = pod(phase="Failed", state=exited(3))
        for order in (failed(), failed()[::-1]):
            found = self.end(pods, job_=job(conditions=order))
            assert (found.how, found.exit_code, found.verdict) == (HowEnded.EXITED, 3, None)

    def test_a_running_pod_whose_container_has_ended_has_not_ended_for_its_job(self):
        assert self.end(pod(phase="Running", state=exited(3)), job_=job()) is None

    @pytest.mark.parametrize(
        ("reason", "how"),
        [
            ("PreemptionByScheduler", HowEnded.PREEMPTED),
            ("EvictionByEvictionAPI", HowEnded.EVICTED),
            ("TerminationByKubelet", HowEnded.EVICTED),
        ],
    )
    @pytest.mark.parametrize("state", [exited(1), exited(143), exited(0), None])
    def test_a_disruption_is_never_a_failed_test_whatever_the_exit_code(self, reason, how, state):
        found = self.end(pod(phase="Failed", state=state, conditions=[disruption(reason)], deleted=True))
        assert (found.how, found.verdict) == (how, Verdict.INFRASTRUCTURE)
        assert found.exit_code is None

    def test_a_disruption_that_came_after_the_end_did_not_bring_it_about(self):
        late = pod(phase="Failed", state=exited(3), conditions=[disruption("EvictionByEvictionAPI", at=T2)])
        assert self.end(late).how is HowEnded.EXITED

    @pytest.mark.parametrize("message", ["The node was low on resource: memory.", "The node had DiskPressure."])
    def test_an_eviction_by_the_kubelet_is_told_in_its_words(self, message):
        found = self.end(pod(phase="Failed", reason="Evicted", message=message, state=exited(137)))
        assert found.how is HowEnded.EVICTED
        assert message in found.fault

    def test_a_lost_node_is_told_at_once_since_nothing_more_will_come(self):
        lost = pod(phase="Running", state=RUNNING, conditions=[disruption("DeletionByTaintManager")], deleted=True)
        assert self.end(lost, job_=job()).how is HowEnded.NODE_LOST
        waiting = job(conditions=[failed()[1]])
        assert self.end(lost, job_=waiting).how is HowEnded.NODE_LOST

    @pytest.mark.parametrize("ready", ["PodFailed", "PodCompleted"])
    def test_a_pod_that_a_taint_drove_from_a_living_node_was_evicted(self, ready):
        told = [disruption("DeletionByTaintManager"), {"type": "Ready", "status": "False", "reason": ready}]
        found = self.end(pod(phase="Failed", state=exited(143), conditions=told, deleted=True))
        assert (found.how, found.verdict) == (HowEnded.EVICTED, Verdict.INFRASTRUCTURE)

    def test_a_node_that_was_lost_while_its_container_ended_is_a_lost_node(self):
        told = [disruption("DeletionByTaintManager"), {"type": "Ready", "status": "False", "reason": "NodeNotReady"}]
        found = self.end(pod(phase="Running", state=exited(137), conditions=told, deleted=True))
        assert found.how is HowEnded.NODE_LOST

    def test_a_disruption_that_is_only_announced_is_no_end(self):
        told = pod(phase="Running", state=RUNNING, conditions=[disruption("DeletionByTaintManager")])
        assert self.end(told, job_=job()) is None

    @pytest.mark.parametrize("status", [{"phase": "Unknown"}, {"phase": "Running", "reason": "NodeLost"}])
    def test_an_unknown_pod_is_a_lost_node(self, status):
        assert self.end(pod(state=RUNNING, **status), job_=job()).how is HowEnded.NODE_LOST

    def test_a_container_that_its_kubelet_lost_track_of_is_a_lost_node(self):
        gone = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}
        assert self.end(pod(phase="Failed", state=gone)).how is HowEnded.NODE_LOST

    def test_the_memory_killer_is_infrastructure_and_its_code_is_kept(self):
        found = self.end(pod(phase="Failed", state=exited(137, "OOMKilled")))
        assert (found.how, found.exit_code, found.verdict) == (HowEnded.OUT_OF_MEMORY, 137, Verdict.INFRASTRUCTURE)

    @pytest.mark.parametrize("code", [0, 1, 143])
    def test_a_pod_that_somebody_deleted_is_no_failed_test(self, code):
        found = self.end(pod(phase="Failed", state=exited(code), deleted=True))
        assert (found.how, found.verdict) == (HowEnded.DELETED, Verdict.INFRASTRUCTURE)

    def test_a_pod_that_goes_with_its_finished_job_keeps_its_own_end(self):
        found = self.end(
            pod(phase="Failed", state=exited(1), deleted=True), job_=job(conditions=failed(), deleted=True), gone=True
        )
        assert (found.how, found.exit_code) == (HowEnded.EXITED, 1)

    def test_the_deadline_stands_over_what_the_pod_says(self):
        found = self.end(
            pod(phase="Failed", state=exited(143), deleted=True), job_=job(conditions=failed("DeadlineExceeded"))
        )
        assert (found.how, found.by_cap, found.fault) == (HowEnded.DEADLINE, True, None)

    def test_a_job_that_vanished_while_it_ran_was_deleted_by_somebody(self):
        assert self.end(pod(phase="Running", state=RUNNING), job_=job(), gone=True).how is HowEnded.DELETED

    def test_the_last_attempt_speaks_for_the_job(self):
        older = pod(uid="a", phase="Failed", state=exited(1))
        newer = pod(uid="b", phase="Failed", state=exited(137, "OOMKilled"))
        newer["metadata"]["creationTimestamp"] = T1
        assert self.end(newer, older).how is HowEnded.OUT_OF_MEMORY


def test_another_job_of_the_same_name_starts_anew():
    old = remember(None, Seen(job(), pods=(pod(phase="Running", state=RUNNING),)))
    new = job()
    new["metadata"]["uid"] = "other"
    assert remember(old, Seen(new)).pods == ()
