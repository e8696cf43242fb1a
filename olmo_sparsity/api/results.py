"""What was measured, as DataFrames with the columns of the tables."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.parts import begun, is_complete, missing
from olmo_sparsity.statistics.frames import CONTEXTS, Frames, frames_of
from olmo_sparsity.statistics.quantities import estimate
from olmo_sparsity.statistics.spectrum import sufficient_k
from olmo_sparsity.tables import find_tables, read_manifest, read_table, schemas_of
from olmo_sparsity.view.report import analysis
from olmo_sparsity.view.summary import answers


@dataclass(frozen=True, eq=False)
class Results:
    """One measurement. Numbers are of the rows that ``windows`` holds; filter it to get those of some windows."""

    windows: pd.DataFrame  # the table ``windows``
    selections: pd.DataFrame  # the table ``selections``
    manifest: dict[str, Any]

    def summary(self, by: Optional[str] = None) -> pd.DataFrame:
        """Every number with its 95% interval, one a row; ``by="target_class"``: of each class of targets.

        Columns: ``quantity``, ``selector``, ``context``, ``k``, ``group`` and ``x``, which are missing where they do not apply;
        ``value``, ``low``, ``high`` and ``se`` in nats or a share; ``n_windows`` and ``n_documents``.
        """
        return estimate(self._frames(), by=by)

    def headline(self) -> pd.DataFrame:
        """The answers that ``olmo-sparsity summary`` begins with: question, verdict, sentence and number."""
        return pd.DataFrame(answers(self.summary()))

    def spectrum(self) -> pd.DataFrame:
        """The smallest number of tokens that each target needs, as ``olmo_sparsity.statistics.spectrum.sufficient_k`` has it."""
        return sufficient_k(self._frames())

    def plot(self, figure: str = "first_picture", **options: Any) -> Any:
        """A figure of matplotlib: a file of ``analysis``, such as ``figure4`` with ``selector="kl"``."""
        drawn = analysis("drawing").figure_module(figure)
        if drawn.NEEDS == "frame":
            return drawn.figure(self.summary(), **options)
        with tempfile.TemporaryDirectory() as folder:
            return drawn.figure(self.save(Path(folder) / "influence"), **options)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the measurement into a folder, which ``summary``, ``show``, ``report`` and the figures read."""
        out, tables, manifest = Path(os.path.expanduser(folder)), self._tables(), self.manifest
        if sorted(self.windows["window_id"]) != list(range(manifest["num_windows"])):
            raise UserError("windows: some of those that were measured are missing; only all of them are saved")
        if not overwrite and is_complete(out, begun(out, run_id=manifest["run_id"])):
            if any(not read_table(out, name).equals(table) for name, table in tables.items()):
                raise UserError(
                    f"{out}: holds other values of this measurement; choose another folder or overwrite=True"
                )
            return out
        for window_ids, write in missing(out, manifest, part_size=len(self.windows), overwrite=overwrite):
            write({name: table.filter(pc.field("window_id").isin(window_ids)) for name, table in tables.items()})
        return out

    def _frames(self) -> Frames:
        tables = self._tables()
        window_ids = tables["windows"]["window_id"].combine_chunks()
        if len(window_ids) == 0:
            raise UserError("windows: there are no windows")
        tables["selections"] = tables["selections"].filter(pc.field("window_id").isin(window_ids))
        counts = tables["selections"].select(["selector", "context", "draw"]).to_pandas().value_counts()
        both = counts.reset_index().pivot_table(index="selector", columns="context", values="count", aggfunc="size")
        if not (len(counts) and (counts == len(window_ids)).all() and both.reindex(columns=CONTEXTS).notna().all(None)):
            raise UserError("selections: must hold each selector in every window and context; filter windows instead")
        return frames_of(self.manifest, lambda table, columns: [tables[table].select(columns)], where="selections")

    def _tables(self) -> dict[str, pa.Table]:
        tables = {}
        for name, frame in (("windows", self.windows), ("selections", self.selections)):
            try:
                tables[name] = pa.Table.from_pandas(frame, schema=schemas_of(self.manifest)[name], preserve_index=False)
            except (KeyError, pa.ArrowException, TypeError, ValueError) as error:
                raise UserError(f"{name}: not the values of this table ({str(error).splitlines()[0]})") from None
        return tables

    def __repr__(self) -> str:
        return f"Results({len(self.windows):,} windows, selectors {', '.join(self.selections['selector'].unique())})"


def read_results(folder: str | Path) -> Results:
    """Read a finished measurement by its folder, or the newest one of a run."""
    tables = find_tables(Path(os.path.expanduser(folder)))
    windows, selections = (read_table(tables, name).to_pandas() for name in ("windows", "selections"))
    return Results(windows, selections, read_manifest(tables))
