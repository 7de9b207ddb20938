"""What only an emulator has: the levers that tests pull, below /emulator."""

import asyncio

from aiohttp import web

from k8s_emulator.answers import ApiError


class Control:
    """Answers POST /emulator/LEVER with a JSON object of arguments."""

    def __init__(self, cluster, api):
        self.cluster = cluster
        self.api = api
        self.levers = {
            "advance": cluster.clock.advance,
            "pace": cluster.clock.set_pace,
            "arm": cluster.faults.arm,
            "disarm": cluster.faults.clear,
            "struck": cluster.faults.struck,
            "calls": api.recorded,
            "forget-calls": api.calls.clear,
            "history": cluster.store.told,
            "compact": cluster.store.compact,
            "break-watches": cluster.store.break_watches,
            "add-node": cluster.add_node,
            "lose-node": cluster.lose_node,
            "find-node": cluster.find_node,
            "remove-node": cluster.remove_node,
            "freeze": cluster.freeze,
            "evict": cluster.evict,
            "oom": cluster.out_of_memory,
            "claim-folder": cluster.claim_folder,
            "failure": cluster.why_failed,
            "queues": cluster.admission.set_queues,
        }

    async def handle(self, request):
        lever = request.match_info["lever"]
        if lever not in self.levers:
            return web.json_response({"error": f"no lever {lever}"}, status=404)
        arguments = await request.json() if request.can_read_body else {}
        try:
            answer = self.levers[lever](**arguments)
        except ApiError as error:
            return web.json_response({"error": error.message}, status=error.code)
        self.cluster.kick()
        await asyncio.sleep(0)
        return web.json_response({"answer": answer})
