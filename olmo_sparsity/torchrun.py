"""Where torchrun has put this process: what it tells each process through the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from olmo_sparsity.errors import UserError


@dataclass(frozen=True)
class ProcessInfo:
    """``rank`` of ``count`` processes on all machines, ``local_rank`` of ``local_count`` on this one."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    local_count: int = 1

    @property
    def is_leader(self) -> bool:
        """Is it this process that talks and writes for all."""
        return self.rank == 0


SINGLE_PROCESS = ProcessInfo()


def current_process(variables: Mapping[str, str] = os.environ) -> ProcessInfo:
    """This process's place among those of torchrun; ``SINGLE_PROCESS`` without torchrun.

    Raises:
        UserError: the variables do not fit each other.
    """
    rank, count = variables.get("RANK"), variables.get("WORLD_SIZE")
    if rank is None or count is None:
        return SINGLE_PROCESS
    if not (rank.isdigit() and count.isdigit() and int(rank) < int(count)):
        raise UserError(f"RANK = {rank}, WORLD_SIZE = {count}: torchrun sets these, RANK from 0 to WORLD_SIZE - 1")
    return ProcessInfo(
        int(rank),
        int(count),
        int(variables.get("LOCAL_RANK", 0)),
        int(variables.get("LOCAL_WORLD_SIZE", 1)),
    )
