"""All collectives go through one module."""

from __future__ import annotations

import ast
from pathlib import Path

import harness

COLLECTIVES = {
    *("all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_gather_coalesced"),
    *("all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "batch_isend_irecv"),
    *("broadcast", "broadcast_object_list", "gather", "gather_object", "irecv", "isend", "monitored_barrier", "recv"),
    *("recv_object_list", "reduce", "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter"),
    *("scatter_object_list", "send", "send_object_list"),
}


def calls(source: str) -> set[str]:
    """Collectives that `source` takes from torch.distributed, however it imports it."""
    tree = ast.parse(source)
    names = {"torch.distributed"}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname for alias in node.names if alias.name == "torch.distributed" and alias.asname}
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "distributed"}
            if node.module.startswith(("torch.distributed", "torch._C")) or "functional_collectives" in node.module:
                found |= {alias.name for alias in node.names if alias.name in COLLECTIVES}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in COLLECTIVES and ast.unparse(node.value) in names:
            found.add(node.attr)
    return found


def test_only_the_seam_calls_torch_s_collectives():
    root = Path(harness.__file__).parent
    users = {str(path.relative_to(root)) for path in root.rglob("*.py") if calls(path.read_text())}
    assert users == {"parallel/collectives.py"}


def test_the_look_for_collectives_finds_each_way_to_call_one():
    assert calls("import torch\ntorch.distributed.all_reduce(x)") == {"all_reduce"}
    assert calls("import torch.distributed as d\nd.broadcast(x)") == {"broadcast"}
    assert calls("from torch import distributed\ndistributed.barrier()") == {"barrier"}
    assert calls("from torch.distributed import all_to_all_single as f") == {"all_to_all_single"}
    assert calls("import queue\nqueue.send(x)") == set()
