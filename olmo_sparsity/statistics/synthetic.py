"""Accuracies on synthetic tasks, and what the engine finds in parity models, over sequences and seeds.

All seeds of a model answer the same sequences, so sequences and seeds are crossed, as documents and seeds are elsewhere
(``olmo_sparsity.statistics.intervals.seeds``). Intervals are cut off at 0 and 1 where the quantity cannot leave them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.seeds import bounded, estimates_of_model
from olmo_sparsity.statistics.intervals.shares import Share
from olmo_sparsity.statistics.several.trained_models import same_model
from olmo_sparsity.storage.manifests import SyntheticTables
from olmo_sparsity.storage.typed import check_type
from olmo_sparsity.tables.reading import read_manifest, read_table, run_of_tables

# Columns that do not depend on what a model answers: equal where the same was asked.
OF_SEQUENCES = ("window_id", "length_tokens", "sparsity", "place", "selector", "true_ids", "planted_positions")


@dataclass(frozen=True)
class Setting:
    """What the runs of one line of a figure have in common: everything but the seed.

    Attributes:
        task: ``parity`` or ``variables``.
        scratchpad: whether the response holds every step.
        positions: how position IDs are given, ``synthetic.positions``.
        max_sparsity: K_train.
        train_lengths: shortest and longest training prompt, in tokens.
        max_position: position IDs lie below this.
        position_embedding: ``model.position_embedding``.
        rope_scaling: how evaluation scaled rotary positions, ``synthetic.rope_scaling``.
        rope_factor: its factor; None: each length divided by the longest of training.
        modulus: of the sums of planted values; 2: their parity.
        background: ``noise`` or ``text``.
        num_chunks: of PoSE; 1: ordinary position IDs.
        locality: tokens that hold all planted ones in training; None: anywhere in the prompt.
        spread: least distance of two planted tokens in training.
    """

    task: str
    scratchpad: bool
    positions: str
    max_sparsity: int
    train_lengths: tuple[int, int]
    max_position: int
    position_embedding: str = "rope"
    rope_scaling: str = "none"
    rope_factor: Optional[float] = None
    modulus: int = 2
    background: str = "noise"
    num_chunks: int = 2
    locality: Optional[int] = None
    spread: int = 1

    @property
    def is_placed_anywhere(self) -> bool:
        """Whether planted tokens may lie anywhere in the prompts of training."""
        return self.locality is None and self.spread == 1


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of one setting at one length and sparsity.

    Attributes:
        setting: what was trained.
        length: tokens of the prompt.
        k: sparsity of the evaluated sequences.
        right: share of right responses, the mean over the seeds, with its interval.
        tokens_right: the same where wrong position IDs are forgiven.
        of_seeds: share of right responses of each seed.
        place: of the planted tokens, ``inside`` the row or ``beyond`` it; None: as in training.
    """

    setting: Setting
    length: int
    k: int
    right: Estimate
    tokens_right: Estimate
    of_seeds: tuple[float, ...]
    place: Optional[str] = None


def setting_of(manifest: dict[str, Any], *, where: Path) -> Setting:
    """Return the setting that the manifest of a measurement records.

    Raises:
        UserError: a key of the manifest, in the file ``where``, is missing or wrong.
    """
    tables = check_type(manifest, SyntheticTables, where=where)
    return Setting(
        task=tables.task,
        scratchpad=tables.scratchpad,
        positions=tables.positions,
        max_sparsity=tables.max_sparsity,
        train_lengths=tables.train_lengths,
        max_position=tables.context.max_position,
        position_embedding=tables.position_embedding,
        rope_scaling=tables.rope_scaling,
        rope_factor=tables.rope_factor,
        modulus=tables.modulus,
        background=tables.background,
        num_chunks=tables.num_chunks,
        locality=tables.locality,
        spread=tables.spread,
    )


@dataclass(frozen=True)
class TableOfSeed:
    """The table of one run.

    Attributes:
        folder: of the table.
        manifest: of the folder.
        columns: of the table, by name.
    """

    folder: Path
    manifest: Mapping[str, Any]
    columns: dict[str, np.ndarray]


def tables_by_setting(folders: Iterable[Path]) -> dict[Setting, list[TableOfSeed]]:
    """Return the tables ``answers`` of each setting, one for each seed.

    Raises:
        UserError: a folder has no finished table, or two are of one setting and seed.
    """
    groups: dict[Setting, list[Path]] = {}
    for folder in folders:
        setting = setting_of(read_manifest(folder, "synthetic"), where=folder / "manifest.json")
        groups.setdefault(setting, []).append(folder)
    for group in groups.values():
        _check_seeds(group)
    return {
        setting: [TableOfSeed(folder, read_manifest(folder, "synthetic"), _columns(folder)) for folder in group]
        for setting, group in groups.items()
    }


def _columns(folder: Path) -> dict[str, np.ndarray]:
    frame = read_table(folder, "answers").to_pandas()
    return {name: frame[name].to_numpy() for name in frame.columns}


def _check_seeds(folders: Sequence[Path]) -> None:
    """Check that the tables of one setting are of runs that differ in the seed of training only, and each in it.

    Raises:
        UserError: they are not.
    """
    runs = [
        run for folder in folders if (run := run_of_tables(folder, "synthetic")) and (run / "manifest.json").is_file()
    ]
    if len(runs) == len(folders) > 1:  # tables may lie elsewhere, too
        same_model(runs, advice="summarize them apart")
    seen: dict[int, Path] = {}
    for folder in folders:
        seed = read_manifest(folder, "synthetic")["training_seed"]
        if seed in seen:
            raise UserError(f"{folder}: the same setting and seed as {seen[seed]}; give one of them")
        seen[seed] = folder


def check_same_rows(setting: Setting, seeds: list[dict[str, np.ndarray]]) -> None:
    """Check that the rows of all seeds are of the same sequences, in the same order.

    Raises:
        UserError: they are not.
    """
    for columns in seeds[1:]:
        if not all(_same(columns[name], seeds[0][name]) for name in OF_SEQUENCES if name in columns):
            raise UserError(
                f"{setting.task}, {setting.positions}: its seeds were measured on different sequences; measure them with the "
                "same synthetic.test_seed, test_lengths, test_sparsity and test_rows"
            )


def _same(column: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two columns are equal; their values may be arrays."""
    return len(column) == len(other) and all(map(np.array_equal, column, other))


def _shares(totals: Mapping[str, np.ndarray]) -> dict[str, Share]:
    return {name: Share(total, totals["num"]) for name, total in totals.items() if name != "num"}


@dataclass(frozen=True)
class TableCell:
    """The evaluated sequences of one length, sparsity and place of the planted tokens; place None: anywhere."""

    length: int
    k: int
    place: Optional[str]

    def rows(self, table: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return which rows of ``answers`` are of this cell, bool."""
        rows_R = (table["length_tokens"] == self.length) & (table["sparsity"] == self.k)
        return np.asarray(rows_R if self.place is None else rows_R & (table["place"] == self.place))


def cells_of_table(table: Mapping[str, np.ndarray]) -> list[TableCell]:
    """Return the cells of ``answers``, by length, k and place; those inside a row before those beyond it."""
    lengths, sparsities = table["length_tokens"].tolist(), table["sparsity"].tolist()
    places = table["place"].tolist() if "place" in table else [None] * len(lengths)
    cells = {TableCell(*cell) for cell in zip(lengths, sparsities, places, strict=True)}
    return sorted(cells, key=lambda cell: (cell.length, cell.k, cell.place != "inside", cell.place or ""))


def read_accuracies(folders: Iterable[Path]) -> list[Accuracy]:
    """Return the accuracy of every setting, length and sparsity, from folders of ``synth eval``.

    Raises:
        UserError: a folder has no finished table, or the seeds of a setting were evaluated on different sequences.
    """
    accuracies = []
    for setting, of_seeds in tables_by_setting(folders).items():
        seeds = [seed.columns for seed in of_seeds]
        check_same_rows(setting, seeds)
        for cell in cells_of_table(seeds[0]):
            in_cell_W = cell.rows(seeds[0])
            sums = [
                {
                    "right": seed["right"][in_cell_W].astype(float),
                    "tokens": seed["tokens_right"][in_cell_W].astype(float),
                    "num": np.ones(int(in_cell_W.sum())),
                }
                for seed in seeds
            ]
            shares = estimates_of_model(sums, _shares)
            accuracies.append(
                Accuracy(
                    setting=setting,
                    length=cell.length,
                    k=cell.k,
                    right=bounded(shares["right"]),
                    tokens_right=bounded(shares["tokens"]),
                    of_seeds=tuple(float(of_seed["right"].mean()) for of_seed in sums),
                    place=cell.place,
                )
            )
    return accuracies


def predicted_accuracy(accuracy: Accuracy) -> Optional[float]:
    """Return the accuracy that the theory of arXiv 2502.16792 predicts for a point; None where it says nothing.

    The theory is of tokens that depend on few others (sparsity) near each other by their position IDs (locality): where training
    meets both, the accuracy is 1, at any length. In these tasks the tokens that a response depends on lie anywhere in the prompt,
    so their distances are those of training up to the longest training prompt only. What PoSE adds beyond it is empirical.
    """
    setting = accuracy.setting
    meets = accuracy.k <= setting.max_sparsity and accuracy.length <= setting.train_lengths[1]
    return 1.0 if meets else None
