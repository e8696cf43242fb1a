"""The share of a measurement that one of several processes measures."""

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

    Every count-th part rather than a range of them: a folder that one process began and several go on with has its
    missing parts at the end, and each of the several still gets as many.

    ``is_leader`` is False where another process of the same terminal does the talking.
    """

    index: int = 0
    count: int = 1
    is_leader: bool = True


WHOLE = Share()


def share_of_process(shard: Optional[str], overwrite: bool, variables: Mapping[str, str] = os.environ) -> Share:
    """The share of this process: ``--shard I/N``, split further among the processes of torchrun.

    Raises:
        UserError: these do not fit, or ``overwrite`` was asked for, by which each process would delete the others' work.
    """
    index, count = 0, 1
    if shard is not None:
        found = re.fullmatch(r"(\d+)/(\d+)", shard)
        index, count = (int(found[1]), int(found[2])) if found else (0, 0)
        if index >= count:
            raise UserError(f"--shard {shard}: I/N, with I from 0 to N - 1; a measurement in two has 0/2 and 1/2")
    place = current_process(variables)
    share = Share(index * place.count + place.rank, count * place.count, is_leader=place.is_leader)
    if overwrite and share.count > 1:
        raise UserError(
            f"--overwrite: one of {share.count} processes would delete what the others measure; delete the folder, or "
            "choose another with --out DIR"
        )
    return share
