"""Which kinds of objects the server knows, and how its paths name them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind. `group` is empty for the core group; `subresources` are those that have a path of their own."""

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short: tuple = ()
    subresources: tuple = ()

    @property
    def api_version(self):
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def title(self):
        return f"{self.plural}.{self.group}" if self.group else self.plural


RBAC = "rbac.authorization.k8s.io"
KUEUE = "kueue.x-k8s.io"
RESOURCES = (
    Resource("pods", "Pod", short=("po",), subresources=("log", "exec", "status", "eviction", "binding")),
    Resource("configmaps", "ConfigMap", short=("cm",)),
    Resource("events", "Event", short=("ev",)),
    Resource("secrets", "Secret"),
    Resource("services", "Service", short=("svc",)),
    Resource("serviceaccounts", "ServiceAccount", short=("sa",), subresources=("token",)),
    Resource("resourcequotas", "ResourceQuota", short=("quota",), subresources=("status",)),
    Resource("limitranges", "LimitRange"),
    Resource("persistentvolumeclaims", "PersistentVolumeClaim", short=("pvc",), subresources=("status",)),
    Resource("nodes", "Node", namespaced=False, short=("no",), subresources=("status",)),
    Resource("namespaces", "Namespace", namespaced=False, short=("ns",), subresources=("status",)),
    Resource("jobs", "Job", group="batch", subresources=("status",)),
    Resource("cronjobs", "CronJob", group="batch", short=("cj",), subresources=("status",)),
    Resource("roles", "Role", group=RBAC),
    Resource("rolebindings", "RoleBinding", group=RBAC),
    Resource("clusterroles", "ClusterRole", group=RBAC, namespaced=False),
    Resource("clusterrolebindings", "ClusterRoleBinding", group=RBAC, namespaced=False),
    Resource("priorityclasses", "PriorityClass", group="scheduling.k8s.io", namespaced=False, short=("pc",)),
    Resource("leases", "Lease", group="coordination.k8s.io"),
    Resource("localqueues", "LocalQueue", group=KUEUE, version="v1beta1"),
    Resource("workloads", "Workload", group=KUEUE, version="v1beta1"),
)
REVIEWS = {
    "selfsubjectaccessreviews": ("authorization.k8s.io", "SelfSubjectAccessReview"),
    "selfsubjectrulesreviews": ("authorization.k8s.io", "SelfSubjectRulesReview"),
    "selfsubjectreviews": ("authentication.k8s.io", "SelfSubjectReview"),
}
BY_PATH = {(resource.group, resource.version, resource.plural): resource for resource in RESOURCES}
BY_PLURAL = {resource.plural: resource for resource in RESOURCES}
BY_KIND = {resource.kind: resource for resource in RESOURCES}
