"""A job whose rank 1 dies in attempt 0 before its first collective, when rank 0 has begun one; attempt 1 is well."""

import os
from threading import Event

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if attempt == 0:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(5), async_op=True)
        store.set("begun", "")
        Event().wait()  # the agent ends it
    store.wait(["begun"])
    os._exit(1)
for _ in range(3):
    dist.all_reduce(torch.ones(4))
