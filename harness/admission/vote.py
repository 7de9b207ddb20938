"""The one WORLD reduction of a planning step.

Each rank puts its ballot into its own row of a matrix of zeros; the sum over the world gives every rank all rows. It
is one all-reduce of fixed size whatever the ranks found, so all ranks issue the same collectives in the same order.
"""

from __future__ import annotations

import torch

from harness.admission.ballot import BALLOT_FIELDS, Ballot, decode
from harness.parallel import collectives
from harness.parallel.topology import Topology

__all__ = ["VOTE_TAG", "cast"]

VOTE_TAG = "admission vote"


def cast(topology: Topology, ballot: Ballot) -> tuple[Ballot, ...]:
    """The ballots of all ranks, by rank. Every rank of the world calls it, ranks without work too.

    Raises:
        VoteMismatch: on every rank, when two ranks vote on different planning steps.
    """
    world = topology.world
    matrix = torch.zeros((world.size, BALLOT_FIELDS), dtype=torch.int64, device=topology.device)
    matrix[world.index] = torch.tensor(ballot.encode(), dtype=torch.int64, device=topology.device)
    return decode(collectives.all_reduce(topology, world, matrix, tag=VOTE_TAG).tolist())
