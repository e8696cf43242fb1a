"""The rank of this process and the number of processes, as ``torchrun`` passes them in environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from olmo_sparsity.errors import UserError


@dataclass(frozen=True)
class ProcessInfo:
    """The rank of a process among those that ``torchrun`` started.

    Attributes:
        rank: the number of this process, from 0 to ``world_size`` - 1.
        world_size: the number of processes on all machines.
        local_rank: the number of this process on its machine.
        local_world_size: the number of processes on this machine.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_leader(self) -> bool:
        """True for rank 0, the process that logs and writes files for all."""
        return self.rank == 0


SINGLE_PROCESS = ProcessInfo()


def current_process(variables: Mapping[str, str] = os.environ) -> ProcessInfo:
    """Return the rank of this process; ``SINGLE_PROCESS`` if it was not started by ``torchrun``.

    Args:
        variables: the environment variables.

    Raises:
        UserError: ``RANK`` and ``WORLD_SIZE`` contradict each other.
    """
    rank, world_size = variables.get("RANK"), variables.get("WORLD_SIZE")
    if rank is None or world_size is None:
        return SINGLE_PROCESS
    if not (rank.isdigit() and world_size.isdigit() and int(rank) < int(world_size)):
        raise UserError(
            f"RANK = {rank}, WORLD_SIZE = {world_size}: RANK must be a number from 0 to WORLD_SIZE - 1; torchrun sets both"
        )
    return ProcessInfo(
        rank=int(rank),
        world_size=int(world_size),
        local_rank=int(variables.get("LOCAL_RANK", 0)),
        local_world_size=int(variables.get("LOCAL_WORLD_SIZE", 1)),
    )
