"""Synthetic tasks: accuracy against the length of the prompt (Figures 1 to 3 of arXiv 2502.16792)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from olmo_sparsity.statistics.synthetic import read_synthetic

from .drawing import GREY, SERIES, SHADE, NothingToDraw, draw_line, new_figure, styled

NEEDS = "runs"
Settings = dict[str, dict[str, Any]]  # by the label of the model
SAME = ("task", "modulus", "background", "train_lengths")  # in all settings of a picture


def figure(runs: list[Path]) -> dict[str, Figure]:
    """A picture for each task of the runs."""
    return pictures(read_synthetic(runs))


@styled
def pictures(frame: pd.DataFrame) -> dict[str, Figure]:
    """A picture for each task of a frame of ``read_synthetic``.

    Where models differ in the largest k of training alone, a panel for each of them and a line for each k (Figure 1); else a
    panel for each k and a line for each model (Figures 2 and 3).
    """
    rows = frame[(frame["quantity"] == "accuracy") & frame["group"].isna()]
    settings: Settings = {model: of for model, of in frame.attrs["settings"].items() if model in set(rows["model"])}
    if rows.empty:
        raise NothingToDraw(
            "synthetic: accuracies by the place of the planted tokens; `olmo-sparsity synth summary` lists them"
        )
    tasks: dict[tuple[str, ...], Settings] = {}
    for model, of in settings.items():
        tasks.setdefault(tuple(str(of[key]) for key in SAME), {})[model] = of
    drawn: dict[str, Figure] = {}
    for models in tasks.values():
        first = next(iter(models.values()))
        name = f"synthetic-{first['task']}" + "-scratchpad" * any(of["scratchpad"] for of in models.values())
        name += "-text" * (first["background"] == "text")
        while name in drawn:
            name += "-other"
        drawn[name] = _picture(rows[rows["model"].isin(list(models))], models)
    return drawn


def _picture(rows: pd.DataFrame, models: Settings) -> Figure:
    first, panels = next(iter(models.values())), _panels(rows, models)
    has_steps = any(of["scratchpad"] for of in models.values())
    drawn, axes = new_figure(
        1, len(panels), height=3.0, sharey=True,
        title=f"{_task(first)}{' with a scratchpad' * has_steps}: accuracy by the length of the prompt",
        caption="Shaded: lengths of training. Dotted: chance. Dashed: no scratchpad. Bands: 95% over sequences and seeds.",
    )  # fmt: skip
    for axis, (title, lines) in zip(axes.flat, panels.items(), strict=True):
        for (label, of_line), color in zip(lines.items(), SERIES * len(lines), strict=False):
            is_dashed = has_steps and not models[of_line["model"].iloc[0]]["scratchpad"]
            is_labelled = axis is axes.flat[-1] or lines.keys() != list(panels.values())[-1].keys()
            draw_line(axis, of_line, x="x", color=color, label=label * is_labelled, is_dashed=is_dashed)
        axis.set_title(title)
        axis.axvspan(*first["train_lengths"], color=SHADE, linewidth=0, zorder=0)
        if first["task"] == "parity" and not all(of["scratchpad"] for of in models.values()):
            axis.axhline(1 / first["modulus"], color=GREY, linestyle=":", linewidth=1, gid="chance")
        axis.set(xlim=(0, rows["x"].max()), ylim=(0, 1.03), xlabel="prompt length, tokens")
    axes[0, 0].set_ylabel("accuracy")
    return drawn


def _panels(rows: pd.DataFrame, models: Settings) -> dict[str, dict[str, pd.DataFrame]]:
    """The rows of each line by the title of its panel and by its label."""
    ks = sorted(rows["k"].unique())
    of_line = {(model, k): rows[(rows["model"] == model) & (rows["k"] == k)] for model in models for k in ks}
    of_line = {key: of for key, of in of_line.items() if len(of)}
    if len({of["max_sparsity"] for of in models.values()}) == len(models):
        by_sparsity = sorted(models.items(), key=lambda model: model[1]["max_sparsity"])
        return {
            f"trained on k up to {of['max_sparsity']}{_learned(of)}": {
                f"k = {k}": of_line[model, k] for k in ks if (model, k) in of_line
            }
            for model, of in by_sparsity
        }
    labels = _labels(models)
    return {f"k = {k}": {labels[m]: of_line[m, k] for m in models if (m, k) in of_line} for k in ks}


def _task(setting: dict[str, Any]) -> str:
    if setting["task"] == "parity":
        return "Sparse parity" if setting["modulus"] == 2 else f"Sum modulo {setting['modulus']}"
    return "Variable assignment"


def _labels(models: Settings) -> dict[str, str]:
    """What distinguishes each model from the others, and how many of its seeds have learned where not all have."""
    parts = {model: model.split(", ") for model in models}
    common = set.intersection(*map(set, parts.values()))
    return {
        model: "\n".join([part for part in of if part not in common] or of[:1]) + _learned(models[model])
        for model, of in parts.items()
    }


def _learned(setting: dict[str, Any]) -> str:
    learned, seeds = setting["learned"]
    return "" if learned == seeds else f"\n({learned} of {seeds} learned)"
