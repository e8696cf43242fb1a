"""The numbers of an influence folder, loaded for statistics and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.measured import Estimand as Estimand
from olmo_sparsity.records.measured import Lengths as Lengths
from olmo_sparsity.records.measured import NullContext as NullContext
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.tables.reading import OVERWRITES, list_rows, read_manifest, read_parts, rows_by_choice, run_again
from olmo_sparsity.tables.schemas import RESAMPLED

CONTEXTS = ("real", "null")
SAME_WINDOWS = ("tokens_sha256", "windows_sha256")  # keys of the manifest, equal where the windows are the same
# Columns of ``windows`` that belong to a context.
LONG_GAIN = {"real": "gain_long_nats", "null": "null_gain_long_nats"}
SHORT_DIVERGENCE = {"real": "kl_short_nats", "null": "null_kl_short_nats"}
OF_ROW = ("loss_train_len_nats", "loss_train_len_no_gap_nats")  # null where no training row is known
NUMBERS = (
    *("loss_short_nats", "loss_long_nats", "loss_short_no_gap_nats", *OF_ROW, *LONG_GAIN.values()),
    *("kl_short_nats", "null_kl_short_nats", "entropy_short_nats"),
)
CLASS_COLUMNS = ("target_class", "null_target_class")
OF_ALL_TOKENS = ("resampled_loss_short_nats", "resampled_loss_long_nats", "kl_short_to_long_nats")
AT_EVERY_K = ("gain_sparse_nats", "kl_sparse_nats")
AT_EVERY_K_OF_DRAW = ("gain_sparse_nats", "kl_short_to_sparse_nats")  # their sum is optimism
SELECTION_COLUMNS = [
    *("window_id", "selector", "context", "draw", "sees_target", "num_evaluations", "k"),
    *dict.fromkeys((*AT_EVERY_K, *AT_EVERY_K_OF_DRAW)),
]

PartsOf = Callable[[str, list[str]], Iterable[pa.Table]]  # name of a table and of columns -> its parts


class SelectionKey(NamedTuple):
    """What a selection is named by. A tuple, since pandas names columns of several levels by tuples.

    Attributes:
        selector: name of the selector.
        context: ``real`` or ``null``.
        k: number of unmasked long-range tokens, or groups of them.
    """

    selector: str
    context: str
    k: int


@dataclass(frozen=True)
class SelectorInfo:
    """What is known of a selector before it is measured.

    Attributes:
        sees_target: True if its scores depend on the target, so that part of its gain is optimism.
        num_evaluations: cost of one window's scores, in forward passes over one row; of groups the mean, rounded.
    """

    sees_target: bool
    num_evaluations: int


@dataclass(frozen=True)
class Measurement:
    """What statistics and figures read from one influence folder.

    Attributes:
        windows: one row a window, by rising ``window_id``; columns window_id, doc_id, target_class, null_target_class, losses,
            gains and divergences in nats, ``weight`` in every mean, and ``train_overlap`` where it is known. The columns
            ``OF_ROW`` are there where a training row is known, and optimism_all_nats, of showing all tokens, where labels were
            drawn.
        gains: sparse gains in nats, float32; rows as in ``windows``, columns (selector, context, k).
        divergences: KL(p_all, p_{J_k}) in nats, float32; rows and columns as in ``gains``.
        optimisms: optimism in nats, float32; rows as in ``windows``, columns as in ``gains``, of the selectors that see the
            target and of `random`, in the real and the null context. It is the sparse gain on resampled targets plus KL(p_{},
            p_{J_k}), mean over the draws. Empty where it was not measured.
        selectors: the measured selectors, by name.
        manifest: the manifest of the folder.
        num_tokens: number of tokens of J_k, float32; rows and columns as in ``gains``. None where the unit is a token: it
            is k. Else ``windows`` has the columns num_groups and null_num_groups.
    """

    windows: pd.DataFrame
    gains: pd.DataFrame
    divergences: pd.DataFrame
    optimisms: pd.DataFrame
    selectors: dict[str, SelectorInfo]
    manifest: dict[str, Any]
    num_tokens: Optional[pd.DataFrame] = None

    @cached_property
    def keys(self) -> list[SelectionKey]:
        """The selection of every column of ``gains``."""
        return [SelectionKey(*column) for column in self.gains.columns.tolist()]

    @cached_property
    def ks(self) -> list[int]:
        """The measured k, rising."""
        return sorted({key.k for key in self.keys})

    @cached_property
    def lengths(self) -> Lengths:
        """Lengths and positions of the experiment."""
        return Lengths.from_manifest(self.manifest)

    @cached_property
    def setup(self) -> ModelSetup:
        """The model, the definition of visible and the first token."""
        return ModelSetup.from_manifest(self.manifest)

    @property
    def unit(self) -> str:
        """What is unmasked, ranked and counted: ``token``, ``word``, ``sentence`` or ``block:N``."""
        return unit_of(self.manifest)

    def mean_tokens(self, key: SelectionKey) -> float:
        """Return the mean number of tokens of J_k."""
        if self.num_tokens is None:
            return float(key.k)
        return float(np.average(self.num_tokens[key].to_numpy(np.float64), weights=self.weights_W))

    def all_visible_share(self, key: SelectionKey) -> float:
        """Return the share of the windows that have no more than k groups, so that J_k is all long-range tokens."""
        return float(np.average(self.num_groups_W(key.context) <= key.k, weights=self.weights_W))

    def num_groups_W(self, context: str) -> np.ndarray:
        """Return the number of long-range tokens of each window, or of groups of them, int64 [W]."""
        if self.unit == "token":
            return np.full(len(self.windows), self.lengths.num_long_range)
        return self.windows["num_groups" if context == "real" else "null_num_groups"].to_numpy(np.int64)

    @cached_property
    def num_units(self) -> float:
        """Mean number of long-range tokens of a window, or of groups; rounded, so that it is whole where all are equal."""
        return round(float(np.average(self.num_groups_W("real"), weights=self.weights_W)), 6)

    @cached_property
    def weights_W(self) -> np.ndarray:
        """The weight of each window in every mean, float64 [W]."""
        return self.windows["weight"].to_numpy(np.float64)

    @property
    def estimand(self) -> Estimand:
        """Whose mean it is: ``targets``, all eligible targets alike; ``given``, the windows' own."""
        estimand: Estimand = self.manifest.get("influence", {}).get("sampling", "targets")
        return estimand

    @property
    def null_context(self) -> NullContext:
        """What the null context is."""
        kind: NullContext = self.manifest.get("influence", {}).get("null_context", "document")
        return kind

    @property
    def num_documents(self) -> int:
        """Number of documents that the windows come from."""
        return int(self.windows["doc_id"].nunique())

    def restrict(self, keep: np.ndarray | slice) -> Measurement:
        """Return the measurement of some windows; ``keep`` is bool [W], or a slice, which copies nothing."""
        return replace(
            self,
            windows=self.windows[keep],
            gains=self.gains[keep],
            divergences=self.divergences[keep],
            optimisms=self.optimisms[keep],
            num_tokens=None if self.num_tokens is None else self.num_tokens[keep],
        )

    def restrict_selectors(self, names: dict[str, str]) -> Measurement:
        """Return the measurement of some selectors, under new names; ``names``: old name -> new name, for each to keep."""

        def kept(frame: pd.DataFrame) -> pd.DataFrame:
            of_selector = frame.columns.get_level_values("selector")
            return frame.loc[:, of_selector.isin(list(names))].rename(columns=names, level="selector")

        return replace(
            self,
            gains=kept(self.gains),
            divergences=kept(self.divergences),
            optimisms=kept(self.optimisms),
            num_tokens=None if self.num_tokens is None else kept(self.num_tokens),
            selectors={new: self.selectors[old] for old, new in names.items()},
        )


def unit_of(manifest: dict[str, Any]) -> str:
    """Return the unit of a measurement; of kinds that have none it is a token."""
    unit: str = manifest.get("influence", {}).get("unit", "token")
    return unit


def window_rows(windows: pd.DataFrame, window_ids: Any) -> np.ndarray:
    """Return the row of ``Measurement.windows`` of each window, int64; -1 for windows that are not in it."""
    known, wanted = windows["window_id"].to_numpy(), np.asarray(window_ids)
    rows = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    return np.where(known[rows] == wanted, rows, -1)


def load(folder: Path, *, has_selections: bool = True) -> Measurement:
    """Read the numbers of a finished influence folder, without positions and scores.

    Args:
        folder: the influence folder.
        has_selections: False: leave out what the selectors chose, which takes most of the time; both gates do not need it.

    The tables are read part by part. The result takes 4 bytes a window for every column of ``gains``, ``divergences`` and
    ``optimisms``, and some 80 bytes for its row of ``windows`` (a third of them for the document's name of 16 characters). A
    million windows with six selectors, two contexts and four k take 520 MB.

    Raises:
        UserError: the tables are missing, unfinished, of another schema, or some window lacks a selection.
    """

    def parts_of(table: str, columns: list[str]) -> Iterable[pa.Table]:
        return read_parts(folder, table, columns=columns) if has_selections or table != "selections" else ()

    return gathered_from(read_manifest(folder), parts_of, where=str(folder))


def gathered_from(manifest: dict[str, Any], parts_of: PartsOf, *, where: str) -> Measurement:
    """Return the numbers of a measurement from its tables, wherever these are. See ``load``.

    Args:
        manifest: of the measurement.
        parts_of: gives the parts of a table with some of its columns.
        where: what the tables are called in errors.

    Raises:
        UserError: some window lacks a selection, or has one that others have not.
    """
    has_groups = unit_of(manifest) != "token"
    windows = _load_windows(parts_of, has_groups=has_groups)
    windows = windows.drop(columns=[name for name in OF_ROW if windows[name].isna().all()])
    counted = ("num_tokens",) if has_groups else ()
    gathered = _Gathered(len(windows), columns=(*AT_EVERY_K, *counted))
    drawn = {context: _Gathered(len(windows), columns=AT_EVERY_K_OF_DRAW) for context in RESAMPLED.values()}
    sees_target: dict[str, bool] = {}
    costs: dict[str, list[float]] = {}  # means of the parts and contexts, which are of about as many windows each
    for part in parts_of("selections", [*SELECTION_COLUMNS, *counted]):
        measured = part.filter(~pc.field("context").isin(list(RESAMPLED.values())))
        try:
            gathered.add(measured, windows=windows)
            for context, of_context in drawn.items():
                of_context.add(part.filter(pc.field("context") == context), windows=windows)
        except KeyError:
            raise UserError(
                f"{where}: its parts belong to different measurements; {run_again('influence', OVERWRITES)}"
            ) from None
        for choice in rows_by_choice(measured):
            sees_target[choice.selector] = measured["sees_target"][int(choice.rows_r[0])].as_py()
            cost = pc.mean(measured["num_evaluations"].take(pa.array(choice.rows_r))).as_py()
            costs.setdefault(choice.selector, []).append(cost)
    if not all(of.is_complete for of in (gathered, *drawn.values())):
        raise UserError(f"{where}: some windows lack selections; {run_again('influence', OVERWRITES)}")
    optimisms = pd.concat([_optimisms(drawn[RESAMPLED[context]], context, windows) for context in CONTEXTS], axis=1)
    return Measurement(
        windows,
        gathered.frame("gain_sparse_nats", windows["window_id"]),
        gathered.frame("kl_sparse_nats", windows["window_id"]),
        optimisms,
        {name: SelectorInfo(sees, round(float(np.mean(costs[name])))) for name, sees in sees_target.items()},
        manifest,
        gathered.frame("num_tokens", windows["window_id"]) if counted else None,
    )


class _Gathered:
    """Numbers of every window, selector, context and k, gathered from the parts; means over the draws.

    All windows have the same choices (selector and context), so those of the first part are all.
    """

    def __init__(self, num_windows: int, *, columns: tuple[str, ...]) -> None:
        self._num_windows = num_windows
        self._choices: list[tuple[str, str]] = []
        self._ks: list[int] = []
        self._sums_FKW = {column: np.empty((0, 0, num_windows), np.float32) for column in columns}
        self._draws_FW = np.empty((0, num_windows), np.int32)

    def add(self, part: pa.Table, *, windows: pd.DataFrame) -> None:
        """Add some rows of ``selections``.

        Raises:
            KeyError: a window or a choice is unknown.
        """
        if len(part) == 0:
            return
        rows_R, draw_R = window_rows(windows, part["window_id"]), part["draw"].to_numpy()
        values_RK = {column: list_rows(part[column]) for column in self._sums_FKW}
        rows_of_choices = list(rows_by_choice(part, contexts=(*CONTEXTS, *RESAMPLED.values())))
        if not self._choices:
            self._choices = [(selector, context) for selector, context, _ in rows_of_choices]
            self._ks = part["k"][0].as_py()
            for column in self._sums_FKW:
                self._sums_FKW[column] = np.zeros((len(self._choices), len(self._ks), self._num_windows), np.float32)
            self._draws_FW = np.zeros((len(self._choices), self._num_windows), np.int32)
        for selector, context, rows_r in rows_of_choices:
            if (selector, context) not in self._choices or (rows_R[rows_r] < 0).any():
                raise KeyError(selector)
            choice = self._choices.index((selector, context))
            for draw in np.unique(draw_R[rows_r]):  # no window has two rows of one draw
                of_draw_r = rows_r[draw_R[rows_r] == draw]
                for column, sums_FKW in self._sums_FKW.items():
                    sums_FKW[choice][:, rows_R[of_draw_r]] += values_RK[column][of_draw_r].T
                self._draws_FW[choice, rows_R[of_draw_r]] += 1

    @property
    def is_complete(self) -> bool:
        """True if all windows have all choices, with the same number of draws."""
        return bool((self._draws_FW == self._draws_FW.max(initial=1)).all())

    @property
    def keys(self) -> list[tuple[str, str, int]]:
        """Selector, context and k of every column."""
        return [(selector, context, k) for selector, context in self._choices for k in self._ks]

    def frame(self, column: str, window_ids: pd.Series) -> pd.DataFrame:
        """Return the numbers of a column of ``selections``, one row a window and one column a key."""
        draws = self._draws_FW.max(initial=1)
        sums_FKW = self._sums_FKW[column]
        means_FKW = sums_FKW if draws == 1 else sums_FKW / np.float32(draws)
        columns = [pd.Index(values) for values in zip(*self.keys, strict=True)] or [[], [], []]
        return pd.DataFrame(
            means_FKW.reshape(len(self.keys), self._num_windows).T,  # a column is contiguous; no copy
            index=pd.Index(window_ids),
            columns=pd.MultiIndex.from_arrays(columns, names=list(SelectionKey._fields)),
            copy=False,
        )


def _optimisms(drawn: _Gathered, context: str, windows: pd.DataFrame) -> pd.DataFrame:
    """Return the sparse gain plus KL(p_{}, p_{J_k}), mean over the drawn labels, with the columns of a context."""
    gains, costs = (drawn.frame(column, windows["window_id"]) for column in AT_EVERY_K_OF_DRAW)
    return (gains + costs).rename(columns={RESAMPLED[context]: context}, level="context")


def _load_windows(parts_of: PartsOf, *, has_groups: bool) -> pd.DataFrame:
    """Return ``Measurement.windows``.

    window_id int64, rising; doc_id as Arrow strings; classes categorical; weight float64; train_overlap bool, missing
    where it is not known; others float32.
    """
    names = ["window_id", "doc_id", "weight", *CLASS_COLUMNS, *NUMBERS, "train_overlap"]
    chunks_of: dict[str, list[Any]] = {name: [] for name in names}
    groups = {"num_groups": "group_first", "null_num_groups": "null_group_first"} if has_groups else {}
    numbers_of: dict[str, list[np.ndarray]] = {name: [] for name in groups}
    numbers_of["optimism_all_nats"] = []
    for part in parts_of("windows", [*names, *OF_ALL_TOKENS, *groups.values()]):
        numbers_of["optimism_all_nats"].append(_optimism_of_all_tokens(part))
        for name, column in groups.items():
            numbers_of[name].append(pc.list_value_length(part[column]).to_numpy())
        for name, chunks in chunks_of.items():
            chunks += part[name].chunks if name in ("doc_id", *CLASS_COLUMNS) else [part[name].to_numpy()]
    columns: dict[str, Any] = {name: np.concatenate(numbers) for name, numbers in numbers_of.items()}
    for name in names:
        chunks = chunks_of.pop(name)
        if name == "doc_id":
            # In one chunk: each access would go through as many chunks as there are parts.
            columns[name] = pd.array(
                pa.chunked_array(chunks).cast(pa.large_string()).combine_chunks(), "string[pyarrow]"
            )
        elif name in CLASS_COLUMNS:
            columns[name] = pa.chunked_array(chunks).dictionary_encode().to_pandas()
        else:
            columns[name] = np.concatenate(chunks)
    for name in ("train_overlap", "optimism_all_nats"):
        if pd.isna(columns[name]).any():
            del columns[name]
    windows = pd.DataFrame(columns, copy=False)
    return (
        windows if windows["window_id"].is_monotonic_increasing else windows.sort_values("window_id", ignore_index=True)
    )


def _optimism_of_all_tokens(part: pa.Table) -> np.ndarray:
    """Return the optimism of showing all tokens in each window of a part, mean over its drawn labels, fp32; NaN: not measured."""
    loss_short_WA, loss_long_WA = (list_rows(part[name]) for name in OF_ALL_TOKENS[:2])
    if loss_short_WA.shape[1] == 0:
        return np.full(len(part), np.nan, dtype=np.float32)
    cost_W = part[OF_ALL_TOKENS[2]].to_numpy()
    return (loss_short_WA - loss_long_WA).mean(axis=1) + cost_W.astype(np.float32)
