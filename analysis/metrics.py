"""The metrics of training runs, read for figures from ``metrics.jsonl`` and ``manifest.json``."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.folders import folder_name, is_folder_of_kind
from olmo_sparsity.storage.manifests import read_config_of

NEEDED = ["step", "tokens", "loss_nats"]
EVALUATED = ["validation_loss_nats", "loss_within_train_len_nats", "loss_beyond_train_len_nats"]
OTHERS = [*EVALUATED, "learning_rate", "grad_norm", "tokens_per_second", "share_of_peak"]
BY_POSITION = "loss_by_position_nats"
NUM_CURVES = 4  # losses by position that are drawn: the first evaluation, the last, and some between


@dataclass(frozen=True)
class TrainingRun:
    """What one run has logged so far.

    Attributes:
        name: name of its folder.
        lines: one row for each line of ``metrics.jsonl``; losses in nats, missing where nothing was evaluated.
        row_len: tokens of a training row.
        steps: number of steps that the run is configured for.
    """

    name: str
    lines: pd.DataFrame
    row_len: int
    steps: int

    def evaluations(self, column: str) -> pd.DataFrame:
        """Return the lines that have a value in this column."""
        return self.lines[self.lines[column].notna()]

    def evaluations_by_position(self) -> pd.DataFrame:
        """Return the lines whose losses by position are drawn: the first, the last, and some evenly between."""
        lines = self.evaluations(BY_POSITION)
        if not len(lines):
            return lines
        return lines.iloc[np.unique(np.linspace(0, len(lines) - 1, NUM_CURVES).round().astype(int))]


def read_training_run(run: Path) -> TrainingRun:
    """Read what a run has logged so far, without a last line that was cut short.

    Raises:
        UserError: there is no run, it has not logged a line, or a file is not what a run writes.
    """
    if not is_folder_of_kind(run, "run"):
        raise UserError(
            f"{run}: there is no training run here; name the folder of one, or run `olmo-sparsity train` first"
        )
    lines = _read_lines(run / "metrics.jsonl")
    config = read_config_of(run)
    return TrainingRun(folder_name(run), lines, config.context.row_len, config.training.steps)


def _read_lines(path: Path) -> pd.DataFrame:
    """Return ``TrainingRun.lines``. Columns that are not there are empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{path}: cannot be read as text") from None
    text = text[: text.rfind("\n") + 1]
    if not text.strip():
        raise UserError(f"{path}: nothing is written there yet; a run writes every training.log_every steps")
    try:
        lines = pd.read_json(StringIO(text), lines=True, convert_dates=False, precise_float=True)
    except ValueError:
        raise UserError(f"{path}: not lines of JSON, the file is damaged") from None
    if missing := [key for key in NEEDED if key not in lines or not _are_numbers(lines[key])]:
        raise UserError(f"{path}: no numbers under {', '.join(missing)}; this is not the metrics.jsonl of a run")
    lines = lines.reindex(columns=[*NEEDED, *OTHERS, BY_POSITION])
    lines[OTHERS] = lines[OTHERS].apply(pd.to_numeric, errors="coerce")
    return lines


def _are_numbers(values: pd.Series) -> bool:
    """Return whether each line has a number here; true is none."""
    return (
        pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values) and bool(values.notna().all())
    )


def running_median(values: pd.Series) -> pd.Series:
    """Return the median over some 8% of the lines around each line; with few lines, the values themselves."""
    return values.rolling(2 * (len(values) // 25) + 1, center=True, min_periods=1).median()
