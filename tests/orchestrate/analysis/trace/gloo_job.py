"""A rank of a gloo job that dumps its own flight recorder: `gloo_job.py FOLDER FAULT`."""

import os
import sys
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d


def main():
    folder, fault = Path(sys.argv[1]), sys.argv[2]
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    even = dist.new_group(list(range(0, world, 2)))
    odd = dist.new_group(list(range(1, world, 2)), group_desc="odd")
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, group=odd if rank % 2 else even)
    dist.all_gather([torch.empty(4) for _ in range(world)], tensor)
    dist.gather(tensor, [torch.empty(4) for _ in range(world)] if rank == 1 else None, dst=1)
    dist.scatter(tensor, [torch.ones(4) for _ in range(world)] if rank == 0 else None, src=0)
    dist.all_to_all_single(torch.empty(2 * world), torch.ones(2 * world))
    dist.broadcast(torch.ones(3), 1)
    dist.barrier()
    if fault == "hang" and rank != 2:
        # The rank that is missing dumps while the others wait for it.
        Thread(target=dist.all_reduce, args=(torch.ones(7),), daemon=True).start()
        while b'"gloo:all_reduce","record_id":8' not in dumped(json=True):
            Event().wait(0.05)
    # Entries are marked as ended some time after they did.
    while fault == "none" and b'"retired":false' in dumped(json=True):
        Event().wait(0.05)
    dump(folder, rank)
    store = dist.distributed_c10d._get_default_store()
    store.add("dumped", 1)
    while store.add("dumped", 0) < world:
        Event().wait(0.05)
    os._exit(0)


def dumped(*, json=False):
    data = (c10d._dump_fr_trace_json if json else c10d._dump_fr_trace)()
    return data if isinstance(data, bytes) else data.encode()


def dump(folder, rank):
    (folder / f"fr_trace_{rank}").write_bytes(dumped())
    (folder / "json" / f"fr_trace_{rank}.json").write_bytes(dumped(json=True))


main()
