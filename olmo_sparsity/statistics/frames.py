"""The numbers of one measurement as arrays, read part by part.

A million windows with six selectors, two contexts and four k take half a gigabyte: 4 bytes for each number.

Letters of shapes: W windows; S selections (a selector, context and k); N numbers of latest tokens; B blends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from olmo_sparsity.config import Lengths
from olmo_sparsity.errors import UserError
from olmo_sparsity.tables import RESAMPLED, lengths_of, list_rows, read_manifest, read_parts, run_again

CONTEXTS = ("real", "null")
PREFIX = {"real": "", "null": "null_"}  # of columns of ``windows`` that each context has
NUMBERS = (
    *("weight", "loss_short_nats", "loss_short_no_gap_nats", "loss_long_nats", "gain_long_nats", "null_gain_long_nats"),
    *("kl_short_nats", "null_kl_short_nats", "entropy_short_nats"),
)
LISTS = (
    "loss_last_nats",
    *(f"{prefix}{name}_damped_nats" for prefix in PREFIX.values() for name in ("loss", "kl")),
)
TEXTS = ("doc_id", "target_class")
OF_ALL_TOKENS = ("resampled_loss_short_nats", "resampled_loss_long_nats", "kl_short_to_long_nats")
GROUPS = {"real": "group_first", "null": "null_group_first"}
OF_SELECTION = ("gain_sparse_nats", "kl_sparse_nats")
QUANTILES = {"best": 1.0, "upper quarter": 0.75, "median": 0.5, "lower quarter": 0.25, "worst": 0.0}
OF_DRAW = ("gain_sparse_nats", "kl_short_to_sparse_nats")  # their sum is optimism

PartsOf = Callable[[str, list[str]], Iterable[pa.Table]]  # name of a table and of columns -> its parts


@dataclass(frozen=True)
class Frames:
    """The numbers of one measurement."""

    manifest: dict[str, Any]
    windows: (
        pd.DataFrame
    )  # rising window_id; doc_id, target_class, NUMBERS; optimism_all and train_overlap, NaN if unknown
    last_n: list[int]  # numbers of latest tokens
    lists: dict[str, np.ndarray]  # LISTS -> float32 [N or B, W]
    selections: pd.DataFrame  # S rows: selector, context, k
    gain: np.ndarray  # sparse gain, nats, float32 [S, W]
    divergence: np.ndarray  # KL(p_all, p_{J_k}), nats, float32 [S, W]
    optimism: np.ndarray  # nats, mean over the drawn labels, float32 [S, W]; NaN where it was not measured
    num_tokens: np.ndarray  # of J_k, float32 [S, W]; NaN [S, 1] where the unit is a token: it is k
    num_groups: dict[str, np.ndarray]  # by context: long-range tokens, or groups of them, int64 [W]
    selectors: pd.DataFrame  # by selector: sees_target, num_evaluations

    @cached_property
    def lengths(self) -> Lengths:
        """Lengths and positions of the experiment."""
        return lengths_of(self.manifest)

    @cached_property
    def ks(self) -> list[int]:
        """The measured k, rising."""
        return sorted(self.selections["k"].unique().tolist())

    @property
    def num_units(self) -> float:
        """Mean number of long-range tokens of a window, or of groups of them."""
        mean = float(np.average(self.num_groups["real"], weights=self.windows["weight"]))
        return round(mean, 6)  # without it a quarter of 12 may be less than 3

    def rows(self, selector: str, context: str) -> np.ndarray:
        """Rows of ``selections`` of one selector and context by rising k, int64 [K]; empty where it was not measured."""
        of = self.selections
        return np.flatnonzero((of["selector"] == selector) & (of["context"] == context))

    def restrict(self, keep: np.ndarray) -> Frames:
        """The frames of some windows; ``keep`` is bool [W]."""
        return replace(
            self,
            windows=self.windows[keep],
            lists={name: values[:, keep] for name, values in self.lists.items()},
            gain=self.gain[:, keep],
            divergence=self.divergence[:, keep],
            optimism=self.optimism[:, keep],
            num_tokens=self.num_tokens if self.num_tokens.shape[1] == 1 else self.num_tokens[:, keep],
            num_groups={context: of[keep] for context, of in self.num_groups.items()},
        )

    def take(self, places: Any) -> Frames:
        """The frames of some rows of ``selections``, in this order."""
        at = np.asarray(places, dtype=np.int64)
        names = ("gain", "divergence", "optimism", "num_tokens")
        rows = {name: getattr(self, name)[at] for name in names}
        return replace(self, selections=self.selections.iloc[at].reset_index(drop=True), **rows)

    def renamed(self, names: dict[str, str]) -> Frames:
        """The frames of some selectors under new names; ``names``: old -> new, for each to keep."""
        kept = self.take(np.flatnonzero(self.selections["selector"].isin(list(names))))
        return replace(
            kept,
            selections=kept.selections.replace({"selector": names}),
            selectors=self.selectors.loc[list(names)].rename(index=names),
        )


def read_frames(tables: Path) -> Frames:
    """Read the numbers of a finished measurement.

    Raises:
        UserError: the tables are missing, unfinished, of another schema, or some window lacks a selection.
    """
    manifest = read_manifest(tables)
    return frames_of(manifest, lambda table, columns: read_parts(tables, table, columns=columns), where=str(tables))


def frames_of(manifest: dict[str, Any], parts_of: PartsOf, *, where: str) -> Frames:
    """Gather the numbers of a measurement from its tables, wherever these are.

    Args:
        manifest: of the measurement.
        parts_of: gives the parts of a table with some of its columns.
        where: what the tables are called in errors.

    Raises:
        UserError: some window lacks a selection, or has one that others have not.
    """
    unit = manifest["influence"].get("unit", "token")
    groups = GROUPS if unit != "token" else {}
    windows, lists, counts, last_n = _windows(parts_of, groups)
    if not groups:
        counts = {context: np.full(len(windows), manifest["context"]["num_long_range"]) for context in CONTEXTS}
    per_k = (*OF_SELECTION, "num_tokens") if groups else OF_SELECTION
    gathered, drawn, selectors = _Gathered(windows, per_k), _Gathered(windows, OF_DRAW), _Selectors()
    columns = ["window_id", "selector", "context", "draw", "sees_target", "num_evaluations", "k"]
    for part in parts_of("selections", [*columns, *dict.fromkeys((*per_k, *OF_DRAW))]):
        try:
            gathered.add(part, CONTEXTS)
            drawn.add(part, tuple(RESAMPLED.values()))
        except KeyError:
            raise UserError(
                f"{where}: its parts belong to different measurements; {run_again('influence')}, with --overwrite"
            ) from None
        selectors.add(part)
    if not (gathered.is_complete and drawn.is_complete):
        raise UserError(f"{where}: some windows lack selections; {run_again('influence')}, with --overwrite")
    selections = gathered.selections()
    num_tokens = gathered.means("num_tokens") if groups else np.full((len(selections), 1), np.nan, np.float32)
    return Frames(
        manifest=manifest,
        windows=windows,
        last_n=last_n,
        lists=lists,
        selections=selections,
        gain=gathered.means("gain_sparse_nats"),
        divergence=gathered.means("kl_sparse_nats"),
        optimism=_optimism(drawn, selections, len(windows)),
        num_tokens=num_tokens,
        num_groups=counts,
        selectors=selectors.frame(),
    )


def _windows(
    parts_of: PartsOf, groups: dict[str, str]
) -> tuple[pd.DataFrame, dict[str, np.ndarray], dict[str, np.ndarray], list[int]]:
    """Return ``Frames.windows``, ``lists``, the numbers of groups by context, and ``last_n``."""
    names = ["window_id", *TEXTS, *NUMBERS, "train_overlap", *OF_ALL_TOKENS]
    parts = [
        part.replace_schema_metadata(None) for part in parts_of("windows", [*names, "last_n", *LISTS, *groups.values()])
    ]
    table = pa.concat_tables(parts).sort_by("window_id")
    windows = table.select(["window_id", *NUMBERS, "train_overlap"]).to_pandas()
    windows["train_overlap"] = windows["train_overlap"].astype("float32")
    windows["doc_id"] = pd.array(table["doc_id"].cast(pa.large_string()).combine_chunks(), "string[pyarrow]")
    windows["target_class"] = table["target_class"].dictionary_encode().to_pandas()
    windows["optimism_all"] = _optimism_of_all_tokens(table)
    lists = {name: np.ascontiguousarray(list_rows(table[name]).T) for name in LISTS}
    counts = {context: pc.list_value_length(table[name]).to_numpy() for context, name in groups.items()}
    return windows, lists, counts, table["last_n"][0].as_py() if len(table) else []


def _optimism_of_all_tokens(table: pa.Table) -> np.ndarray:
    """The optimism of showing all tokens, mean over the drawn labels, fp32 [W]; NaN where none were drawn."""
    loss_short_WA, loss_long_WA = (list_rows(table[name]) for name in OF_ALL_TOKENS[:2])
    if loss_short_WA.shape[1] == 0:
        return np.full(len(table), np.nan, dtype=np.float32)
    return (loss_short_WA - loss_long_WA).mean(axis=1) + table[OF_ALL_TOKENS[2]].to_numpy().astype(np.float32)


class _Gathered:
    """Sums over draws of columns of ``selections``, for every choice (selector and context), k and window."""

    def __init__(self, windows: pd.DataFrame, columns: tuple[str, ...]) -> None:
        self._known = windows["window_id"].to_numpy()
        self._choices: list[tuple[str, str]] = []
        self._ks: list[int] = []
        self._sums_FKW = {column: np.empty((0, 0, len(windows)), np.float32) for column in columns}
        self._draws_FW = np.empty((0, len(windows)), np.int32)

    def add(self, part: pa.Table, contexts: tuple[str, ...]) -> None:
        """Add the rows of some contexts; the choices of the first part are those of all.

        Raises:
            KeyError: a window or a choice is unknown.
        """
        part = part.filter(pc.field("context").isin(contexts))
        if len(part) == 0:
            return
        rows_R, draw_R = self._rows(part["window_id"].to_numpy()), part["draw"].to_numpy()
        values_RK = {column: list_rows(part[column]) for column in self._sums_FKW}
        choices = list(_rows_by_choice(part, contexts))
        if not self._choices:
            self._begin([(selector, context) for selector, context, _ in choices], part["k"][0].as_py())
        for selector, context, rows_r in choices:
            if (selector, context) not in self._choices:
                raise KeyError(selector)
            choice = self._choices.index((selector, context))
            for draw in np.unique(draw_R[rows_r]):  # no window has two rows of one draw
                of_draw_r = rows_r[draw_R[rows_r] == draw]
                for column, sums_FKW in self._sums_FKW.items():
                    sums_FKW[choice][:, rows_R[of_draw_r]] += values_RK[column][of_draw_r].T
                self._draws_FW[choice, rows_R[of_draw_r]] += 1

    def _begin(self, choices: list[tuple[str, str]], ks: list[int]) -> None:
        self._choices, self._ks, num_windows = choices, ks, len(self._known)
        for column in self._sums_FKW:
            self._sums_FKW[column] = np.zeros((len(choices), len(ks), num_windows), np.float32)
        self._draws_FW = np.zeros((len(choices), num_windows), np.int32)

    def _rows(self, window_ids: np.ndarray) -> np.ndarray:
        rows = np.searchsorted(self._known, window_ids).clip(max=len(self._known) - 1)
        if (self._known[rows] != window_ids).any():
            raise KeyError("window_id")
        return np.asarray(rows)

    @property
    def is_complete(self) -> bool:
        """True if all windows have all choices, each with the same number of draws."""
        return bool((self._draws_FW == self._draws_F[:, None]).all())

    @property
    def _draws_F(self) -> np.ndarray:
        """Draws of each choice; the null context has fewer."""
        return np.asarray(self._draws_FW.max(axis=1, initial=1))

    def selections(self) -> pd.DataFrame:
        rows = [(selector, context, k) for selector, context in self._choices for k in self._ks]
        return pd.DataFrame(rows, columns=["selector", "context", "k"])

    def means(self, column: str) -> np.ndarray:
        """Means over the draws, float32 [S, W]."""
        means_FKW = self._sums_FKW[column] / self._draws_F.astype(np.float32)[:, None, None]
        return means_FKW.reshape(-1, len(self._known))


def _optimism(drawn: _Gathered, selections: pd.DataFrame, num_windows: int) -> np.ndarray:
    """The sparse gain plus KL(p_{}, p_{J_k}), mean over the drawn labels, float32 [S, W]."""
    optimism = np.full((len(selections), num_windows), np.nan, np.float32)
    context_of = {resampled: context for context, resampled in RESAMPLED.items()}
    of_draws = drawn.selections().replace({"context": context_of})
    places = selections.reset_index().merge(of_draws, on=["selector", "context", "k"], how="right")["index"]
    optimism[places.to_numpy(np.int64)] = drawn.means(OF_DRAW[0]) + drawn.means(OF_DRAW[1])
    return optimism


class _Selectors:
    """Whether selectors see the target, and their mean cost over parts and contexts."""

    def __init__(self) -> None:
        self._sees_target: dict[str, bool] = {}
        self._costs: dict[str, list[float]] = {}

    def add(self, part: pa.Table) -> None:
        for selector, _, rows_r in _rows_by_choice(part, CONTEXTS):
            self._sees_target[selector] = part["sees_target"][int(rows_r[0])].as_py()
            cost = pc.mean(part["num_evaluations"].take(pa.array(rows_r))).as_py()
            self._costs.setdefault(selector, []).append(cost)

    def frame(self) -> pd.DataFrame:
        costs = {name: round(float(np.mean(of_parts))) for name, of_parts in self._costs.items()}
        return pd.DataFrame({"sees_target": self._sees_target, "num_evaluations": costs}).rename_axis("selector")


def _rows_by_choice(part: pa.Table, contexts: tuple[str, ...]) -> Iterator[tuple[str, str, np.ndarray]]:
    """The row numbers of each selector and context in a part of ``selections``, in order of first appearance."""
    frame = part.select(["selector", "context"]).to_pandas()
    for (selector, context), rows in frame.groupby(["selector", "context"], sort=False):
        if context in contexts:
            yield selector, context, rows.index.to_numpy()


def read_windows(tables: Path, columns: Optional[list[str]] = None) -> pd.DataFrame:
    """The table ``windows`` by rising window_id."""
    return pa.concat_tables(read_parts(tables, "windows", columns=columns)).sort_by("window_id").to_pandas()


def read_sparse_gains(tables: Path, selector: str, ks: Sequence[int]) -> pd.DataFrame:
    """The sparse gains of a selector under the real context, a column for each k, by rising window_id."""
    is_wanted = (pc.field("selector") == selector) & (pc.field("context") == "real")
    columns = ["window_id", "selector", "context", "k", "gain_sparse_nats"]
    rows = pa.concat_tables(part.filter(is_wanted) for part in read_parts(tables, "selections", columns=columns))
    gains = pd.DataFrame(list_rows(rows["gain_sparse_nats"]), rows["window_id"].to_numpy(), rows["k"][0].as_py())
    return gains[list(ks)].sort_index()


def five_windows(tables: Path, selector: str, k: int) -> dict[str, int]:
    """Windows at five quantiles of a selector's sparse gain at k, by their names in ``QUANTILES``; ties: the first."""
    windows = read_sparse_gains(tables, selector, [k])[k].sort_values(kind="stable").index
    return {name: int(windows[round(share * (len(windows) - 1))]) for name, share in QUANTILES.items()}
