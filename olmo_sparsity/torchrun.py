"""The rank of this process and the number of processes, as ``torchrun`` passes them in environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from olmo_sparsity.errors import UserError


@dataclass(frozen=True)
class ProcessInfo:
    """The rank of a process among those that ``torchrun`` started; by default that of a single process."""

    rank: int = 0  # from 0 to world_size - 1
    world_size: int = 1  # processes on all machines
    local_rank: int = 0  # among those of this machine
    local_world_size: int = 1
    restarts: int = 0  # how often ``torchrun --max-restarts`` has started all processes again

    @property
    def is_leader(self) -> bool:
        """True for rank 0, the process that logs and writes files for all."""
        return self.rank == 0


NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")


def current_process(variables: Mapping[str, str] = os.environ) -> ProcessInfo:
    """Return the rank of this process, as its environment variables say."""
    if "RANK" not in variables or "WORLD_SIZE" not in variables:
        return ProcessInfo()
    texts = [variables.get(name, "1" if name.endswith("SIZE") else "0") for name in NAMES]
    given = ", ".join(f"{name} = {text}" for name, text in zip(NAMES, texts, strict=True) if name in variables)
    if not all(text.isascii() and text.isdigit() for text in texts):
        raise UserError(f"{given}: these environment variables must be numbers; torchrun sets them")
    process = ProcessInfo(*map(int, texts))
    is_beyond = "LOCAL_WORLD_SIZE" in variables and process.local_rank >= process.local_world_size
    if is_beyond or process.rank >= process.world_size:
        raise UserError(f"{given}: a rank must be below the number of processes; torchrun sets these variables")
    return process
