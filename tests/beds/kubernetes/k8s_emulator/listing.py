"""Lists, page by page, and watches."""

import asyncio
import base64
import json

from aiohttp import web

from k8s_emulator.answers import ApiError
from k8s_emulator.selectors import field_filter, label_filter

BOOKMARK_S = 1.0


def page(store, call, query):
    """The answer to a list request."""
    wanted = _filter(query)
    found = [tree for tree in store.all(call.resource.plural, call.namespace) if wanted(tree)]
    version, after = store.version, None
    if query.get("continue"):
        token = json.loads(base64.urlsafe_b64decode(query["continue"]))
        version, after = token["rv"], token["start"]
        if version < store.floor:
            raise ApiError(410, "The provided continue parameter is too old to display a consistent list result.")
        found = [tree for tree in found if _key(tree) > after]
    limit = int(query.get("limit") or 0)
    meta = {"resourceVersion": str(version)}
    if limit and len(found) > limit:
        token = {"v": "meta.k8s.io/v1", "rv": version, "start": _key(found[limit - 1])}
        meta["continue"] = base64.urlsafe_b64encode(json.dumps(token).encode()).decode()
        meta["remainingItemCount"] = len(found) - limit
        found = found[:limit]
    resource = call.resource
    return {
        "kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta,
        "items": [{key: value for key, value in tree.items() if key not in {"kind", "apiVersion"}} for tree in found],
    }  # fmt: skip


async def watch(store, call, request):
    """Stream changes until the caller goes, the time asked for is over, or the versions are gone."""
    query = request.query
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    queue = store.listen()
    try:
        wanted = _filter(query)
        version = query.get("resourceVersion") or "0"
        if version == "0":
            for tree in store.all(call.resource.plural, call.namespace):
                if wanted(tree):
                    await _send(response, "ADDED", tree)
        else:
            for change in store.since(int(version)):
                await _send_change(response, call, wanted, change)
        loop = asyncio.get_running_loop()
        until = loop.time() + float(query.get("timeoutSeconds") or 3600)
        while (rest := until - loop.time()) > 0:
            if request.transport is None or request.transport.is_closing():
                break
            try:
                change = await asyncio.wait_for(queue.get(), min(rest, BOOKMARK_S))
            except TimeoutError:
                if query.get("allowWatchBookmarks") in {"1", "true", "True"}:
                    await _send(response, "BOOKMARK", _bookmark(store, call))
                continue
            if change is None:
                raise ApiError(410, "the resource version of this watch is too old")  # noqa: TRY301  # one way out
            await _send_change(response, call, wanted, change)
    except ApiError as error:
        await _send(response, "ERROR", error.as_json())
    except ConnectionResetError:
        return response
    finally:
        store.deafen(queue)
    await response.write_eof()
    return response


def _filter(query):
    labels, fields = label_filter(query.get("labelSelector")), field_filter(query.get("fieldSelector"))
    return lambda tree: labels(tree["metadata"].get("labels") or {}) and fields(tree)


def _key(tree):
    return [tree["metadata"].get("namespace", ""), tree["metadata"]["name"]]


def _bookmark(store, call):
    resource = call.resource
    meta = {"resourceVersion": str(store.version), "creationTimestamp": None}
    return {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}


async def _send_change(response, call, wanted, change):
    """As the watcher sees it: an object that comes to match is new to it, one that ceases to is gone."""
    if change.plural != call.resource.plural or call.namespace not in {"", change.new["metadata"].get("namespace", "")}:
        return
    is_in, was_in = wanted(change.new), change.old is not None and wanted(change.old)
    if change.type == "DELETED":
        if was_in:
            await _send(response, "DELETED", change.new)
    elif is_in:
        await _send(response, "MODIFIED" if was_in else "ADDED", change.new)
    elif was_in:
        await _send(response, "DELETED", change.new)


async def _send(response, kind, tree):
    await response.write(json.dumps({"type": kind, "object": tree}).encode() + b"\n")
