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
from olmo_sparsity.files import manifest_of_kind
from olmo_sparsity.measure.parts import measure_parts
from olmo_sparsity.statistics.frames import CONTEXTS, Frames, frames_of
from olmo_sparsity.statistics.quantities import estimate
from olmo_sparsity.statistics.spectrum import sufficient_k
from olmo_sparsity.tables import COLUMNS, RESAMPLED, find_tables, missing_parts, read_manifest, read_table, schemas_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)
# Columns of both tables that ``Results.tidy`` has.
LOSSES_OF_WINDOW = ["loss_short_nats", "loss_long_nats", "gain_long_nats"]
OF_WINDOW = ["window_id", "doc_id", "weight", "source", "target_class", "target_text", *LOSSES_OF_WINDOW]
OF_SELECTION = ["window_id", "selector", "context", "draw", "sees_target", "num_evaluations"]


@dataclass(frozen=True, eq=False)  # whether frames are equal has no one answer
class Results:
    """One measurement."""

    windows: pd.DataFrame  # the table ``windows``
    selections: pd.DataFrame  # the table ``selections``
    manifest: dict[str, Any]
    folder: Optional[Path] = None  # the influence folder; None: measured in memory

    @typed
    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the tables as an influence folder, which ``summary``, ``show``, ``report`` and the figures read.

        Where the folder holds these tables already, nothing is written, and a line of the log says so.

        Args:
            folder: where to; its name is that of the measurement.
            overwrite: replace another measurement in this folder.

        Raises:
            UserError: the folder holds something else, another measurement or other values of this one, and ``overwrite`` is
                False; or windows are missing, or the tables hold values that no measurement has.
        """
        out = Path(os.path.expanduser(folder))
        tables = self._tables()
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

    def summary(self, by: Optional[str] = None) -> pd.DataFrame:
        """Return every number of the measurement with its 95% interval, one a row.

        They are of the rows that ``windows`` holds now: of some windows, the means over these.

        Args:
            by: ``target_class``: the numbers of each class of targets.

        Returns:
            Columns ``quantity``, ``selector``, ``context``, ``k``, ``group`` and ``x`` (missing where they do not apply),
            ``value``, ``low``, ``high`` and ``se`` in nats or a share, ``n_windows`` and ``n_documents``. There is no R(k) where
            the interval of ``gate_gain_nats`` is not above 0.

        Raises:
            UserError: ``windows`` has no rows, or ``selections`` lacks some of a selector in these windows.
        """
        return estimate(self._frames(), by=by)

    def spectrum(self) -> pd.DataFrame:
        """Return how many long-range tokens each target needs: the dependency spectrum target by target.

        Returns:
            One row for each window, selector, context and tolerance. ``k`` is the smallest measured k with KL(p_all, p_{J_k}) of
            at most ``tolerance_nats``: 0 where the local tokens suffice, infinity where more than ``max_k`` are needed. An
            interpolated quantile of ``k`` is missing beside infinity; take ``quantile(..., interpolation="higher")``.

        Raises:
            UserError: as of ``summary``.
        """
        return sufficient_k(self._frames())

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
        names = [column.name for column in COLUMNS["selections"]]
        per_k = names[names.index("k") + 1 :]
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

    def _frames(self) -> Frames:
        """Return the numbers, window by window, of the rows that ``windows`` holds now."""
        tables = self._tables()
        if len(tables["windows"]) == 0:
            raise UserError("windows: there are no windows")
        window_ids = tables["windows"]["window_id"].combine_chunks()
        tables["selections"] = tables["selections"].filter(pc.field("window_id").isin(window_ids))
        _check_whole(tables["selections"], num_windows=len(window_ids.unique()))
        return frames_of(self.manifest, lambda table, columns: [tables[table].select(columns)], where="selections")

    def _tables(self) -> dict[str, pa.Table]:
        return {
            name: self._table(name, frame)
            for name, frame in (("windows", self.windows), ("selections", self.selections))
        }

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
        return table

    def __repr__(self) -> str:
        return f"Results({len(self.windows):,} windows, selectors {', '.join(self.selections['selector'].unique())})"

    def _repr_html_(self) -> str:
        return str(self.summary().to_html(max_rows=20, notebook=True, float_format="{:.4f}".format))


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
    from olmo_sparsity.view.report import analysis  # templates are for pages alone

    with tempfile.TemporaryDirectory() as saved:
        if isinstance(results, Results):
            tables = results.save(Path(saved) / "influence")
        else:
            tables = find_tables(Path(os.path.expanduser(results)))
        figure: Figure = analysis("figure4").figure(tables, selector)
    return figure
