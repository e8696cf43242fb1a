"""The rank of this process and the number of processes, as ``torchrun`` passes them in environment variables."""

from __future__ import annotations

import os
import re
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
        restarts: how often ``torchrun --max-restarts`` has started all processes again.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    restarts: int = 0

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
        UserError: a variable is no number, or they contradict each other.
    """
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return SINGLE_PROCESS
    rank, world_size = _number("RANK", variables), _number("WORLD_SIZE", variables)
    local_rank, local_world_size = _number("LOCAL_RANK", variables, 0), _number("LOCAL_WORLD_SIZE", variables, 1)
    for name, number, size_name, size in (
        ("RANK", rank, "WORLD_SIZE", world_size),
        ("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world_size),
    ):
        if number >= size and size_name in variables:
            raise UserError(
                f"{name} = {number}, {size_name} = {size}: {name} must be a number from 0 to {size_name} - 1; torchrun sets both"
            )
    restarts = _number("TORCHELASTIC_RESTART_COUNT", variables)
    return ProcessInfo(rank, world_size, local_rank, local_world_size, restarts)


def _number(name: str, variables: Mapping[str, str], default: int = 0) -> int:
    """Return the number that an environment variable holds.

    Raises:
        UserError: it holds something else.
    """
    text = variables.get(name, str(default))
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UserError(f"{name} = {text}: this environment variable must be a number; torchrun sets it")
    return int(text)
