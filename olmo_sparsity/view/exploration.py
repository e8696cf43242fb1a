"""A whole document explored: every token as a target, as one compact record, and as one self-contained HTML page that shows it.

Shape letters: W targets; M long-range positions; K measured k.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import msgspec
import numpy as np
import pyarrow as pa

from olmo_sparsity.errors import printable
from olmo_sparsity.records.measured import NullContext
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.single.measurement import LONG_GAIN, SHORT_DIVERGENCE
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.statistics.single.spectrum import TOLERANCE, TOLERANCES, sufficient_k
from olmo_sparsity.tables.reading import list_rows
from olmo_sparsity.text.places import EncodedText
from olmo_sparsity.view import pages
from olmo_sparsity.view.excerpts import optimism_of, ranks_of
from olmo_sparsity.view.one_window import SEES_TARGET
from olmo_sparsity.wording.exploration import DOCUMENT_GATE_WORDS, found_words, unmeasured_words
from olmo_sparsity.wording.setup import NULL_WORDS, setup_words
from olmo_sparsity.wording.tokens import unseen_words
from olmo_sparsity.wording.units import entry_words, unit_words

DIGITS = 7  # behind the point, of numbers in the record: half of 1e-7 nats is below the rounding of fp32
FRAME_HEIGHT = 900  # of the page in a notebook, in pixels
LONG_LOSS = {"real": "loss_long_nats", "null": "null_loss_long_nats"}
SELECTION_COLUMNS = ("window_id", "selector", "context", "positions", "loss_sparse_nats", "kl_sparse_nats")
GROUP_COLUMNS = ("group_first", "group_last")
OPTIMISM_COLUMNS = ("k", "sees_target", "gain_sparse_nats", "kl_short_to_sparse_nats")

Numbers = list[Optional[float]]  # in nats, rounded; None where a number is not finite


class ExploredChoices(msgspec.Struct, frozen=True):
    """What one selector chose under one context, an entry a target.

    Attributes:
        distances: how many tokens before the target each chosen token stands, the most influential first.
        ranks: the rank of each of these, or of its group, from 1; None: 1, 2, 3, ...
        loss_sparse_nats: loss with the local tokens and J_k visible, one a k.
        kl_sparse_nats: KL(p_all, p_{J_k}), one a k.
    """

    distances: list[list[int]]
    ranks: Optional[list[list[int]]]
    loss_sparse_nats: list[Numbers]
    kl_sparse_nats: list[Numbers]


class ExploredContext(msgspec.Struct, frozen=True):
    """The targets under one context.

    Attributes:
        loss_long_nats: L_long of each target.
        kl_short_nats: KL(p_all, p_{}) of each target: its reaction to the long context, useful or not; no label enters.
        choices: by the name of the selector.
    """

    loss_long_nats: Numbers
    kl_short_nats: Numbers
    choices: dict[str, ExploredChoices]


class ExploredSelector(msgspec.Struct, frozen=True):
    """A measured selector: its name, whether it sees the target, and if so the optimism of its choice, one a target and k."""

    name: str
    sees_target: bool
    optimism_nats: Optional[list[Optional[Numbers]]]


class Record(msgspec.Struct, frozen=True):
    """A document with all that was measured of it.

    Attributes:
        texts: what each token shows; together they are the document, with marks for line breaks and control characters.
        offsets: index in the document of each token's first character that is no white space.
        first_target: index of the first token that follows a full window. It and all behind it are the targets.
        local_len: L.
        full_len: tokens of a window.
        unit: what k counts, in the singular and the plural.
        ks: the measured k.
        tolerances_nats: what the page offers as the divergence at which tokens suffice, and the one that it begins with.
        selectors: the measured selectors; the page begins with the first two.
        loss_short_nats: L_short of each target.
        contexts: real and null.
        null_begins: index among the tokens of the document of the first long-range token of each target's null context.
        null_orders: index of each of these tokens, from that one on; None: 0 .. M-1.
        unseen: what stands for each text of which nothing can be seen.
    """

    texts: list[str]
    offsets: list[int]
    first_target: int
    local_len: int
    full_len: int
    unit: tuple[str, str]
    ks: list[int]
    tolerances_nats: tuple[list[float], float]
    selectors: list[ExploredSelector]
    loss_short_nats: Numbers
    contexts: dict[str, ExploredContext]
    null_begins: list[int]
    null_orders: list[Optional[list[int]]]
    unseen: dict[str, str]

    @property
    def num_targets(self) -> int:
        """Number of tokens that follow a full window."""
        return len(self.loss_short_nats)

    def sufficient_k(self, selector: str, context: str = "real", *, tolerance: float = TOLERANCE) -> np.ndarray:
        """Return the smallest measured k that suffices for each target, float64 [W] (``statistics.single.spectrum``)."""
        of_context = self.contexts[context]
        return sufficient_k(
            np.array(of_context.choices[selector].kl_sparse_nats, dtype=np.float64),
            np.array(of_context.kl_short_nats, dtype=np.float64),
            ks=self.ks,
            tolerance=tolerance,
        )


@dataclass(frozen=True)
class Exploration:
    """A whole document, and what selectors chose before each of its tokens.

    Attributes:
        source: name of the document.
        run: name of the run, or of the folder of a model's results.
        setup: the model, the definition of visible and the anchor.
        null_context: what the null context is.
        record: the document and its numbers.
    """

    source: str
    run: str
    setup: ModelSetup
    null_context: NullContext
    record: Record

    @property
    def found(self) -> str:
        """What was found, in one sentence without its full stop."""
        record, selector = self.record, self.record.selectors[0].name
        return found_words(
            self.source,
            record.sufficient_k(selector),
            ks=record.ks,
            selector=selector,
            tolerance=TOLERANCE,
            unit=record.unit,
        )

    @property
    def gate(self) -> str:
        """What one document cannot tell, in words."""
        return DOCUMENT_GATE_WORDS

    def to_html(self) -> str:
        """Return one self-contained HTML page; it loads nothing and sends nothing."""
        return pages.render(
            "explore.html",
            styles=("report.css", "explore.css"),
            scripts=("draw.js", "explore-layout.js", "explore-map.js", "explore.js"),
            selectors=[one.name for one in self.record.selectors],
            data=msgspec.to_builtins(self.record),
            exploration=self,
            record=self.record,
            facts=self._facts(),
            gate=self.gate,
            sees=SEES_TARGET,
            many=self.record.unit[1],
            entry_words=entry_words(self.setup.visibility),
            unmeasured=unmeasured_words(self.record.first_target, len(self.record.texts)),
        )

    def save_html(self, out: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``to_html`` into a file.

        Raises:
            UserError: the file exists, and ``overwrite`` is False or this tool did not write it.
        """
        return pages.write_page(Path(os.path.expanduser(out)), self.to_html(), overwrite=overwrite)

    def _facts(self) -> list[tuple[str, str]]:
        """Return what was measured, as names and values."""
        record = self.record
        far = record.full_len - record.local_len
        return [
            ("Measured", setup_words(self.run, self.setup)),
            ("Targets", f"{record.num_targets:,} of the {len(record.texts):,} tokens of {self.source}"),
            ("Lengths", f"local {record.local_len} + long-range {far} = full {record.full_len} tokens"),
            ("Null context", NULL_WORDS[self.null_context]),
        ]

    def __repr__(self) -> str:
        names = ", ".join(selector.name for selector in self.record.selectors)
        return f"Exploration({self.record.num_targets:,} targets of {self.source}, selectors {names})"

    def _repr_html_(self) -> str:
        return pages.frame(self.to_html(), height=FRAME_HEIGHT)


def record_of(
    windows: pa.Table,
    selections: pa.Table,
    *,
    encoded: EncodedText,
    null_places_WM: np.ndarray,
    local_len: int,
    unit: str,
    setup: ModelSetup,
    selectors: list[str],
) -> Record:
    """Return the record of a document whose every target is one window, in the order of the text.

    Args:
        windows: the table ``windows``.
        selections: the table ``selections``.
        encoded: the document.
        null_places_WM: int64; which tokens of the document take the place of the long-range ones in the null context.
        local_len: L.
        unit: what k counts, as ``influence.unit`` names it.
        setup: the definition of visible tells what the unit is called.
        selectors: their names, in the order in which the page offers them.
    """
    full_len = len(encoded) - len(windows)
    windows = windows.sort_by("window_id")
    rows = _rows_by_choice(selections, has_groups=unit != "token")
    begins_W = null_places_WM.min(axis=1)
    orders_WM = null_places_WM - begins_W[:, None]
    in_order = np.arange(null_places_WM.shape[1])
    ks = selections["k"][0].as_py()
    return Record(
        texts=[printable(piece) for piece in encoded.pieces],
        offsets=[encoded.begin_of(token) for token in range(len(encoded))],
        first_target=full_len,
        local_len=local_len,
        full_len=full_len,
        unit=(unit_words(unit, setup.visibility, 1), unit_words(unit, setup.visibility)),
        ks=ks,
        tolerances_nats=(list(TOLERANCES), TOLERANCE),
        selectors=[
            ExploredSelector(name, SELECTORS[name].sees_target, _optimism(windows, selections, selector=name))
            for name in selectors
        ],
        loss_short_nats=_numbers(windows["loss_short_nats"].to_numpy()),
        contexts={
            context: ExploredContext(
                loss_long_nats=_numbers(windows[LONG_LOSS[context]].to_numpy()),
                kl_short_nats=_numbers(windows[SHORT_DIVERGENCE[context]].to_numpy()),
                choices={
                    name: _choices(rows[name, context], full_len=full_len, has_groups=unit != "token")
                    for name in selectors
                },
            )
            for context in LONG_GAIN
        },
        null_begins=begins_W.tolist(),
        null_orders=[None if (order_M == in_order).all() else order_M.tolist() for order_M in orders_WM],
        unseen=unseen_words(encoded.pieces),
    )


def _rows_by_choice(selections: pa.Table, *, has_groups: bool) -> dict[tuple[str, str], pa.Table]:
    """Return the rows of each selector and context, a row a target, in their order."""
    table = selections.select([*SELECTION_COLUMNS, *(GROUP_COLUMNS if has_groups else ())]).sort_by("window_id")
    names, contexts = (table[name].to_numpy(zero_copy_only=False) for name in ("selector", "context"))
    return {
        (name, context): table.filter(pa.array((names == name) & (contexts == context)))
        for name in set(names.tolist())
        for context in LONG_GAIN
    }


def _choices(rows: pa.Table, *, full_len: int, has_groups: bool) -> ExploredChoices:
    loss_WK, kl_WK = (list_rows(rows[name]) for name in ("loss_sparse_nats", "kl_sparse_nats"))
    return ExploredChoices(
        distances=[[full_len - position for position in positions] for positions in rows["positions"].to_pylist()],
        ranks=[ranks_of(row) for row in rows.select(["positions", *GROUP_COLUMNS]).to_pylist()] if has_groups else None,
        loss_sparse_nats=[_numbers(loss_K) for loss_K in loss_WK],
        kl_sparse_nats=[_numbers(kl_K) for kl_K in kl_WK],
    )


def _optimism(windows: pa.Table, selections: pa.Table, *, selector: str) -> Optional[list[Optional[Numbers]]]:
    """Return the optimism of a selector's choice, one a target and k; None of one that does not see the target."""
    if not SELECTORS[selector].sees_target:
        return None
    of_window: list[list[dict[str, Any]]] = [[] for _ in range(len(windows))]
    for row in selections.select(["window_id", "selector", "context", *OPTIMISM_COLUMNS]).to_pylist():
        if row["selector"] == selector:
            of_window[row["window_id"]].append(row)
    found = [optimism_of(rows).get(selector) for rows in of_window]
    return [None if values is None else _numbers(np.array(values)) for values in found]


def _numbers(values: np.ndarray) -> Numbers:
    rounded: Numbers = np.round(values.astype(np.float64), DIGITS).tolist()
    return rounded if np.isfinite(values).all() else [value if np.isfinite(value) else None for value in rounded]  # type: ignore[arg-type]
