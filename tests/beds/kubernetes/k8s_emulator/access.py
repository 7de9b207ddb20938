"""Who is asking, and what the stored roles let them do."""

import secrets

from k8s_emulator.answers import ApiError

ADMIN = "system:admin"


class Access:
    """Tokens and role bindings. Without a token, or with the admin's, everything is allowed."""

    def __init__(self, store, admin_token):
        self.store = store
        self._users = {admin_token: ADMIN}

    def user(self, header):
        """The user behind an `Authorization` header."""
        if not header:
            return ADMIN
        token = header.removeprefix("Bearer ").strip()
        if token not in self._users:
            raise ApiError(401, "Unauthorized")
        return self._users[token]

    def issue(self, namespace, name):
        """A token for a service account."""
        token = f"emulated-{secrets.token_hex(16)}"
        self._users[token] = f"system:serviceaccount:{namespace}:{name}"
        return token

    def check(self, user, verb, group, resource, namespace, name):
        """Raise the refusal that an API server gives."""
        if self.allows(user, verb, group, resource, namespace, name):
            return
        plural = resource.split("/")[0]
        title = f"{plural}.{group}" if group else plural
        named = f' "{name}"' if name else ""
        scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
        raise ApiError(
            403,
            f'{title}{named} is forbidden: User "{user}" cannot {verb} resource "{resource}" '
            f'in API group "{group}" {scope}',
            details={"kind": plural, **({"name": name} if name else {}), **({"group": group} if group else {})},
        )

    def allows(self, user, verb, group, resource, namespace, name):
        if user == ADMIN:
            return True
        return any(
            _has(rule.get("verbs"), verb)
            and _has(rule.get("apiGroups"), group)
            and _has(rule.get("resources"), resource)
            and (not rule.get("resourceNames") or name in rule["resourceNames"])
            for rule in self.rules(user, namespace)
        )  # fmt: skip

    def rules(self, user, namespace):
        """Every rule that holds for the user in a namespace (cluster-wide ones alone without one)."""
        rules = []
        for binding in self.store.all("clusterrolebindings"):
            if _binds(binding, user):
                rules += self._rules_of(binding, None)
        for binding in self.store.all("rolebindings", namespace) if namespace else []:
            if _binds(binding, user):
                rules += self._rules_of(binding, namespace)
        return rules

    def _rules_of(self, binding, namespace):
        ref = binding["roleRef"]
        plural, place = ("clusterroles", None) if ref["kind"] == "ClusterRole" else ("roles", namespace)
        role = self.store.get(plural, place, ref["name"])
        return (role or {}).get("rules") or []


def self_review(access, user, kind, tree):
    """Answer a `SelfSubject...Review`."""
    if kind == "SelfSubjectReview":
        return {"status": {"userInfo": {"username": user, "groups": ["system:authenticated"]}}}
    if kind == "SelfSubjectRulesReview":
        rules = access.rules(user, tree["spec"].get("namespace")) if user != ADMIN else [_everything()]
        return {"spec": {}, "status": {"resourceRules": rules, "nonResourceRules": [], "incomplete": False}}
    asked = tree["spec"].get("resourceAttributes") or {}
    resource = "/".join(filter(None, (asked.get("resource", ""), asked.get("subresource", ""))))
    allowed = access.allows(
        user, asked.get("verb", ""), asked.get("group", ""), resource, asked.get("namespace", ""), asked.get("name", "")
    )
    return {"spec": tree["spec"], "status": {"allowed": allowed, **({} if allowed else {"reason": ""})}}


def _everything():
    return {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}


def _has(values, value):
    return "*" in (values or []) or value in (values or [])


def _binds(binding, user):
    names = {"User": user, "Group": "system:authenticated"}
    for subject in binding.get("subjects") or []:
        if subject["kind"] == "ServiceAccount":
            if user == f"system:serviceaccount:{subject.get('namespace')}:{subject['name']}":
                return True
        elif subject.get("name") == names.get(subject["kind"]):
            return True
    return False
