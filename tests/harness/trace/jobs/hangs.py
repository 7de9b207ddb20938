"""A job of three ranks of which rank 1 does not come to the second all-reduce: `hangs.py HOW`.

`sleeps` and `keeps-the-gil` never come; `compiles` comes late, for it compiles longer than a step may take.
"""

import ctypes
import os
import sys
import time

import torch
import torch._dynamo  # before the first collective, for it takes long itself
import torch.distributed as dist

HOW = sys.argv[1]


def a_call_that_keeps_the_gil():
    nothing_to_read, _ = os.pipe()
    # PyDLL, unlike CDLL, keeps the GIL; a read, unlike a sleep, goes on after a signal.
    ctypes.PyDLL(None).read(nothing_to_read, ctypes.create_string_buffer(1), 1)


def a_sleep_that_does_not_end():
    time.sleep(600)


def slow_backend(graph, _inputs):
    time.sleep(float(sys.argv[2]))
    return graph


dist.init_process_group("gloo")
dist.all_reduce(torch.ones(3))
if dist.get_rank() == 1:
    match HOW:
        case "sleeps":
            a_sleep_that_does_not_end()
        case "keeps-the-gil":
            a_call_that_keeps_the_gil()
        case "compiles":
            torch.compile(lambda x: x + 1, backend=slow_backend)(torch.ones(2))
dist.all_reduce(torch.ones(4))
print("through", flush=True)
dist.destroy_process_group()
