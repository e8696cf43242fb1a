"""The numbers of an influence folder, loaded for statistics and figures."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import pandas as pd
import pyarrow as pa

from olmo_sparsity.errors import UserError
from olmo_sparsity.tables.reading import list_rows, read_manifest, read_parts, rows_by_choice

CONTEXTS = ("real", "null")
LONG_GAIN = {"real": "gain_long_nats", "null": "null_gain_long_nats"}  # the column of ``windows`` for each context
NUMBERS = ("loss_short_nats", "loss_long_nats", *LONG_GAIN.values())


class SelectionKey(NamedTuple):
    """What a selection is named by. A tuple, since pandas names columns of several levels by tuples.

    Attributes:
        selector: name of the selector.
        context: ``real`` or ``null``.
        k: number of unmasked long-range tokens.
    """

    selector: str
    context: str
    k: int


@dataclass(frozen=True)
class SelectorInfo:
    """What is known of a selector before it is measured.

    Attributes:
        sees_target: True if its scores depend on the target, so that part of its gain is selection luck.
        num_evaluations: cost of one window's scores, in forward passes over one row.
    """

    sees_target: bool
    num_evaluations: int


@dataclass(frozen=True)
class Lengths:
    """Lengths of the experiment in tokens, and the position IDs of training, as the manifest records them under ``context``.

    Attributes:
        local_len: L, tokens that the model always sees.
        full_len: Lbar, tokens of a window.
        train_len: tokens of a training row.
        max_position: position IDs of training rows lie below this.
        num_chunks: chunks of a training row; 1: no PoSE.
        num_long_range: M, the long-range tokens of a window.
        pose_method: ``pose`` or ``randpos``; None: the manifest is older than this setting.
        pose_contents: which text the chunks of a training row hold; None: the manifest is older than this setting.
    """

    local_len: int
    full_len: int
    train_len: int
    max_position: int
    num_chunks: int
    num_long_range: int
    pose_method: Optional[str] = None
    pose_contents: Optional[str] = None

    @classmethod
    def from_manifest(cls, manifest: dict[str, Any]) -> Lengths:
        """Read the lengths from the manifest of a folder of tables."""
        recorded = manifest["context"]
        return cls(**{field.name: recorded[field.name] for field in fields(cls) if field.name in recorded})


@dataclass(frozen=True)
class Measurement:
    """What statistics and figures read from one influence folder.

    Attributes:
        windows: one row a window, by rising ``window_id``; columns window_id, doc_id, target_class, losses and gains.
        gains: sparse gains in nats, float32; rows as in ``windows``, columns (selector, context, k).
        selectors: the measured selectors, by name.
        manifest: the manifest of the folder.
    """

    windows: pd.DataFrame
    gains: pd.DataFrame
    selectors: dict[str, SelectorInfo]
    manifest: dict[str, Any]

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

    @property
    def num_documents(self) -> int:
        """Number of documents that the windows come from."""
        return int(self.windows["doc_id"].nunique())

    def restrict(self, keep: np.ndarray | slice) -> Measurement:
        """Return the measurement of some windows; ``keep`` is bool [W], or a slice, which copies nothing."""
        return replace(self, windows=self.windows[keep], gains=self.gains[keep])


def window_rows(windows: pd.DataFrame, window_ids: Any) -> np.ndarray:
    """Return the row of ``Measurement.windows`` of each window, int64; -1 for windows that are not in it."""
    known, wanted = windows["window_id"].to_numpy(), np.asarray(window_ids)
    rows = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    return np.where(known[rows] == wanted, rows, -1)


def load(folder: Path) -> Measurement:
    """Read the numbers of a finished influence folder, without positions and scores.

    The tables are read part by part. The result takes 4 bytes a window for every column of ``gains`` and some 50 bytes for
    its row of ``windows`` (half of them for the document's name of 16 characters). A million windows with six selectors, two
    contexts and four k take 240 MB.

    Raises:
        UserError: the tables are missing, unfinished, of another schema, or some window lacks a selection.
    """
    manifest = read_manifest(folder)
    windows = _load_windows(folder)
    gains, selectors = _load_gains(folder, windows)
    return Measurement(windows, gains, selectors, manifest)


def _load_gains(folder: Path, windows: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, SelectorInfo]]:
    """Return ``Measurement.gains`` and ``Measurement.selectors``."""
    choices: list[tuple[str, str]] = []
    ks: list[int] = []
    selectors: dict[str, SelectorInfo] = {}
    gains_FKW = np.empty((0, 0, len(windows)), np.float32)
    filled_FW = np.empty((0, len(windows)), bool)
    columns = ["window_id", "selector", "context", "sees_target", "num_evaluations", "k", "gain_sparse_nats"]
    for part in read_parts(folder, "selections", columns=columns):
        rows_R, gains_RK = window_rows(windows, part["window_id"]), list_rows(part["gain_sparse_nats"])
        rows_of_choices = list(rows_by_choice(part))
        if not choices:  # all windows have the same choices, so those of the first part are all
            choices = [(selector, context) for selector, context, _ in rows_of_choices]
            ks = part["k"][0].as_py()
            gains_FKW = np.empty((len(choices), len(ks), len(windows)), np.float32)
            filled_FW = np.zeros((len(choices), len(windows)), bool)
        for selector, context, rows_r in rows_of_choices:
            if (selector, context) not in choices or (rows_R[rows_r] < 0).any():
                raise UserError(f"{folder}: its parts belong to different measurements; measure again with --overwrite")
            choice = choices.index((selector, context))
            gains_FKW[choice][:, rows_R[rows_r]] = gains_RK[rows_r].T
            filled_FW[choice, rows_R[rows_r]] = True
            first = int(rows_r[0])
            selectors.setdefault(
                selector, SelectorInfo(part["sees_target"][first].as_py(), part["num_evaluations"][first].as_py())
            )
    if not filled_FW.all():
        raise UserError(f"{folder}: some windows lack selections; measure again with --overwrite")
    keys = [(selector, context, k) for selector, context in choices for k in ks]
    gains = pd.DataFrame(
        gains_FKW.reshape(len(keys), -1).T,  # a column is contiguous; no copy
        index=pd.Index(windows["window_id"]),
        columns=pd.MultiIndex.from_tuples(keys, names=list(SelectionKey._fields)),
        copy=False,
    )
    return gains, selectors


def _load_windows(folder: Path) -> pd.DataFrame:
    """Return ``Measurement.windows``: window_id int64, rising; doc_id as Arrow strings; target_class categorical; float32."""
    chunks_of: dict[str, list[Any]] = {name: [] for name in ("window_id", "doc_id", "target_class", *NUMBERS)}
    for part in read_parts(folder, "windows", columns=list(chunks_of)):
        for name, chunks in chunks_of.items():
            chunks += part[name].chunks if name in ("doc_id", "target_class") else [part[name].to_numpy()]
    columns: dict[str, Any] = {}
    for name in list(chunks_of):
        chunks = chunks_of.pop(name)
        if name == "doc_id":
            # In one chunk: each access would go through as many chunks as there are parts.
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
