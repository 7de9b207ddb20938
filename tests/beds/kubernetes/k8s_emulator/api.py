"""The HTTP side: every request on objects, its permission, its faults and its answer."""

import asyncio
import json

from aiohttp import web

from k8s_emulator import discovery, execution, listing, patches
from k8s_emulator.access import self_review
from k8s_emulator.answers import ApiError, conflict
from k8s_emulator.paths import parse
from k8s_emulator.resources import REVIEWS

SPEC = {"audiences": [], "expirationSeconds": 3600, "boundObjectRef": None}
TRUE = {"true", "True", "1"}


class Api:
    """Answers requests from a `Cluster`; `calls` is every one of them, in order, with the code of its answer."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.calls = []

    def recorded(self):
        return list(self.calls)

    async def handle(self, request):
        """Any request below /api, /apis and the discovery paths."""
        try:
            found = discovery.answer(request.path) if request.method == "GET" else None
            if found is not None:
                return web.json_response(found)
            if not request.path.startswith(("/api/", "/apis/")):
                raise ApiError(404, "the server could not find the requested resource")  # noqa: TRY301  # one way out
            call = parse(request.method, request.path, request.query)
            body = await request.read()
            user = self.cluster.access.user(request.headers.get("Authorization"))
            record = {**call.as_json(), "user": user, "code": None}
            self.calls.append(record)
            try:
                response = await self.cluster.faults.serve(
                    request, record, lambda: self._serve(request, call, user, body)
                )
            except ApiError as error:
                record["code"] = error.code
                raise
            record["code"] = response.status
        except ApiError as error:
            return web.json_response(error.as_json(), status=error.code, headers=error.headers)
        return response

    async def _serve(self, request, call, user, body):
        access = self.cluster.access
        if body and request.content_type.endswith("protobuf"):
            raise ApiError(
                415, "the body of the request was in an unknown format - accepted media types: application/json"
            )
        if call.resource is None:
            return self._review(call, user, json.loads(body))
        access.check(user, *call.permission)
        if call.subresource == "exec":
            if call.verb == "get":
                # A websocket opens with a GET; since 1.35 the server asks for `create` beside `get`.
                access.check(user, "create", *call.permission[1:])
            return await self._exec(request, call)
        if call.subresource == "log":
            return await self._log(request, call)
        if call.verb == "watch":
            return await listing.watch(self.cluster.store, call, request)
        status, tree = self._answer(request, call, body)
        return web.json_response(tree, status=status)

    def _answer(self, request, call, body):
        store, plural = self.cluster.store, call.resource.plural
        match call.verb:
            case "get":
                return 200, store.must(plural, call.namespace, call.name)
            case "list":
                return 200, listing.page(store, call, request.query)
            case "create":
                return 201, self._create(request, call, json.loads(body))
            case "update":
                return 200, self._update(call, json.loads(body), request.query)
            case "patch":
                tree = store.must(plural, call.namespace, call.name)
                fresh = patches.apply(request.content_type, tree, body)
                return 200, self._update(call, fresh, request.query)
            case "delete":
                options = {**_options(request.query), **(json.loads(body) if body else {})}
                return 200, self.cluster.deletion.delete(plural, call.namespace, call.name, options)
            case "deletecollection":
                options = {**_options(request.query), **(json.loads(body) if body else {})}
                found = listing.page(store, call, request.query)
                for tree in found["items"]:
                    meta = tree["metadata"]
                    self.cluster.deletion.delete(plural, meta.get("namespace"), meta["name"], options)
                return 200, found
        raise ApiError(405, f"the server does not allow {call.verb}")

    def _create(self, request, call, tree):
        if call.subresource == "token":
            self.cluster.store.must("serviceaccounts", call.namespace, call.name)
            token = self.cluster.access.issue(call.namespace, call.name)
            status = {"token": token, "expirationTimestamp": "2100-01-01T00:00:00Z"}
            return {
                "kind": "TokenRequest",
                "apiVersion": "authentication.k8s.io/v1",
                "metadata": {},
                "spec": {"audiences": []},
                "status": status,
            }
        if call.subresource == "eviction":
            self.cluster.evict_by_api(call.namespace, call.name)
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        if call.subresource:
            raise ApiError(405, f"the server does not allow creating {call.subresource}")
        if call.resource.namespaced:
            named = tree.setdefault("metadata", {}).setdefault("namespace", call.namespace)
            if named != call.namespace:
                why = f"the namespace of the provided object does not match the namespace sent on the request ({named})"
                raise ApiError(400, why)
        dry_run = request.query.get("dryRun") == "All"
        return self.cluster.admission.create(call.resource.plural, tree, dry_run=dry_run)

    def _update(self, call, fresh, query):
        store, plural = self.cluster.store, call.resource.plural
        old = store.must(plural, call.namespace, call.name)
        claimed = fresh["metadata"].get("resourceVersion")
        if claimed and claimed != old["metadata"]["resourceVersion"]:
            why = "the object has been modified; please apply your changes to the latest version and try again"
            raise conflict(call.resource, call.name, why)
        if not call.subresource:
            self.cluster.admission.check_update(plural, old, fresh)
        kept = {key: old["metadata"][key] for key in KEPT if key in old["metadata"]}

        def write(tree):
            if call.subresource == "status":
                tree["status"] = fresh.get("status", {})
                return
            status = tree.get("status")
            tree.clear()
            tree.update(fresh)
            tree["metadata"] = {**fresh["metadata"], **kept}
            if status is not None:
                tree["status"] = status

        if query.get("dryRun") == "All":
            return {**fresh, "metadata": {**fresh["metadata"], **kept}}
        return store.update(plural, call.namespace, call.name, write)

    def _review(self, call, user, tree):
        kind = REVIEWS[call.review][1]
        answer = self_review(self.cluster.access, user, kind, tree)
        group = f"{REVIEWS[call.review][0]}/v1"
        return web.json_response({"kind": kind, "apiVersion": group, "metadata": {}, **answer}, status=201)

    async def _exec(self, request, call):
        pod = self.cluster.store.must("pods", call.namespace, call.name)
        container = execution.container_of(self.cluster.kubelets, pod)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise ApiError(400, "Upgrade request required")
        return await execution.serve(request, container, request.query)

    async def _log(self, request, call):
        pod = self.cluster.store.must("pods", call.namespace, call.name)
        if not pod["spec"].get("nodeName"):
            raise ApiError(400, f"pod {call.name} does not have a host assigned")
        state = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {})
        if "waiting" in state:
            name, why = pod["spec"]["containers"][0]["name"], state["waiting"]["reason"]
            told = f'container "{name}" in pod "{call.name}" is waiting to start: {why}'
            raise ApiError(400, told)
        if pod["spec"]["nodeName"] in self.cluster.kubelets.lost_nodes:
            raise ApiError(500, "Get https://127.0.0.1:10250/containerLogs: dial tcp: connect: no route to host")
        path = self.cluster.kubelets.log_file(pod["metadata"]["uid"])
        query = request.query
        data = path.read_bytes() if path.exists() else b""
        seen = len(data)
        if query.get("tailLines"):
            lines = data.splitlines(keepends=True)
            data = b"".join(lines[len(lines) - min(len(lines), int(query["tailLines"])) :])
        if query.get("limitBytes"):
            data = data[: int(query["limitBytes"])]
        if query.get("follow") not in TRUE:
            return web.Response(body=data, content_type="text/plain")
        return await self._follow(request, path, data, seen, pod)

    async def _follow(self, request, path, data, seen, pod):
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await response.write(data)
        while True:
            container = self.cluster.kubelets.container(pod)
            over = container is None or not container.runs
            fresh = path.read_bytes()[seen:] if path.exists() else b""
            seen += len(fresh)
            if fresh:
                await response.write(fresh)
            if over or request.transport is None:
                await response.write_eof()
                return response
            await asyncio.sleep(0.05)


KEPT = (
    "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "name", "namespace",
    "resourceVersion",
)  # fmt: skip


def _options(query):
    options = {}
    if query.get("propagationPolicy"):
        options["propagationPolicy"] = query["propagationPolicy"]
    if query.get("gracePeriodSeconds"):
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    return options
