"""Every number of a measurement: ``QUANTITIES`` has one entry each, and ``estimate`` makes one DataFrame of them.

Letters of shapes: S selections (a selector, context and k); C contexts, real and null; N numbers of latest tokens; B blends; the
last axis is that of units, of resamples, or of a single total.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from olmo_sparsity.config import MIN_DOCUMENTS
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import written_whole
from olmo_sparsity.selectors import CONTROLS
from olmo_sparsity.statistics.frames import CONTEXTS, LISTS, NUMBERS, PREFIX, Frames, read_frames
from olmo_sparsity.statistics.intervals import (
    Estimates,
    Ratio,
    Share,
    Sums,
    Units,
    Value,
    bootstrap,
    document_units,
)
from olmo_sparsity.statistics.intervals import minus as difference
from olmo_sparsity.statistics.spectrum import TOLERANCE, short_suffices, shows_all, spectrum, suffices
from olmo_sparsity.tables import DAMPING, SCHEMA_VERSION, read_manifest

ESTIMATES = "estimates.parquet"
VERSION = "2"  # of the formulas: a file of estimates that another version made is made again
COLUMNS = "quantity selector context k group x value low high se n_windows n_documents".split()  # noqa: SIM905
ALL, COMPARED = ("window", "last", "damped", "selection"), ("window", "selection")
FEW = 0.25  # of the long-range tokens: more of them are not few
Gate = Literal["above", "below", "unclear", "too few", "not applicable"]


class Selections:
    """Where each selection of a measurement finds what it is compared with."""

    def __init__(self, frames: Frames) -> None:
        keys = [tuple(key) for key in frames.selections.itertuples(index=False)]
        place = {key: at for at, key in enumerate(keys)}
        self.context_S = np.array([CONTEXTS.index(context) for _, context, _ in keys], dtype=np.int64)
        self.is_all_S = shows_all(frames)
        # -1: there is none.
        self.random_S = np.array(
            [-1 if name == "random" else place.get(("random", context, k), -1) for name, context, k in keys],
            dtype=np.int64,
        )
        self.null_S = np.array(
            [-1 if context == "null" else place.get((name, "null", k), -1) for name, context, k in keys], dtype=np.int64
        )


class Totals:
    """Totals of the sums of one measurement, as formulas use them."""

    def __init__(self, sums: Sums, selections: Selections) -> None:
        self._sums = sums
        self.selections = selections

    def __getitem__(self, name: str) -> np.ndarray:
        return self._sums[name]

    def mean(self, name: str) -> np.ndarray:
        """The mean of a column over the windows."""
        return self._sums[name] / self._sums["weight"]

    def contexts(self, name: str) -> np.ndarray:
        """A column of ``windows`` in each context, [C, ...]."""
        return np.stack([self._sums[f"{prefix}{name}"] for prefix in PREFIX.values()])

    def of_context(self, name: str) -> np.ndarray:
        """A column of ``windows`` in the context of each selection, [S, ...]."""
        return np.asarray(self.contexts(name)[self.selections.context_S])

    def over_random(self) -> np.ndarray:
        """Mean sparse gain minus that of `random`, [S, ...]; NaN of `random` itself."""
        return self.mean("gain") - _rows(self.mean("gain"), self.selections.random_S)

    def real_minus_null(self, values: np.ndarray) -> np.ndarray:
        """Values of selections minus theirs under the null context, [S, ...]; NaN under the null context itself."""
        return values - _rows(values, self.selections.null_S)


def _rows(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    return np.where((places >= 0)[:, None], values[places], np.nan)


@dataclass(frozen=True)
class Quantity:
    """A number of a measurement.

    ``show`` says where it appears besides ``summary --every``, JSON, CSV and ``Results.summary``: ``report``, a row of all its
    numbers; ``compare``, a row; ``figure:gains``, a panel of that figure.
    """

    name: str
    label: str
    value: Callable[[Totals], Value]
    per: Literal["window", "last", "damped", "selection"]  # [], [N], [C, B], [S]
    unit: str = "nats"  # empty of a share
    digits: int = 3
    definition: str = ""
    show: tuple[str, ...] = ("report",)
    needs_gate: bool = False
    least_documents: int = MIN_DOCUMENTS  # for an interval
    least: float = -np.inf
    most: float = np.inf

    @property
    def header(self) -> str:
        """The label with the unit."""
        return f"{self.label}, {self.unit}" if self.unit else self.label


def _damped_recovered(t: Totals) -> np.ndarray:
    return np.asarray(1 - t.contexts("kl_damped_nats") / t.contexts("kl_short_nats")[:, None])


def _damped_gain(t: Totals) -> np.ndarray:
    return np.asarray((t["loss_short_nats"] - t.contexts("loss_damped_nats")) / t["weight"])


def _expected_gain(t: Totals) -> np.ndarray:
    """The damped gain at the D of each selection, interpolated between blends; 0 below D = 0, the long gain from D = 1 on."""
    recovered = 1 - t["divergence"] / t.of_context("kl_short_nats")
    long_gain = t.contexts("gain_long_nats")[:, None] / t["weight"]
    none, whole = np.zeros_like(long_gain), np.ones_like(long_gain)
    at = np.concatenate([none, _damped_recovered(t), whole], axis=1)[t.selections.context_S]
    gain = np.concatenate([none, _damped_gain(t), long_gain], axis=1)[t.selections.context_S]
    expected = np.zeros_like(recovered)
    for left in range(at.shape[1] - 1):
        slope = (gain[:, left + 1] - gain[:, left]) / (at[:, left + 1] - at[:, left])
        expected = np.where(recovered > at[:, left], gain[:, left] + (recovered - at[:, left]) * slope, expected)
    return expected


_SHARE: dict[str, Any] = {"unit": "", "digits": 2, "least": 0.0, "most": 1.0}
# Few windows hold most of a divergence: with fewer documents no interval covers the truth often enough.
_HEAVY_TAILS: dict[str, Any] = {"least_documents": 300}
_ENTRIES = (
    # Means over the windows.
    Quantity(
        "loss_short_nats", "L_short", lambda t: t.mean("loss_short_nats"), "window",
        definition="loss with the local tokens alone", show=("report", "compare"), least=0.0,
    ),
    Quantity(
        "loss_short_no_gap_nats", "L_short without the gap", lambda t: t.mean("loss_short_no_gap_nats"), "window",
        definition="the local tokens directly behind the anchor, where a training row begins", least=0.0,
    ),
    Quantity(
        "gap_cost_nats", "cost of the gap",
        lambda t: t.mean("loss_short_nats") - t.mean("loss_short_no_gap_nats"), "window",
        definition="L_short - L_short without the gap",
    ),
    Quantity(
        "loss_long_nats", "L_long", lambda t: t.mean("loss_long_nats"), "window",
        definition="loss with all tokens", show=("report", "compare"), least=0.0,
    ),
    Quantity(
        "long_gain_nats", "long gain", lambda t: t.mean("gain_long_nats"), "window",
        definition="L_short - L_long", show=("report", "compare"),
    ),
    Quantity(
        "long_gain_no_gap_nats", "long gain without the gap",
        lambda t: t.mean("loss_short_no_gap_nats") - t.mean("loss_long_nats"), "window",
        definition="L_short without the gap - L_long",
    ),
    Quantity(
        "gate_gain_nats", "gain at the gate",
        lambda t: (t["gain_long_nats"] - np.maximum(t["loss_short_nats"] - t["loss_short_no_gap_nats"], 0)) / t["weight"],
        "window", definition="the lower of the long gains with and without the gap",
    ),
    Quantity(
        "gain_beyond_nats", "gain beyond the training row", lambda t: t.mean("loss_row_nats") - t.mean("loss_long_nats"),
        "window", definition="loss of the last train_len tokens - L_long", show=("report", "compare"),
    ),
    Quantity(
        "null_long_gain_nats", "long gain, null context", lambda t: t.mean("null_gain_long_nats"), "window",
        show=("report", "compare"),
    ),
    Quantity(
        "content_gain_nats", "value of the content", lambda t: t.mean("gain_long_nats") - t.mean("null_gain_long_nats"),
        "window", definition="long gain, real minus null",
    ),
    Quantity(
        "kl_short_nats", "reaction", lambda t: t.mean("kl_short_nats"), "window",
        definition="KL(p_all, p_short): how far the long context moves the prediction", least=0.0,
    ),
    Quantity(
        "null_kl_short_nats", "reaction, null context", lambda t: t.mean("null_kl_short_nats"), "window", least=0.0
    ),
    Quantity(
        "none_needed_share", "targets that need no long-range token", lambda t: Share(t["none_needed"], t["weight"]),
        "window", definition=f"reaction of at most {TOLERANCE:g} nats", show=("report", "compare"), **_SHARE,
    ),
    Quantity(
        "null_none_needed_share", "targets that need none, null context",
        lambda t: Share(t["null_none_needed"], t["weight"]), "window", **_SHARE,
    ),
    Quantity(
        "optimism_all_nats", "optimism of all tokens", lambda t: t.mean("optimism_all"), "window",
        definition="a check: it must be 0",
    ),
    Quantity(
        "corrected_gain_all_nats", "corrected gain of all tokens",
        lambda t: t.mean("gain_long_nats") - t.mean("optimism_all"), "window",
    ),
    Quantity(
        "calibration_nats", "calibration", lambda t: t.mean("entropy_short_nats") - t.mean("loss_short_nats"), "window",
        definition="entropy of p_short - L_short; 0 if the prediction is calibrated",
    ),
    Quantity(
        "train_overlap_share", "windows that share text with training",
        lambda t: Share(t["train_overlap"], t["weight"]), "window", **_SHARE,
    ),
    # The latest n tokens, directly behind the anchor.
    Quantity("loss_last_nats", "loss of the last n", lambda t: t.mean("loss_last_nats"), "last", least=0.0),
    Quantity(
        "gain_over_row_nats", "gain over the training row",
        lambda t: t.mean("loss_start_nats") - t.mean("loss_last_nats"), "last",
        definition="loss of the last train_len tokens - loss of the last n",
    ),
    # Blends of the short and the full prediction, which choose no token.
    Quantity("damped_recovered", "D of a blend", _damped_recovered, "damped", unit="", digits=2, most=1.0),
    Quantity("damped_gain_nats", "gain of a blend", _damped_gain, "damped"),
    # Chosen tokens.
    Quantity(
        "gain_sparse_nats", "sparse gain", lambda t: t.mean("gain"), "selection",
        definition="L_short - L_short,sparse(k)", show=("report", "compare", "figure:gains"),
    ),
    Quantity(
        "recovered_fraction", "R(k)", lambda t: t["gain"] / t["gain_long_nats"], "selection",
        unit="", digits=2, definition="sparse gain / long gain", show=("report", "compare"), needs_gate=True,
    ),
    Quantity(
        "prediction_recovered", "D(k)", lambda t: Ratio(t["divergence"], t.of_context("kl_short_nats")), "selection",
        unit="", digits=2, most=1.0, definition="share of the reaction that k tokens reproduce", **_HEAVY_TAILS,
    ),
    Quantity(
        "gain_over_random_nats", "gain over random", lambda t: t.over_random(), "selection",
        definition="sparse gain - that of as many random tokens", show=("report", "compare", "figure:gains"),
    ),
    Quantity(
        "excess_gain_nats", "sparse gain, real minus null", lambda t: t.real_minus_null(t.mean("gain")), "selection",
    ),
    Quantity(
        "excess_over_random_nats", "gain over random, real minus null",
        lambda t: t.real_minus_null(t.over_random()), "selection",
        definition="what the choice gains from the content", show=("report", "compare", "figure:gains"),
    ),
    Quantity(
        "expected_gain_nats", "expected gain", _expected_gain, "selection",
        definition="gain of a blend with the same D(k), which chooses no token", **_HEAVY_TAILS,
    ),
    Quantity(
        "gain_over_damping_nats", "gain over damping", lambda t: t.mean("gain") - _expected_gain(t), "selection",
        definition="sparse gain - expected gain", show=("report", "compare", "figure:gains"), **_HEAVY_TAILS,
    ),
    Quantity(
        "optimism_nats", "optimism", lambda t: t.mean("optimism"), "selection",
        definition="how much the gain of a choice for a target overstates its worth on another",
    ),
    Quantity(
        "corrected_gain_nats", "corrected gain", lambda t: t.mean("gain") - t.mean("optimism"), "selection",
        definition="sparse gain - optimism", show=("report", "compare", "figure:gains"),
    ),
    Quantity(
        "sufficient_share", "targets that need at most k",
        lambda t: Share(t["sufficient"], t["weight"], t.selections.is_all_S[:, None]), "selection",
        definition=f"k tokens leave at most {TOLERANCE:g} nats of the reaction", show=("report", "compare"), **_SHARE,
    ),
    Quantity("mean_tokens", "tokens shown", lambda t: t.mean("num_tokens"), "selection", unit="", digits=1),
)  # fmt: skip
QUANTITIES = {quantity.name: quantity for quantity in _ENTRIES}


def sums_of(frames: Frames, units: Units) -> dict[str, np.ndarray]:
    """Everything that the formulas depend on, weighted and summed over each unit, float64 [..., U]."""
    windows, weight_W = frames.windows, frames.windows["weight"].to_numpy()
    columns: dict[str, Any] = {name: windows[name].to_numpy() for name in NUMBERS if name != "weight"}
    columns |= {
        "optimism_all": windows["optimism_all"].to_numpy(),
        "train_overlap": windows["train_overlap"].to_numpy(),
    }
    columns |= {f"{prefix}none_needed": short_suffices(frames, of, TOLERANCE) for of, prefix in PREFIX.items()}
    columns |= {name: frames.lists[name] for name in LISTS}
    columns |= {"gain": frames.gain, "divergence": frames.divergence, "optimism": frames.optimism}
    columns |= {"sufficient": suffices(frames), "num_tokens": frames.num_tokens}
    sums = {"weight": units.sums(weight_W)} | {
        name: units.sums(weight_W * np.asarray(values, dtype=np.float64)) for name, values in columns.items()
    }
    lengths = frames.lengths
    start = frames.last_n.index(min(lengths.train_len or lengths.local_len, lengths.full_len))
    sums["loss_start_nats"] = sums["loss_last_nats"][start]
    is_beyond = lengths.train_len is not None and lengths.train_len < lengths.full_len
    sums["loss_row_nats"] = sums["loss_start_nats"] if is_beyond else np.full(units.num, np.nan)
    return sums


def estimate(
    frames: Frames, *, by: Optional[str] = None, minus: Optional[Frames] = None, seeds: Sequence[Frames] = ()
) -> pd.DataFrame:
    """Estimate all quantities of a measurement, with 95% intervals over documents.

    Args:
        frames: the measurement.
        by: a column of ``Frames.windows``, such as ``target_class``: the quantities of windows and selections of each group.
        minus: another measurement, whose quantities are subtracted: those of windows, and of the selections that both have.
            Documents are drawn together, so the difference is paired on the same windows.
        seeds: the same measurement of runs with other seeds of training; values are means over all seeds, and intervals include
            the seeds.

    Returns:
        Columns ``COLUMNS``; one row for each number that exists. ``value``, ``low``, ``high`` and ``se`` are in nats or a
        share; the last three are missing below ``least_documents``. R(k) has no rows where the interval of the gain at the
        gate is not above 0.
    """
    if by is not None:
        return _by_group(frames, by)
    if minus is not None:
        return _difference(frames, minus)
    for other in seeds:
        if not (
            other.windows["doc_id"].equals(frames.windows["doc_id"]) and other.selections.equals(frames.selections)
        ):
            raise UserError("these runs were not measured on the same windows with the same selectors and k")
    table = _estimated(frames, ALL, seeds=seeds)
    if not seeds:
        rows, bands = spectrum(frames, document_units(frames.windows["doc_id"]))
        table = pd.concat([table, rows.assign(quantity="spectrum_share", **bands._asdict())])
    return _finished(_gated(table), frames)


def _estimated(frames: Frames, per: Sequence[str], *, seeds: Sequence[Frames] = ()) -> pd.DataFrame:
    units, selections = document_units(frames.windows["doc_id"]), Selections(frames)
    models = [[sums_of(one, units) for one in (frames, *seeds)]]
    found = bootstrap(models, lambda sums: _values(Totals(sums, selections), per))
    if seeds:
        # Seeds may differ in one of the two long gains and agree in the lower one: the gate passes only where both do.
        gains = [found[name].low for name in ("gate_gain_nats", "long_gain_nats", "long_gain_no_gap_nats")]
        found["gate_gain_nats"] = found["gate_gain_nats"]._replace(low=np.min(gains, axis=0))
    return _table(frames, found, frames.windows["doc_id"].nunique())


def _values(totals: Totals, per: Sequence[str]) -> dict[str, Value]:
    return {name: quantity.value(totals) for name, quantity in QUANTITIES.items() if quantity.per in per}


def _table(
    frames: Frames, found: Mapping[str, Estimates], num_documents: int, *, is_difference: bool = False
) -> pd.DataFrame:
    """Return one row for each value, with what it is of."""
    blends = [(context, weight) for context in CONTEXTS for weight in DAMPING]
    rows_of = {
        "window": pd.DataFrame(index=[0]),
        "last": pd.DataFrame({"x": frames.last_n}),
        "damped": pd.DataFrame(blends, columns=["context", "x"]),
        "selection": frames.selections,
    }
    tables = []
    for name, estimates in found.items():
        quantity = QUANTITIES[name]
        columns = {of: np.ravel(values) for of, values in estimates._asdict().items()}
        if not is_difference:
            for end in ("low", "high"):  # Student's t intervals over seeds may leave the possible values
                columns[end] = np.clip(columns[end], quantity.least, quantity.most)
        if num_documents < quantity.least_documents:
            columns |= {end: np.full_like(columns[end], np.nan) for end in ("low", "high", "se")}
        tables.append(rows_of[quantity.per].assign(quantity=name, **columns))
    return pd.concat(tables)


def _gated(table: pd.DataFrame, *gates: Gate) -> pd.DataFrame:
    """Return a table without the numbers that need the gate, where it, or one of others, did not pass."""
    if set(gates or [gate(table)]) == {"above"}:
        return table
    return table[~table["quantity"].isin([name for name, of in QUANTITIES.items() if of.needs_gate])]


def _finished(table: pd.DataFrame, frames: Frames) -> pd.DataFrame:
    """Return a table with all columns, without missing values, and with what it is of as attributes."""
    counts = {"n_windows": len(frames.windows), "n_documents": frames.windows["doc_id"].nunique()}
    table = table.assign(**{name: count for name, count in counts.items() if name not in table})
    table = table.reindex(columns=COLUMNS).dropna(subset="value").reset_index(drop=True)
    return _described(_typed(table), frames.manifest, frames.num_units, frames.selectors)


def _described(
    table: pd.DataFrame, manifest: dict[str, Any], num_units: float, selectors: pd.DataFrame
) -> pd.DataFrame:
    table.attrs = {
        "manifest": manifest,
        "num_units": num_units,
        "selectors": selectors.reset_index().to_dict("records"),
    }
    return table


def _by_group(frames: Frames, by: str) -> pd.DataFrame:
    """Return the quantities of each group of windows. No group has an R(k) where the gate of all windows did not pass."""
    group_W, weight_W = frames.windows[by].astype(str).to_numpy(), frames.windows["weight"].to_numpy()
    groups = [name for name in np.unique(group_W) if weight_W[group_W == name].any()]
    units = document_units(frames.windows["doc_id"])
    sums = {"weight": units.sums(weight_W)} | {name: units.sums(weight_W * (group_W == name)) for name in groups}
    shares = bootstrap([[sums]], lambda totals: {name: Share(totals[name], totals["weight"]) for name in groups})
    tables = []
    for name in groups:
        of_group = frames.restrict(group_W == name)
        table = _estimated(of_group, COMPARED)
        share = {of: float(value) for of, value in shares[name]._asdict().items()}
        table = pd.concat([pd.DataFrame([{"quantity": "window_share", **share}]), _gated(table)])
        counts = {"n_windows": len(of_group.windows), "n_documents": of_group.windows["doc_id"].nunique()}
        tables.append(table.assign(group=name, **counts))
    whole = _estimated(frames, ["window"])
    return _finished(_gated(pd.concat(tables), gate(whole)), frames)


def _difference(frames: Frames, other: Frames) -> pd.DataFrame:
    """Return the quantities of one measurement minus those of another, of windows and of the selections that both have."""
    common = frames.selections.merge(other.selections)
    both = [of.take(of.selections.reset_index().merge(common, how="right")["index"]) for of in (frames, other)]
    doc_ids = pd.concat([of.windows["doc_id"] for of in both], ignore_index=True)
    pooled = document_units(doc_ids)
    units = [Units(unit_W, pooled.num) for unit_W in np.split(pooled.unit_W, [len(frames.windows)])]
    selections = [Selections(of) for of in both]

    def formula(first: Sums, second: Sums) -> dict[str, Value]:
        values = [_values(Totals(sums, of), COMPARED) for sums, of in zip((first, second), selections, strict=True)]
        return {name: difference(values[0][name], values[1][name]) for name in values[0]}

    sums = [[sums_of(of, own)] for of, own in zip(both, units, strict=True)]
    num_documents = min(of.windows["doc_id"].nunique() for of in both)
    table = _table(both[0], bootstrap(sums, formula), num_documents, is_difference=True)
    return _finished(_gated(table, *(gate(_estimated(of, ["window"])) for of in (frames, other))), frames)


def read_estimates(tables: Path) -> pd.DataFrame:
    """Read the estimates of a finished measurement, with those of each class of targets.

    They are in ``estimates.parquet``. A file that is missing, or of another measurement or version, is made from the tables.

    Raises:
        UserError: the tables are missing, unfinished or damaged.
    """
    manifest, path = read_manifest(tables), tables / ESTIMATES
    # A measurement whose parts were measured again has the same run_id, and was finished later.
    key = json.dumps([VERSION, SCHEMA_VERSION, manifest["run_id"], manifest.get("finished"), list(QUANTITIES)])
    # pq.read_table would import pyarrow.dataset.
    with contextlib.suppress(OSError, pa.ArrowException, KeyError, ValueError), pq.ParquetFile(path) as file:
        metadata = {name.decode(): value.decode() for name, value in file.metadata.metadata.items()}
        if metadata["key"] == key and file.schema_arrow.names == COLUMNS:
            selectors = pd.DataFrame(json.loads(metadata["selectors"])).set_index("selector")
            return _described(_typed(file.read().to_pandas()), manifest, float(metadata["num_units"]), selectors)
    frames = read_frames(tables)
    with warnings.catch_warnings():  # pandas: columns that hold nothing
        warnings.simplefilter("ignore", FutureWarning)
        table = pd.concat([estimate(frames), estimate(frames, by="target_class")], ignore_index=True)
    described = _described(_typed(table), manifest, frames.num_units, frames.selectors)
    content = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(
        {"key": key, "num_units": str(frames.num_units), "selectors": json.dumps(described.attrs["selectors"])}
    )
    with contextlib.suppress(OSError), written_whole(path) as partial:  # the folder may not be ours to write
        pq.write_table(content, partial)
    return described


def _typed(table: pd.DataFrame) -> pd.DataFrame:
    names = ["selector", "context", "group"]
    table = table.astype({"k": "Int64", "x": "float64", **dict.fromkeys(names, object)})
    table[names] = table[names].where(table[names].notna(), None)
    return table


def pick(table: pd.DataFrame, quantity: str, **of: Any) -> Optional[pd.Series]:
    """Return the row of one number, or None; ``of``: its selector, context, k, group or x. A column not named must be missing.

    Raises:
        ValueError: several rows are left.
    """
    table = pd.DataFrame(table, copy=False)  # without its attributes, which pandas copies at every step
    rows = np.flatnonzero(table["quantity"].to_numpy() == quantity)
    for name in [name for name in ("selector", "context", "k", "group", "x") if name in table]:
        column, wanted = table[name].array[rows], of.get(name)
        is_missing = pd.isna(column)
        rows = rows[is_missing if wanted is None else np.asarray((column == wanted) & ~is_missing, bool)]
    if len(rows) > 1:
        raise ValueError(f"{quantity}: {len(rows)} rows with {of}")
    return table.iloc[rows[0]] if len(rows) else None


def side_of_zero(row: Any) -> Gate:
    """Where the interval of a number lies; ``not applicable`` where there is no number."""
    if row is None:
        return "not applicable"
    if np.isnan(row["low"]):
        return "too few"
    return "above" if row["low"] > 0 else "below" if row["high"] < 0 else "unclear"


def gate(table: pd.DataFrame, quantity: str = "gate_gain_nats") -> Gate:
    """Where the interval of a mean over all windows lies: the gate of a measurement, or that beyond its training row."""
    row = pick(table, quantity)
    return side_of_zero(None if row is None or np.isnan(row["value"]) else row)


def counted(number: int, manifest: Mapping[str, Any]) -> str:
    """What k counts in a measurement, with its number: `1 token`, `4 entries`, `2 blocks of 16 tokens`."""
    kind, _, size = manifest["influence"].get("unit", "token").partition(":")
    one, many = ("entry", "entries") if manifest.get("visibility") == "contextual" else ("token", "tokens")
    if kind == "token":
        return f"{number:,} {one if number == 1 else many}"
    return f"{number:,} {kind}{'' if number == 1 else 's'}{f' of {size} {many}' if size else ''}"


def units_of(manifest: Mapping[str, Any]) -> str:
    """What k counts in a measurement, in the plural."""
    return counted(2, manifest).removeprefix("2 ")


def shown_ks(table: pd.DataFrame) -> list[int]:
    """The measured k up to a quarter of the long-range tokens, rising, or the smallest; the first is that of headlines."""
    ks = sorted({*table["k"].array[(table["quantity"] == "gain_sparse_nats").to_numpy()].dropna().tolist()})
    return [k for k in ks if k <= FEW * table.attrs["num_units"]] or ks[:1]


def selectors_of(table: pd.DataFrame) -> pd.DataFrame:
    """The measured selectors: sees_target, num_evaluations (forward passes for one window)."""
    return pd.DataFrame(table.attrs["selectors"]).set_index("selector")


def first_blind(table: pd.DataFrame) -> Optional[str]:
    """The first measured selector that does not see the target and is no control; None if there is none."""
    names = [of["selector"] for of in table.attrs["selectors"] if not of["sees_target"]]
    return next((name for name in names if name not in CONTROLS), None)
