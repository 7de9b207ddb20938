"""`exec` over a websocket: the channels of the protocols v4 and v5."""

import asyncio
import json

import aiohttp
from aiohttp import web

from k8s_emulator.answers import ApiError

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
STDIN, STDOUT, STDERR, ERROR, CLOSE = 0, 1, 2, 3, 255
CHUNK = 65536


def container_of(kubelets, pod):
    """The running container of a pod, or the refusal that a server gives."""
    name = pod["metadata"]["name"]
    phase = pod.get("status", {}).get("phase")
    if phase in {"Succeeded", "Failed"}:
        raise ApiError(400, f"cannot exec into a container in a completed pod; current phase is {phase}")
    node = pod["spec"].get("nodeName")
    if not node:
        raise ApiError(400, f"pod {name} does not have a host assigned")
    if node in kubelets.lost_nodes:
        raise ApiError(500, "error dialing backend: dial tcp 127.0.0.1:10250: connect: no route to host")
    container = kubelets.container(pod)
    running = (pod["status"].get("containerStatuses") or [{}])[0].get("state", {}).get("running")
    if container is None or not container.runs or not running:
        raise ApiError(500, f'container not found ("{pod["spec"]["containers"][0]["name"]}")')
    return container


async def serve(request, container, query):
    """Run the command beside the container and carry its streams."""
    socket = web.WebSocketResponse(protocols=PROTOCOLS, max_msg_size=0)
    await socket.prepare(request)
    with_stdin = query.get("stdin") in {"true", "True", "1"}
    process = await asyncio.create_subprocess_exec(
        *container.exec_arguments(query.getall("command")), env={},
        stdin=asyncio.subprocess.PIPE if with_stdin else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    incoming = asyncio.create_task(_feed(socket, process))
    try:
        streams = [(STDOUT, process.stdout, "stdout"), (STDERR, process.stderr, "stderr")]
        await asyncio.gather(*(
            _carry(socket, channel, stream, wanted=query.get(name) in {"true", "True", "1"})
            for channel, stream, name in streams
        ))  # fmt: skip
        code = await process.wait()
        await socket.send_bytes(bytes([ERROR]) + json.dumps(_status(code)).encode())
        await socket.close()
    except ConnectionResetError:
        pass  # the caller went away
    finally:
        incoming.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    return socket


async def _carry(socket, channel, stream, *, wanted):
    while chunk := await stream.read(CHUNK):
        if wanted:
            await socket.send_bytes(bytes([channel]) + chunk)


async def _feed(socket, process):
    """Until the caller goes: what it sends on channel 0 is the command's input."""
    async for message in socket:
        if message.type is aiohttp.WSMsgType.TEXT:
            data = message.data.encode()
        elif message.type is aiohttp.WSMsgType.BINARY:
            data = message.data
        else:
            break
        if not data or process.stdin is None:
            continue
        if data[0] == STDIN and len(data) > 1:
            process.stdin.write(data[1:])
            await process.stdin.drain()
        elif data[0] == CLOSE and data[1:2] == bytes([STDIN]):
            process.stdin.close()
    if process.returncode is None and socket.closed:
        process.kill()


def _status(code):
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }  # fmt: skip
