"""The windows that are shown: their words, their losses, and what each selector chose in them.

Everything is read from the tables and the tokenizer beside them, which joins characters that span tokens. Without one, tokens
have the texts that the tables hold, each decoded on its own; those of null contexts are taken from windows that hold the same
IDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import CONTROLS, main_among
from olmo_sparsity.statistics.single.measured_tokenizer import tokenizer_of, window_texts
from olmo_sparsity.statistics.single.measurement import LONG_GAIN, Measurement
from olmo_sparsity.tables.reading import read_parts, read_windows
from olmo_sparsity.tables.schemas import RESAMPLED
from olmo_sparsity.text.units import shown_texts

GROUP_FIRST = {"real": "group_first", "null": "null_group_first"}  # columns of ``windows``


@dataclass(frozen=True)
class Choice:
    """What one selector chose in one window and context.

    Attributes:
        positions: the chosen long-range positions, the most influential first; of groups all positions of each.
        ranks: the rank of each of these, or of its group, from 1; J_k are those of rank k or less.
        scores: the score of every long-range position, or of its group; None where it has none.
        ks: the measured k.
        loss_sparse_nats: loss with the local tokens and J_k visible, one a k.
        gain_sparse_nats: sparse gain, one a k.
    """

    positions: list[int]
    ranks: list[int]
    scores: list[Optional[float]]
    ks: list[int]
    loss_sparse_nats: list[float]
    gain_sparse_nats: list[float]

    @classmethod
    def from_row(cls, row: dict[str, Any], group_first: Optional[list[int]], *, num_long_range: int) -> Choice:
        """Read a choice from its row of the table ``selections``.

        Args:
            row: the row.
            group_first: first position of each group of the window; None: every token is one.
            num_long_range: M.
        """
        scores, ranks = row["scores"], ranks_of(row)
        if group_first is not None:
            sizes = [end - begin for begin, end in pairwise([*group_first, num_long_range])]
            scores = [score for score, size in zip(scores, sizes, strict=True) for _ in range(size)]
        return cls(row["positions"], ranks, scores, row["k"], row["loss_sparse_nats"], row["gain_sparse_nats"])

    def loss_at(self, k: int) -> Optional[float]:
        """Return the loss at this k, or None where it was not measured."""
        return dict(zip(self.ks, self.loss_sparse_nats, strict=True)).get(k)

    @property
    def largest_score(self) -> float:
        """The largest absolute score, or 1 where all are 0."""
        return max((abs(score) for score in self.scores if score is not None), default=0.0) or 1.0


def ranks_of(row: dict[str, Any]) -> list[int]:
    """Return the rank of each chosen position, or of its group, from 1; ``row``: of the table ``selections``."""
    if row.get("group_first") is None:
        return list(range(1, len(row["positions"]) + 1))
    sizes = [last - first + 1 for first, last in zip(row["group_first"], row["group_last"], strict=True)]
    return [rank for rank, size in enumerate(sizes, start=1) for _ in range(size)]


@dataclass(frozen=True)
class Excerpt:
    """A window as it is shown; fields as in the table ``windows``.

    Attributes:
        token_texts: texts of the tokens as they are shown (``text.units.shown_texts``); so are those of the other fields.
        null_token_texts: texts of the M long-range tokens of the null context; without a tokenizer ``#ID`` for an ID that no
            window holds.
        selections: the choice of each selector and context, real or null.
        optimism_nats: of each selector that sees the target, the optimism of its choice in the real context, one a k: the mean
            over the resampled targets of sparse gain + KL(p_{}, p_{J_k}).
    """

    window_id: int
    doc_id: str
    source: str
    start_token: int
    target_class: str
    token_texts: list[str]
    target_text: str
    null_doc_id: str
    null_token_texts: list[str]
    loss_short_nats: float
    loss_long_nats: float
    null_loss_long_nats: float
    gain_long_nats: float
    null_gain_long_nats: float
    selections: dict[tuple[str, str], Choice]
    optimism_nats: dict[str, list[float]]

    def loss_at(self, selector: str, context: str, *, k: int) -> Optional[float]:
        """Return the loss with the local tokens and J_k visible; None where this k was not measured."""
        return self.loss_short_nats if k == 0 else self.selections[selector, context].loss_at(k)

    def optimism_at(self, selector: str, *, k: int) -> Optional[float]:
        """Return the optimism of a choice; None for a selector that does not see the target, and where it was not measured."""
        if selector not in self.optimism_nats:
            return None
        return dict(zip(self.selections[selector, "real"].ks, self.optimism_nats[selector], strict=True)).get(k)


def shown_first(measurement: Measurement) -> str:
    """Return the selector to show by default: one that does not see the target, if one was measured."""
    names = list(measurement.selectors)
    blind = [name for name in names if not measurement.selectors[name].sees_target and name not in CONTROLS]
    main = main_among(blind)
    return next(iter((*main, *blind, *names)))


def choose_windows(
    measurement: Measurement, number: int, *, num_largest: int, seed: int
) -> tuple[list[int], list[int]]:
    """Choose the windows to show, by a rule and not by eye.

    Args:
        measurement: the windows.
        number: size of a uniform sample without replacement; all windows, if there are no more.
        num_largest: how many of the other windows to add, those with the largest long gains.
        seed: of the sample.

    Returns:
        ``window_id`` of the random sample, rising, and of the added windows, the largest long gain first.
    """
    windows = measurement.windows
    if len(windows) <= number:
        return windows["window_id"].tolist(), []
    drawn = np.sort(np.random.default_rng(seed).choice(len(windows), number, replace=False))
    others = windows.drop(index=windows.index[drawn])
    largest = others.sort_values("gain_long_nats", ascending=False, kind="stable")["window_id"].head(num_largest)
    return windows["window_id"].iloc[drawn].tolist(), largest.tolist()


def _texts_of(folder: Path, token_ids: set[int]) -> dict[int, str]:
    """Return the texts of tokens that some window holds; reads only until all are found."""
    texts: dict[int, str] = {}
    for part in read_parts(folder, "windows", columns=["token_ids", "token_texts"]):
        part_ids, part_texts = (pc.list_flatten(part[name]) for name in ("token_ids", "token_texts"))
        missing = pc.is_in(part_ids, pa.array(sorted(token_ids - set(texts)), pa.int32()))
        new_ids, new_texts = (values.filter(missing).to_pylist() for values in (part_ids, part_texts))
        texts |= dict(zip(new_ids, new_texts, strict=True))
        if len(texts) == len(token_ids):
            break
    return texts


def read_excerpts(folder: Path, window_ids: Sequence[int]) -> list[Excerpt]:
    """Read windows, in the given order.

    Raises:
        UserError: there is no such window, or the tables are damaged.
    """
    rows = {row["window_id"]: row for row in read_windows(folder, "windows", window_ids=window_ids)}
    for window_id in window_ids:
        if window_id not in rows:
            known = np.concatenate(
                [part["window_id"].to_numpy() for part in read_parts(folder, "windows", columns=["window_id"])]
            )
            raise UserError(
                f"{folder}: there is no window {window_id}; they are numbered {known.min()} to {known.max()}"
            )
    tokenizer, texts = tokenizer_of(folder), {}
    if tokenizer is None:
        texts = _texts_of(folder, {token_id for row in rows.values() for token_id in row["null_token_ids"]})
    selections: dict[int, list[dict[str, Any]]] = {window_id: [] for window_id in rows}
    for row in read_windows(folder, "selections", window_ids=window_ids):
        selections[row["window_id"]].append(row)
    return [
        excerpt_of_rows(rows[window_id], selections[window_id], tokenizer=tokenizer, texts=texts)
        for window_id in window_ids
    ]


def excerpt_of_rows(
    row: dict[str, Any],
    selections: list[dict[str, Any]],
    *,
    tokenizer: Optional[Tokenizer],
    texts: Optional[dict[int, str]] = None,
) -> Excerpt:
    """Return one window as it is shown.

    Args:
        row: its row of ``windows``.
        selections: its rows of ``selections``.
        tokenizer: of the window; None: there is none, and tokens have the texts of the table.
        texts: without a tokenizer, the text of each token ID of the null context; those that are not known are shown as ``#ID``.
    """
    *token_texts, target_text = window_texts(row, tokenizer)
    null_ids = row["null_token_ids"]
    if tokenizer is None:
        null_texts = [(texts or {}).get(token_id, f"#{token_id}") for token_id in null_ids]
    else:
        null_texts = shown_texts(tokenizer, null_ids)
    return Excerpt(
        window_id=row["window_id"],
        doc_id=row["doc_id"],
        source=row["source"],
        start_token=row["start_token"],
        target_class=row["target_class"],
        token_texts=token_texts,
        target_text=target_text,
        null_doc_id=row["null_doc_id"],
        null_token_texts=null_texts,
        loss_short_nats=row["loss_short_nats"],
        loss_long_nats=row["loss_long_nats"],
        null_loss_long_nats=row["null_loss_long_nats"],
        gain_long_nats=row["gain_long_nats"],
        null_gain_long_nats=row["null_gain_long_nats"],
        selections={
            (choice["selector"], choice["context"]): Choice.from_row(
                choice, row.get(GROUP_FIRST[choice["context"]]), num_long_range=len(row["null_token_ids"])
            )
            for choice in selections
            if choice["context"] in LONG_GAIN
        },
        optimism_nats=optimism_of(selections),
    )


def optimism_of(selections: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Return the optimism of each selector that sees the target, one a k; none of tables that do not hold it."""
    of_draws: dict[str, list[np.ndarray]] = {}
    for row in selections:
        costs_K = row["kl_short_to_sparse_nats"]
        if row["context"] == RESAMPLED["real"] and row["sees_target"] and costs_K is not None:
            of_draws.setdefault(row["selector"], []).append(np.add(row["gain_sparse_nats"], costs_K))
    return {name: np.mean(values, axis=0).tolist() for name, values in of_draws.items()}
