"""Windows to be looked at: which of them, their words, what each selector chose in them. Imports no torch.

What a page or a terminal shows of a window is read from the tables alone. Null contexts are stored as token ids; their
texts are those that the same ids have in the windows.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.measurement import Measurement
from olmo_sparsity.tables.reading import read_parts, read_windows

CONTROLS = ("random", "nearest")
HONEST_FIRST = ("kl", "attention")  # shown first: what they gain over random is no luck
MARKS = {" ": " ", "\n": "\u21b5", "\r": "\u21b5", "\t": "\u2192", "\u2028": "\u21b5", "\u2029": "\u21b5"}


def printable(text: str) -> str:
    """A text in one line, as it may be shown anywhere: line breaks and tabs are arrows, other control characters, marks that
    turn the direction of writing among them, U+FFFD."""
    return "".join(MARKS.get(c, c if unicodedata.category(c)[0] != "C" else "\ufffd") for c in text)


def shown_first(measurement: Measurement) -> str:
    """The selector to show where none is asked for: one that does not see the target, where one was measured."""
    names = list(measurement.selectors)
    blind = [name for name in names if not measurement.selectors[name]["sees_target"] and name not in CONTROLS]
    return next(name for name in (*HONEST_FIRST, *blind, *names) if name in names)


def choose_windows(measurement: Measurement, number: int, num_largest: int, seed: int) -> tuple[list[int], list[int]]:
    """Which windows to show: a rule, not an eye, picks them.

    Args:
        measurement: of which windows.
        number: so many drawn uniformly without replacement; all, where there are no more.
        num_largest: so many more, those of the others with the largest long gains (none where all are shown).
        seed: of the draw.

    Returns:
        (``window_id`` of the random sample, rising; those of the largest, the largest first).
    """
    windows = measurement.windows
    if len(windows) <= number:
        return windows["window_id"].tolist(), []
    drawn = np.sort(np.random.default_rng(seed).choice(len(windows), number, replace=False))
    others = windows.drop(index=windows.index[drawn])
    largest = others.sort_values("gain_long_nats", ascending=False, kind="stable")["window_id"].head(num_largest)
    return windows["window_id"].iloc[drawn].tolist(), largest.tolist()


def _texts_of(folder: Path, token_ids: set[int]) -> dict[int, str]:
    """The texts of tokens, as far as some window holds them; read until all are found."""
    texts: dict[int, str] = {}
    for part in read_parts(folder, "windows", columns=["token_ids", "token_texts"]):
        ids, of = (pc.list_flatten(part[name]) for name in ("token_ids", "token_texts"))
        missing = pc.is_in(ids, pa.array(sorted(token_ids - set(texts)), pa.int32()))
        texts |= dict(zip(ids.filter(missing).to_pylist(), of.filter(missing).to_pylist(), strict=True))
        if len(texts) == len(token_ids):
            break
    return texts


def read_excerpts(folder: Path, window_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Windows as they are shown, in the order asked for.

    Returns:
        For each its row of the ``windows`` table, with ``null_token_texts`` (M texts; an id that no window holds is shown as
        #ID), and ``selections``: (selector, context) -> its row of the ``selections`` table.

    Raises:
        UserError: there is no such window, or the tables are damaged.
    """
    windows = {row["window_id"]: row for row in read_windows(folder, "windows", window_ids=window_ids)}
    for window_id in window_ids:
        if window_id not in windows:
            known = np.concatenate(
                [part["window_id"].to_numpy() for part in read_parts(folder, "windows", columns=["window_id"])]
            )
            raise UserError(
                f"{folder}: there is no window {window_id}; they are numbered {known.min()} to {known.max()}"
            )
    texts = _texts_of(folder, {i for row in windows.values() for i in row["null_token_ids"]})
    for row in windows.values():
        row["null_token_texts"] = [texts.get(i, f"#{i}") for i in row["null_token_ids"]]
        row["selections"] = {}
    for row in read_windows(folder, "selections", window_ids=window_ids):
        windows[row["window_id"]]["selections"][row["selector"], row["context"]] = row
    return [windows[window_id] for window_id in window_ids]


def loss_at(selection: dict[str, Any], loss_short: float, k: int) -> Optional[float]:
    """Loss of the target with the local tokens and J_k visible; None where this k was not measured."""
    if k == 0:
        return loss_short
    losses: dict[int, float] = dict(zip(selection["k"], selection["loss_sparse_nats"], strict=True))
    return losses.get(k)
