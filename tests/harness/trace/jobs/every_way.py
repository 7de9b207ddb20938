"""A job of two ranks that knows nothing of the recorder and sends in every way that torch has."""

import functools

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn
from torch.distributed import all_gather as gather_alias
from torch.distributed import all_reduce as reduce_alias
from torch.distributed import init_process_group as start
from torch.distributed.device_mesh import init_device_mesh

bound = functools.partial(reduce_alias, op=dist.ReduceOp.MAX)
start("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
other = 1 - rank


def aliases():
    reduce_alias(torch.ones(4))
    bound(torch.ones(5))
    gather_alias([torch.empty(2), torch.empty(2)], torch.ones(2))


def functional_collectives():
    functional.all_reduce(torch.ones(3), "min", dist.group.WORLD).wait()
    functional.all_gather_tensor(torch.ones(3), 0, dist.group.WORLD).wait()
    functional.reduce_scatter_tensor(torch.ones(4), "sum", 0, dist.group.WORLD).wait()
    functional.all_to_all_single(torch.ones(3), [1 + rank] * 2, [1 + 0, 1 + 1], dist.group.WORLD).wait()


def with_autograd():
    x = torch.ones(3, requires_grad=True)
    torch.distributed.nn.all_reduce(x).sum().backward()


def meshes():
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "tp"))
    dist.all_reduce(torch.ones(6), group=mesh.get_group("dp"))
    dist.all_reduce(torch.ones(7), group=mesh.get_group("tp"))


def subgroups():
    pair, alone = dist.new_group([0, 1]), dist.new_group([1])
    dist.broadcast(torch.ones(8), src=1, group=pair)
    if rank == 1:
        dist.all_reduce(torch.ones(9), group=alone)


def point_to_point():
    x = torch.ones(3)
    if rank == 0:
        dist.send(x, 1, tag=5)
        dist.recv(x)
        dist.isend(x, 1).wait()
    else:
        dist.recv(x, 0, tag=5)
        dist.send(x, 0)
        dist.irecv(x, 0).wait()
    operations = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, torch.empty(3), other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


def objects():
    dist.all_gather_object([None, None], {"rank": rank})
    dist.broadcast_object_list([rank], src=1)


def barriers():
    dist.barrier()
    dist.monitored_barrier()


def rooted():
    x = torch.ones(2)
    dist.broadcast(x, src=1)
    dist.reduce(x, dst=1, op=dist.ReduceOp.PRODUCT)
    dist.gather(x, [torch.empty(2), torch.empty(2)] if rank == 1 else None, dst=1)
    dist.scatter(x, [torch.ones(2), torch.ones(2)] if rank == 1 else None, src=1)


def uneven():
    send, recv = ([1, 3], [1, 2]) if rank == 0 else ([2, 1], [3, 1])
    dist.all_to_all_single(torch.empty(sum(recv), 2), torch.ones(sum(send), 2), recv, send)
    dist.all_to_all_single(torch.empty(4), torch.ones(4))


def asynchronous():
    dist.all_reduce(torch.ones(3), async_op=True).wait()
    dist.all_reduce(torch.ones(3), async_op=True)  # nobody waits


def data_parallel():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
    model(torch.ones(1, 3)).sum().backward()


def compiled():
    torch.compile(lambda x: functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1, backend="eager")(torch.ones(11))


def inference():
    with torch.inference_mode():
        dist.all_reduce(torch.ones(12))


aliases()
functional_collectives()
with_autograd()
meshes()
subgroups()
point_to_point()
objects()
barriers()
rooted()
uneven()
asynchronous()
data_parallel()
compiled()
inference()
dist.destroy_process_group()
