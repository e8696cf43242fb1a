"""Accuracies on synthetic tasks as rows of the frame, over sequences and seeds.

All seeds of a model answer the same sequences, so sequences and seeds are crossed, as documents and seeds are elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals import Share, Sums, bootstrap
from olmo_sparsity.statistics.quantities import COLUMNS
from olmo_sparsity.statistics.seeds import same_model
from olmo_sparsity.tables import newest_finished, read_manifest, read_table, run_of_tables

LEVEL = 0.95  # the accuracy of a task that is learned
# What runs of one model have in common.
SETTING = (
    "task", "positions", "scratchpad", "modulus", "background", "max_sparsity", "train_lengths", "num_chunks", "max_position",
    "position_embedding",
)  # fmt: skip
METHODS = {
    "randpos": "RandPos", "shifted": "random shift", "coupled": "true positions given", "predicted": "positions predicted",
}  # fmt: skip
COUNTED = {"accuracy": "right", "accuracy_tokens": "tokens_right"}  # quantity -> column of ``answers``
OF_SEQUENCES = ["window_id", "length_tokens", "sparsity", "place", "true_ids"]  # equal where the same was asked


def read_synthetic(folders: Iterable[Path]) -> pd.DataFrame:
    """Read accuracies from runs that ``synth eval`` has evaluated, or from folders of its tables.

    Returns:
        rows ``accuracy`` (of whole responses) and ``accuracy_tokens`` (wrong position IDs are forgiven), with the length of the
        prompt as x, k, the place of the planted tokens as group (``inside`` the training row, ``beyond`` it, or None), and the
        column ``model``. ``attrs["settings"]`` has for each model its settings, ``seeds``, their number, and ``learned``: how
        many have an accuracy of at least ``LEVEL`` on prompts as in training, of how many that answered any.

    Raises:
        UserError: a folder has no finished table, or the seeds of a model were evaluated on different sequences.
    """
    groups: dict[str, list[Path]] = {}
    for folder in folders:
        tables = folder if (folder / "answers").is_dir() else newest_finished(folder, "synthetic")
        groups.setdefault(json.dumps(_setting(read_manifest(tables, "synthetic"))), []).append(tables)
    settings = [json.loads(setting) for setting in groups]
    labels = _labels(settings)
    rows: list[dict[str, Any]] = []
    for label, setting, of_seeds in zip(labels, settings, groups.values(), strict=True):
        seeds = _answers_of_seeds(label, of_seeds)
        rows += [{"model": label, **row} for row in _accuracies(seeds)]
        setting |= {"seeds": len(seeds), "learned": _learned(setting, seeds)}
    table = pd.DataFrame(rows).reindex(columns=[*COLUMNS, "model"]).astype({"k": "Int64", "x": "float64"})
    table["selector"], table["context"] = None, None
    table.attrs["settings"] = dict(zip(labels, settings, strict=True))
    return table


def _setting(manifest: dict[str, Any]) -> dict[str, Any]:
    known = {**manifest, "max_position": manifest["context"]["max_position"]}
    return {key: known.get(key) for key in SETTING}


def _labels(settings: Sequence[dict[str, Any]]) -> list[str]:
    """Return distinct names: the task, how positions are given, and the keys in which settings of one name differ."""

    def name(of: dict[str, Any]) -> str:
        task = of["task"] if of["modulus"] == 2 else f"sum modulo {of['modulus']}"
        method = METHODS.get(of["positions"], "PoSE" if of["num_chunks"] > 1 else "without PoSE")
        method = "no positions" if of["position_embedding"] == "none" else method
        return f"{task}{' in text' * (of['background'] == 'text')}, {method}{', scratchpad' * of['scratchpad']}"

    names = [name(setting) for setting in settings]
    labels = []
    for own, setting in zip(names, settings, strict=True):
        alike = [other for other, of in zip(settings, names, strict=True) if of == own]
        differing = [key for key in setting if any(other[key] != setting[key] for other in alike)]
        labels.append(", ".join([own, *(f"{key}={json.dumps(setting[key])}" for key in differing)]))
    return labels


def _answers_of_seeds(label: str, folders: Sequence[Path]) -> list[pd.DataFrame]:
    """Return the table ``answers`` of each seed of one model, all of the same sequences."""
    runs = [run for tables in folders if (run := run_of_tables(tables, "synthetic")) is not None]
    if len(runs) == len(folders) and all((run / "manifest.json").is_file() for run in runs):  # none lies elsewhere
        same_model(runs, advice="summarize them apart")
    if len({read_manifest(tables, "synthetic")["training_seed"] for tables in folders}) < len(folders):
        raise UserError(f"{label}: two evaluations are of the same training seed; name each seed once")
    answers = [_answers(tables) for tables in folders]
    if not all(of_seed[OF_SEQUENCES].equals(answers[0][OF_SEQUENCES]) for of_seed in answers):
        raise UserError(
            f"{label}: its seeds were evaluated on different sequences; evaluate them with the same "
            "synthetic.test_lengths, test_sparsity and test_rows"
        )
    return answers


def _answers(tables: Path) -> pd.DataFrame:
    answers = read_table(tables, "answers").to_pandas().sort_values("window_id", ignore_index=True)
    return answers.assign(place=answers.get("place", ""), true_ids=answers["true_ids"].map(tuple))


def _accuracies(seeds: Sequence[pd.DataFrame]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one model, by length, k and place."""
    cells: dict[Any, Any] = dict(seeds[0].groupby(["length_tokens", "sparsity", "place"]).indices)
    for (length, k, place), rows in sorted(cells.items(), key=lambda cell: (*cell[0][:2], cell[0][2] != "inside")):
        sums = [
            {name: of.loc[rows, column].to_numpy(float) for name, column in COUNTED.items()}
            | {"sequences": np.ones(len(rows))}
            for of in seeds
        ]
        cell = {"k": k, "x": length, "group": place or None, "n_windows": len(rows), "n_documents": len(rows)}
        for quantity, (value, low, high, se) in bootstrap([sums], _shares).items():
            low, high = np.clip([low, high], 0, 1)
            yield {"quantity": quantity, **cell, "value": float(value), "low": low, "high": high, "se": float(se)}


def _shares(totals: Sums) -> dict[str, Share]:
    return {name: Share(total, totals["sequences"]) for name, total in totals.items() if name != "sequences"}


def _learned(setting: dict[str, Any], seeds: Sequence[pd.DataFrame]) -> tuple[int, int]:
    """Return how many seeds have learned the task, of how many that answered prompts as in training."""
    shares = []
    for answers in seeds:
        is_as_trained = answers["length_tokens"].between(*setting["train_lengths"])
        is_as_trained &= (answers["sparsity"] <= setting["max_sparsity"]) & (answers["place"] != "beyond")
        shares += [answers.loc[is_as_trained, "right"].mean()] * bool(is_as_trained.any())
    return sum(bool(share >= LEVEL) for share in shares), len(shares)
