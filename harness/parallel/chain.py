"""Exchanges on the autograd path, in one fixed order on every rank.

Autograd runs a node as soon as nothing it needs is missing, and skips what the loss does not need: two exchanges that
do not depend on each other could run backward in either order, and one that a rank's loss does not use would not run
there at all, while its peers wait. So every exchange of a forward also takes and returns a *token*, a zero that needs
a gradient: exchange i + 1 takes the token of exchange i, and `close` adds the last one to the loss. Backward, exchange
i then has to wait for exchange i + 1 and can not be left out, whatever the layout gave this rank; where its rows got
no gradient, it exchanges zeros. `loss.backward()` runs the whole chain; `torch.autograd.grad` with a list of inputs
would cut it and must not be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from harness.parallel import collectives
from harness.parallel.collectives import Direction
from harness.parallel.topology import Group, Topology

__all__ = ["ExchangeChain"]

_Move = Callable[[torch.Tensor, Direction], torch.Tensor]
_Apply = Callable[[torch.Tensor, torch.Tensor, _Move, _Move], tuple[torch.Tensor, torch.Tensor]]


class ExchangeChain:
    """The exchanges of one forward, in the order of the calls; make a new one for each forward.

    In a group of one rank an exchange returns its rows and is no link of the chain.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._token = torch.zeros((), device=topology.device, requires_grad=True)

    def all_to_all(
        self, group: Group, rows: torch.Tensor, send_splits: Sequence[int], recv_splits: Sequence[int], *, tag: str
    ) -> torch.Tensor:
        """Uneven all-to-all over `group`; backward the gradients go the way back."""
        return self._link(
            group,
            rows,
            lambda x, to: collectives.all_to_all(
                self._topology, group, x, send_splits, recv_splits, tag=tag, direction=to
            ),
            lambda x, to: collectives.all_to_all(
                self._topology, group, x, recv_splits, send_splits, tag=tag, direction=to
            ),
        )

    def all_gather(self, group: Group, rows: torch.Tensor, *, tag: str) -> torch.Tensor:
        """(n, ...) to (size x n, ...); backward each rank gets the sum of all ranks' gradients of its rows."""
        return self._link(
            group,
            rows,
            lambda x, to: collectives.all_gather(self._topology, group, x, tag=tag, direction=to),
            lambda x, to: collectives.reduce_scatter(self._topology, group, x, tag=tag, direction=to),
        )

    def reduce_scatter(self, group: Group, rows: torch.Tensor, *, tag: str) -> torch.Tensor:
        """(size x n, ...) summed over ranks to this rank's (n, ...); backward each rank gets all gradients."""
        return self._link(
            group,
            rows,
            lambda x, to: collectives.reduce_scatter(self._topology, group, x, tag=tag, direction=to),
            lambda x, to: collectives.all_gather(self._topology, group, x, tag=tag, direction=to),
        )

    def sum_loss(self, group: Group, loss: torch.Tensor, *, tag: str) -> torch.Tensor:
        """The sum of the ranks' losses, the same on each.

        Backward nothing is exchanged: the sum is one quantity that every rank holds a copy of, so the gradient of a
        rank's own share is 1.
        """
        return self._link(
            group,
            loss,
            lambda x, to: collectives.all_reduce(self._topology, group, x, tag=tag, direction=to),
            lambda x, _to: x,
        )

    def close(self, loss: torch.Tensor) -> torch.Tensor:
        """`loss`, with the last token on its path."""
        return loss + self._token.to(loss.dtype)

    def _link(self, group: Group, rows: torch.Tensor, forward: _Move, backward: _Move) -> torch.Tensor:
        if group.handle is None:
            return rows
        exchange = cast("_Apply", _Exchange.apply)
        self._token, moved = exchange(self._token, rows, forward, backward)
        return moved


class _Exchange(torch.autograd.Function):
    """(token, rows) to (token, moved rows); both gradients are always there, zeros where the loss uses neither."""

    @staticmethod
    def forward(
        ctx: Any, token: torch.Tensor, rows: torch.Tensor, forward: _Move, backward: _Move
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.move_back = backward
        return token.new_zeros(()), forward(rows, Direction.FORWARD)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        token, rows = gradients
        return token.new_zeros(()), ctx.move_back(rows, Direction.BACKWARD), None, None
