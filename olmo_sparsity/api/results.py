"""What was measured, as DataFrames with the columns of the tables."""

from __future__ import annotations

import logging
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from olmo_sparsity.api.arguments import typed
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.measurement import measure_parts
from olmo_sparsity.statistics.single.measurement import CONTEXTS, Measurement, gathered_from
from olmo_sparsity.statistics.single.spectrum import spectrum_frame
from olmo_sparsity.statistics.single.summary import SELECTION_QUANTITIES, WINDOW_QUANTITIES, Summary, summarize
from olmo_sparsity.storage.folders import manifest_of_kind
from olmo_sparsity.tables.parts import missing_parts
from olmo_sparsity.tables.reading import check_values, find_tables, read_manifest, read_table
from olmo_sparsity.tables.schemas import COLUMNS, RESAMPLED, schemas_of
from olmo_sparsity.view.as_json import selection_json
from olmo_sparsity.view.figure_scripts import figure_script
from olmo_sparsity.wording.gates import gates_words
from olmo_sparsity.wording.setup import anchor_warning, data_words, measured_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)
# Columns of both tables that ``Results.tidy`` has.
LOSSES_OF_WINDOW = ["loss_short_nats", "loss_long_nats", "gain_long_nats"]
OF_WINDOW = ["window_id", "doc_id", "weight", "source", "target_class", "target_text", *LOSSES_OF_WINDOW]
OF_SELECTION = ["window_id", "selector", "context", "draw", "sees_target", "num_evaluations"]


@dataclass(frozen=True, eq=False)  # whether frames are equal has no one answer
class Results:
    """One measurement.

    Attributes:
        windows: the table ``windows``, one row a window: its text, losses and gains in nats.
        selections: the table ``selections``, one row for each window, selector, context and draw: positions, scores, and losses,
            gains and divergences in nats, one entry a k.
        manifest: what was measured, and how.
        folder: the influence folder that the tables were read from; None: they were measured in memory.
    """

    windows: pd.DataFrame
    selections: pd.DataFrame
    manifest: dict[str, Any]
    folder: Optional[Path] = None

    @typed
    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the tables as an influence folder, which ``summary``, ``show``, ``report`` and the figures read.

        Where the folder holds these tables already, nothing is written, and a line of the log says so.

        Args:
            folder: where to; its name is that of the measurement.
            overwrite: replace another measurement in this folder.

        Raises:
            UserError: the folder holds something else, or another measurement or other values of this one, and ``overwrite``
                is False; or the tables hold other windows than were measured, or values that no measurement has.
        """
        out = Path(os.path.expanduser(folder))
        frames = {"windows": self.windows, "selections": self.selections}
        tables = {name: self._table(name, frame) for name, frame in frames.items()}
        num_windows = self.manifest["num_windows"]
        if sorted(self.windows["window_id"]) != list(range(num_windows)):
            raise UserError(
                f"windows: {len(self.windows):,} rows, and {num_windows:,} windows were measured; only all of them are saved: "
                "measure some of them alone, with windows_from_table"
            )
        if not overwrite and self._is_in(out):
            changed = [name for name, table in tables.items() if not read_table(out, name).equals(table)]
            if changed:
                raise UserError(
                    f"{out}: this measurement is there, with other values in {', '.join(changed)}; choose another folder, or "
                    "replace it with overwrite=True"
                )
            logger.info(f"{out}: it holds these tables already; nothing is written")
            return out

        def part_of(window_ids: np.ndarray) -> dict[str, pa.Table]:  # an unfinished folder has parts of its own size
            wanted = pc.field("window_id").isin(window_ids)
            return {name: table.filter(wanted) for name, table in tables.items()}

        measure_parts(out, self.manifest, part_size=len(self.windows), measure_part=part_of, overwrite=overwrite)
        return out

    def _is_in(self, folder: Path) -> bool:
        """Return whether a folder holds this measurement, finished and with all its parts, whatever its values."""
        found = manifest_of_kind(folder, self.manifest["kind"])
        if found is None or found["run_id"] != self.manifest["run_id"] or found.get("status") != "complete":
            return False
        return not missing_parts(folder, found)

    def summarize(self) -> Summary:
        """Return gates, gains with their controls, R(k) and D(k), with 95% intervals over documents.

        They are those of the rows that ``windows`` holds now: of some windows, the means over these.

        Raises:
            UserError: ``windows`` has no rows, or ``selections`` lacks some of a selector in these windows.
        """
        return summarize(self._measurement())

    def _measurement(self) -> Measurement:
        """Return the numbers, window by window, of the rows that ``windows`` holds now."""
        windows, selections = self._table("windows", self.windows), self._table("selections", self.selections)
        if len(windows) == 0:
            raise UserError("windows: there are no windows")
        window_ids = windows["window_id"].combine_chunks()
        selections = selections.filter(pc.field("window_id").isin(window_ids))
        _check_whole(selections, num_windows=len(window_ids.unique()))
        tables = {"windows": windows, "selections": selections}
        return gathered_from(self.manifest, lambda table, columns: [tables[table].select(columns)], where="selections")

    def spectrum(self) -> pd.DataFrame:
        """Return the dependency spectrum target by target: how many long-range tokens each needs.

        Returns:
            One row for each window, family (a selector), context and tolerance. ``k`` is the smallest measured k with
            KL(p_all, p_{J_k}) of at most ``tolerance_nats``: 0 where the local tokens suffice, infinity where more than
            ``max_k``, the largest measured k, are needed. ``min_context_tokens``: the length of the shortest suffix of the window
            that suffices, of `nearest` where tokens are counted and visibility is ``hidden``, else missing. ``window_id``,
            ``doc_id``, ``weight``, ``target_class``: the window.

            An interpolated quantile of ``k`` is missing beside infinity; take ``quantile(..., interpolation="higher")``.

        Raises:
            UserError: as of ``summarize``.
        """
        return spectrum_frame(self._measurement())

    def tidy(self) -> pd.DataFrame:
        """Return the selections without lists, one row for each window, selector, context, draw and k.

        Returns:
            Columns of the window: ``window_id``, ``doc_id``, ``weight``, ``source``, ``target_class``, ``target_text``,
            ``loss_short_nats``, ``loss_long_nats``, ``gain_long_nats``. Of the selection: ``selector``, ``context``, ``draw``,
            ``sees_target``, ``num_evaluations``, ``k``, and the columns of ``selections`` that have an entry a k, which is
            missing where it was not measured.

            ``loss_long_nats`` and ``gain_long_nats`` are those of the row's context. With a drawn label in place of the target
            the three columns of losses of the window are missing.
        """
        per_k = [column.name for column in COLUMNS["selections"] if column.as_many_as == "k"]
        selections = self.selections.reset_index(drop=True)
        per_k = [name for name in per_k if name in selections]
        counts = selections["k"].map(len)
        tidy = selections[OF_SELECTION].loc[selections.index.repeat(counts)].reset_index(drop=True)
        tidy["k"] = np.concatenate([np.empty(0), *selections["k"]]).astype(np.int64)
        for name in per_k:
            lists = zip(selections[name], counts, strict=True)
            filled = [np.full(count, np.nan) if values is None else np.asarray(values) for values, count in lists]
            tidy[name] = np.concatenate([np.empty(0), *filled]).astype(np.float64)
        of_null = {f"null_{name}": name for name in ("loss_long_nats", "gain_long_nats")}
        tidy = self.windows[[*OF_WINDOW, *of_null]].merge(tidy, on="window_id")
        is_null = tidy["context"] == "null"
        for name, shown in of_null.items():
            tidy[shown] = tidy[shown].where(~is_null, tidy[name])
        tidy.loc[tidy["context"].isin(list(RESAMPLED.values())), LOSSES_OF_WINDOW] = np.nan
        return tidy.drop(columns=list(of_null))

    def _table(self, name: str, frame: pd.DataFrame) -> pa.Table:
        """Return a DataFrame as the table that it was.

        Raises:
            UserError: a column is gone, or holds values that the table cannot.
        """
        schema = schemas_of(self.manifest)[name]
        try:
            table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
        except KeyError as error:
            raise UserError(f"{name}: {error.args[0]}; the tables of a measurement have all of their columns") from None
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise UserError(f"{name}: not the values of this table ({str(error).splitlines()[0]})") from None
        check_values(table, name, where=name, manifest=self.manifest)
        return table

    def summary(self) -> pd.DataFrame:
        """Return the numbers of ``olmo-sparsity summary --json``, one row for each.

        Returns:
            Columns ``quantity``, ``selector``, ``context`` and ``k`` (missing for means over all windows), ``mean``, ``low``,
            ``high`` and ``standard_error``; in nats, or a fraction. Numbers that need a gate are missing where it did not pass.
            ``attrs["gates"]`` says in words whether the gates passed.

        Raises:
            UserError: as of ``summarize``.
        """
        summary = self.summarize()
        rows = [_row(name, estimate=summary.of_windows(name)) for name in WINDOW_QUANTITIES]
        for selection in summary.selections:
            of = selection_json(selection)
            rows += [_row(name, estimate=selection.estimate(name), of=of) for name in SELECTION_QUANTITIES]
        frame = pd.DataFrame(rows).dropna(subset="mean").reset_index(drop=True).astype({"k": "Int64"})
        frame.attrs["gates"] = gates_words(summary)
        return frame

    def __repr__(self) -> str:
        return f"Results({len(self.windows):,} windows, selectors {', '.join(self.selections['selector'].unique())})"

    def _repr_html_(self) -> str:
        summary = self.summarize()
        facts = {
            "measured": measured_words(summary),
            "windows": data_words(summary),
            "gates": gates_words(summary),
            "first token": anchor_warning(summary.setup),
        }
        words = pd.DataFrame({"": {name: value for name, value in facts.items() if value}}).to_html()
        return words + str(self.summary().to_html(max_rows=20, notebook=True, float_format="{:.4f}".format))


def _check_whole(selections: pa.Table, *, num_windows: int) -> None:
    """Check that ``selections`` has every selector that it holds in all windows, in each context that it has, and in both.

    Raises:
        UserError: some rows are gone.
    """
    counted = [("window_id", "count_distinct"), ("draw", "count_distinct"), ("window_id", "count")]
    choices = selections.group_by(["selector", "context"]).aggregate(counted).to_pylist()
    found = {(of["selector"], of["context"]) for of in choices}
    is_whole = all(
        of["window_id_count_distinct"] == num_windows
        and of["window_id_count"] == num_windows * max(1, of["draw_count_distinct"])
        for of in choices
    )
    if not (choices and is_whole and all((name, context) in found for name, _ in found for context in CONTEXTS)):
        raise UserError(
            "selections: must hold each selector in every window, under the real and the null context, and likewise in its other "
            "contexts; filter windows, or what tidy() returns"
        )


def _row(name: str, *, estimate: Any, of: Optional[dict[str, Any]] = None) -> dict[str, Any]:
    """Return one row of ``Results.summary``."""
    of = of or {}
    numbers = {key: getattr(estimate, key, None) for key in ("mean", "low", "high", "standard_error")}
    return {"quantity": name, "selector": of.get("selector"), "context": of.get("context"), "k": of.get("k"), **numbers}


@typed
def read_results(folder: str | Path) -> Results:
    """Read a finished measurement into memory.

    Args:
        folder: an influence folder, or a run: its newest measurement.

    Raises:
        UserError: there is no finished measurement.
    """
    tables = find_tables(Path(os.path.expanduser(folder)))
    frames = {name: read_table(tables, name).to_pandas() for name in ("windows", "selections")}
    return Results(frames["windows"], frames["selections"], read_manifest(tables), tables)


@typed
def figure4(results: Results | str | Path, *, selector: str = "kl") -> Figure:
    """Draw Figure 4: the sparse gain against the long gain, window by window, a panel for each k up to a quarter of all.

    Args:
        results: a measurement, or the folder of one (an influence folder, or a run).
        selector: whose choices to draw.

    Returns:
        A figure of matplotlib, which notebooks show; ``savefig`` writes it.

    Raises:
        UserError: the selector was not measured.
    """
    folder = None if isinstance(results, Results) else find_tables(Path(os.path.expanduser(results)))
    if not isinstance(results, Results):
        results = read_results(results)
    measured = results.selections["selector"].unique().tolist()
    if selector not in measured:
        raise UserError(f"selector = {selector!r}: not measured; the measured selectors are {', '.join(measured)}")
    script = figure_script("figure4")
    with tempfile.TemporaryDirectory() as saved:
        figure: Figure = script.figure_of(folder or results.save(Path(saved) / "influence"), selector)
    return figure
