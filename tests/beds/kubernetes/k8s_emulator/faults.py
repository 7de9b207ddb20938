"""Faults on demand: which call, and what happens to it."""

import asyncio
import socket
import struct
from dataclasses import dataclass

from aiohttp import web

from k8s_emulator.answers import ApiError

KINDS = {"429", "500", "503", "reset", "slow", "hang", "lost", "slow-after", "hang-after", "403", "410", "409"}


@dataclass(slots=True)
class Fault:
    """What happens to calls `nth` to `nth + times - 1` that match; None matches everything.

    `reset` cuts the connection before the call acts, `lost` after it has acted; `hang` never acts and never answers,
    `hang-after` acts and never answers; `slow` waits `delay_s` before acting, `slow-after` before answering.
    """

    kind: str
    verb: str | None = None
    resource: str | None = None
    name: str | None = None
    user: str | None = None
    nth: int = 1
    times: int = 1
    delay_s: float = 1.0
    retry_after_s: int | None = None
    seen: int = 0
    struck: int = 0

    def matches(self, call):
        if any(getattr(self, key) not in {None, call[key]} for key in ("verb", "resource", "name", "user")):
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


class Faults:
    """The faults that are armed, in order; each call meets at most the first that matches."""

    def __init__(self):
        self.armed = []

    def arm(self, **tree):
        fault = Fault(**tree)
        if fault.kind not in KINDS:
            raise ApiError(400, f"no fault {fault.kind}; there are {', '.join(sorted(KINDS))}")
        self.armed.append(fault)

    def struck(self):
        """How many calls each armed fault has met."""
        return [fault.struck for fault in self.armed]

    def clear(self, user=None):
        """Disarm all, or what was armed for one user."""
        self.armed = [fault for fault in self.armed if user is not None and fault.user != user]

    async def serve(self, request, call, serve):
        """Have `serve()` answer, or what the fault makes of it."""
        # Every fault counts every call: `nth` shall not depend on what else is armed.
        struck = [fault for fault in self.armed if fault.matches(call)]
        if not struck:
            return await serve()
        fault = struck[0]
        fault.struck += 1
        match fault.kind:
            case "reset":
                return cut(request)
            case "lost":
                await serve()
                return cut(request)
            case "hang":
                return await hang(request)
            case "hang-after":
                await serve()
                return await hang(request)
            case "slow":
                await asyncio.sleep(fault.delay_s)
                return await serve()
            case "slow-after":
                answer = await serve()
                await asyncio.sleep(fault.delay_s)
                return answer
            case code:
                headers = {} if fault.retry_after_s is None else {"Retry-After": str(fault.retry_after_s)}
                raise ApiError(int(code), f"injected {code}", headers=headers)


def cut(request):
    """End the connection with a reset, without an answer."""
    transport = request.transport
    if transport is not None:
        peer = transport.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    raise ConnectionResetError("cut on demand")


async def hang(request):
    """Keep the connection until the caller gives up."""
    while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110  # it has no event
        await asyncio.sleep(0.05)
    return web.Response(status=500)
