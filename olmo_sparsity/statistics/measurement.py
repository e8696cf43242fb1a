"""The numbers of an influence folder, loaded for statistics. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from olmo_sparsity.errors import UserError
from olmo_sparsity.tables.reading import list_rows, read_manifest, read_parts, rows_by_choice

LONG_GAIN = {"real": "gain_long_nats", "null": "null_gain_long_nats"}
NUMBERS = ("loss_short_nats", "loss_long_nats", *LONG_GAIN.values())


@dataclass(frozen=True)
class Measurement:
    """What statistics and figures read of one influence folder.

    Attributes:
        windows: a row a window, by ``window_id``: window_id, doc_id, target_class, loss and gain columns.
        gains: sparse gain in nats, float32; rows as in ``windows``, columns (selector, context, k).
        selectors: name -> ``sees_target``, ``num_evaluations``.
        facts: the manifest.
    """

    windows: pd.DataFrame
    gains: pd.DataFrame
    selectors: dict[str, dict[str, Any]]
    facts: dict[str, Any]

    @property
    def keys(self) -> list[tuple[str, str, int]]:
        """(selector, context, k) of every column of ``gains``."""
        return cast(list[tuple[str, str, int]], self.gains.columns.tolist())

    @property
    def ks(self) -> list[int]:
        """The measured k, rising."""
        return sorted({k for _, _, k in self.keys})

    def restrict(self, keep: np.ndarray | slice) -> Measurement:
        """The same of some windows; ``keep`` is bool [windows], or a slice, which copies nothing."""
        return Measurement(self.windows[keep], self.gains[keep], self.selectors, self.facts)


def window_rows(windows: pd.DataFrame, window_ids: Any) -> np.ndarray:
    """In which row of ``Measurement.windows`` each of these windows is, int64; -1 where in none."""
    known, wanted = windows["window_id"].to_numpy(), np.asarray(window_ids)
    rows = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    return np.where(known[rows] == wanted, rows, -1)


def load(folder: Path) -> Measurement:
    """Reads the numbers of a finished influence folder; positions and scores are left where they are.

    The tables are read part by part. What is kept, and nearly all that is ever held, is 4 bytes a window for every column of
    ``gains`` and some 50 for its row of ``windows`` (half of them are the name of its document, of 16 characters). A million
    windows with six selectors in two contexts and four k take 240 MB.

    Raises:
        UserError: the tables are missing, unfinished, of another schema, or some window lacks a selection.
    """
    facts = read_manifest(folder)
    windows = _load_windows(folder)
    choices: list[tuple[str, str]] = []
    ks: list[int] = []
    selectors: dict[str, dict[str, Any]] = {}
    gains_CKW = np.empty((0, 0, len(windows)), np.float32)
    filled = np.empty((0, len(windows)), bool)
    columns = ["window_id", "selector", "context", "sees_target", "num_evaluations", "k", "gain_sparse_nats"]
    for part in read_parts(folder, "selections", columns=columns):
        rows_R, gains_RK = window_rows(windows, part["window_id"]), list_rows(part["gain_sparse_nats"])
        of_choice = list(rows_by_choice(part))
        if not choices:  # every window has the same, so the first part names all
            choices = [(selector, context) for selector, context, _ in of_choice]
            ks = part["k"][0].as_py()
            gains_CKW = np.empty((len(choices), len(ks), len(windows)), np.float32)
            filled = np.zeros((len(choices), len(windows)), bool)
        for selector, context, of in of_choice:
            if (selector, context) not in choices or (rows_R[of] < 0).any():
                raise UserError(f"{folder}: its parts are of different measurements; measure again with --overwrite")
            choice = choices.index((selector, context))
            gains_CKW[choice][:, rows_R[of]] = gains_RK[of].T
            filled[choice, rows_R[of]] = True
            selectors.setdefault(
                selector,
                {
                    "sees_target": part["sees_target"][of[0]].as_py(),
                    "num_evaluations": part["num_evaluations"][of[0]].as_py(),
                },
            )
    if not filled.all():
        raise UserError(f"{folder}: some windows lack selections; measure again with --overwrite")
    keys = [(selector, context, k) for selector, context in choices for k in ks]
    gains = pd.DataFrame(
        gains_CKW.reshape(len(keys), -1).T,  # a column is contiguous; no copy
        index=pd.Index(windows["window_id"]),
        columns=pd.MultiIndex.from_tuples(keys, names=["selector", "context", "k"]),
        copy=False,
    )
    return Measurement(windows, gains, selectors, facts)


def _load_windows(folder: Path) -> pd.DataFrame:
    """``Measurement.windows``: window_id int64, rising; doc_id strings held by Arrow; target_class categorical; float32."""
    found: dict[str, list[Any]] = {name: [] for name in ("window_id", "doc_id", "target_class", *NUMBERS)}
    for part in read_parts(folder, "windows", columns=list(found)):
        for name, chunks in found.items():
            chunks += part[name].chunks if name in ("doc_id", "target_class") else [part[name].to_numpy()]
    columns: dict[str, Any] = {}
    for name in list(found):
        chunks = found.pop(name)
        if name == "doc_id":
            # One piece, or every look at it would go through as many pieces as there are parts.
            columns[name] = pd.array(
                pa.chunked_array(chunks).cast(pa.large_string()).combine_chunks(), "string[pyarrow]"
            )
        elif name == "target_class":
            columns[name] = pa.chunked_array(chunks).dictionary_encode().to_pandas()
        else:
            columns[name] = np.concatenate(chunks)
    windows = pd.DataFrame(columns, copy=False)
    return (
        windows if windows["window_id"].is_monotonic_increasing else windows.sort_values("window_id", ignore_index=True)
    )
