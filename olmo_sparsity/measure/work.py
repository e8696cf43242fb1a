"""Which parts of a measurement each of several processes measures: a function of the command line alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.torchrun import current_process


@dataclass(frozen=True)
class Share:
    """What one of ``count`` processes measures: the parts whose number leaves ``index`` when divided by ``count``.

    Shares are not ranges of parts. A folder that one process began has its missing parts at the end, and if several
    processes continue it, each of them still gets as many.

    ``is_leader`` is False where another process of the same terminal prints the messages and results.
    """

    index: int = 0
    count: int = 1
    is_leader: bool = True


WHOLE = Share()  # all parts, measured by one process


def share_of_process(shard: Optional[str], *, overwrite: bool, variables: Mapping[str, str] = os.environ) -> Share:
    """Return the share of this process: ``--shard I/N``, split further among the processes of torchrun.

    Args:
        shard: ``I/N``, or None for all parts.
        overwrite: True if ``--overwrite`` was given.
        variables: the environment, with the variables of torchrun.

    Raises:
        UserError: these contradict one another, or several processes would overwrite one another's parts.
    """
    index, count = 0, 1
    if shard is not None:
        match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", shard)
        index, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if index >= count:
            raise UserError(
                f"--shard {shard}: must be I/N, with I from 0 to N - 1; for example, 0/2 and 1/2 for two processes"
            )
    process = current_process(variables)
    share = Share(index * process.world_size + process.rank, count * process.world_size, is_leader=process.is_leader)
    if overwrite and share.count > 1:
        raise UserError(
            f"--overwrite: with {share.count} processes, each would delete what the others measure; delete the folder, or "
            "choose another with --out DIR"
        )
    return share
