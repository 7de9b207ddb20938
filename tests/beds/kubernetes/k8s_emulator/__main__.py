"""`python -m k8s_emulator --folder DIR`: serve until the standard input ends; the first line printed is the address."""

import argparse
import asyncio
import os
import secrets
import sys
import traceback
from pathlib import Path

from aiohttp import web

from k8s_emulator.api import Api
from k8s_emulator.cluster import Cluster
from k8s_emulator.control import Control

SMALLEST_PAGE = 64 * 1024 * 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--pace", type=float, default=1.0, help="of the waits between steps; 0 for none")
    parser.add_argument("--nodes", nargs="*", default=["node-1:4"], metavar="NAME:GPUS")
    parser.add_argument("--product", default="NVIDIA-H200")
    parser.add_argument("--namespaces", nargs="*", default=["default"])
    parser.add_argument("--pullable", default=r"(?!127\.0\.0\.1:1/)(?!.*no-such).*", help="images that can be pulled")
    parser.add_argument("--queues", action="store_true", help="a Job that names a queue starts suspended")
    asyncio.run(serve(parser.parse_args()))


async def serve(options):
    token = secrets.token_hex(16)
    cluster = Cluster(
        options.folder, pace=options.pace, admin_token=token, pullable=options.pullable, queues=options.queues
    )
    for name in options.namespaces:
        cluster.admission.create("namespaces", {"metadata": {"name": name}})
    for node in options.nodes:
        name, _, gpus = node.partition(":")
        cluster.add_node(name, int(gpus or 0), options.product)
    api = Api(cluster)
    app = web.Application(client_max_size=SMALLEST_PAGE)
    control = Control(cluster, api)
    app.router.add_post("/emulator/{lever}", control.handle)
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port} {token}", flush=True)
    driving = asyncio.create_task(drive(cluster))
    await until_the_lifeline_ends()
    driving.cancel()
    await cluster.kubelets.close()
    await runner.cleanup()


async def drive(cluster):
    try:
        await cluster.run()
    except Exception:
        cluster.failure = traceback.format_exc()
        print(cluster.failure, file=sys.stderr, flush=True)
        raise


async def until_the_lifeline_ends():
    """Whoever started this holds the other end of the standard input."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def readable():
        if not os.read(0, 4096) and not ended.done():
            ended.set_result(None)

    loop.add_reader(0, readable)
    await ended
    loop.remove_reader(0)


if __name__ == "__main__":
    main()
