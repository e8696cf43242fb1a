"""How the work of a measurement is cut: into parts, by the tokens that a window takes, and into the shares of processes.

Both are functions of the configuration and the command line alone, so that every process cuts a measurement into the same parts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.measured import MeasuredLengths
from olmo_sparsity.records.selectors import (
    NULL_DRAWS,
    SELECTORS,
    ScoringSize,
    names_where,
    needs_of,
)
from olmo_sparsity.records.window_input import needs_pass
from olmo_sparsity.torchrun import current_process

TOKENS_PER_PART = 2**19  # minutes on a CPU for a model of 100M parameters; less than a second on a large GPU


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


def part_size(windows_per_part: int, tokens_per_window: int) -> int:
    """Return the number of windows of one part: at least one."""
    return max(1, min(windows_per_part, TOKENS_PER_PART // tokens_per_window))


def tokens_of_influence(settings: InfluenceConfig, lengths: MeasuredLengths) -> int:
    """Return about how many tokens the model runs for a window of ``olmo-sparsity influence``, under both contexts.

    Args:
        settings: what is measured.
        lengths: of the windows.
    """
    seeing = names_where(lambda selector: selector.sees_target, settings.selectors)
    real = _tokens_of_choices(settings, lengths, settings.selectors)
    prefix = lengths.num_long_range if settings.visibility == "contextual" else 0  # once for all rows of a window
    long = lengths.local_len if prefix else lengths.full_len
    tokens = 2 * (real + long + prefix) + lengths.local_len + sum(lengths.last_n) - lengths.full_len
    draws = settings.resampled_draws + min(NULL_DRAWS, settings.resampled_draws)
    tokens += draws * _tokens_of_choices(settings, lengths, seeing, is_shared=True)
    return tokens


def _tokens_of_choices(
    settings: InfluenceConfig, lengths: MeasuredLengths, selectors: list[str], *, is_shared: bool = False
) -> int:
    """Return the tokens that selectors and the sets they choose take under one context, for one label.

    Args:
        settings: what is measured.
        lengths: of the windows.
        selectors: the selectors.
        is_shared: the unmaskings of single tokens have been evaluated for another label.
    """
    local, many = lengths.local_len, lengths.num_long_range
    total = sum(SELECTORS[name].num_tokens(settings, lengths) for name in selectors)
    if needs_pass(needs_of(selectors)):
        total += lengths.full_len  # one pass serves all of them
    if any(SELECTORS[name].singles for name in selectors) and not is_shared:
        total += many * (local + 1)  # one pass serves all of them
    tokens_of_sets = sum(local + (k if settings.visibility == "hidden" else 0) for k in settings.k if k < many)
    return total + len(selectors) * tokens_of_sets


def num_evaluations(name: str, num_groups: int, *, settings: InfluenceConfig) -> int:
    """Return what a selector's scores cost in a window, in forward passes over one row."""
    size = ScoringSize(num_groups, max_k=min(max(settings.k), num_groups), lasso_masks=settings.lasso_masks)
    return SELECTORS[name].num_evaluations(size)
