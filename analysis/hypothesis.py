"""The hypothesis: the gain from beyond the training row, against how sparse the reaction is."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from olmo_sparsity.statistics.hypothesis import THIRDS, read_hypothesis

from .drawing import BLUE, GREY, INK, SERIES, draw_line, new_figure, styled

NEEDS = "runs"
THIRD = "third"  # column of the place on the horizontal axis


@styled
def figure(runs: list[Path], selector: str = "kl") -> Figure:
    """Gain by thirds of the first model's own reactions; with a ceiling the share of its gain, by its reactions."""
    frame = read_hypothesis(runs, selector=selector)
    rows = frame[frame["group"].isin(THIRDS)]
    rows = rows.assign(**{THIRD: rows["group"].map(list(THIRDS).index)})
    models, ceiling = rows["model"].unique(), frame.attrs["ceiling"]
    count = f"{frame.attrs['num_windows']:,} targets of {frame.attrs['num_documents']:,} documents"
    drawn, axes = new_figure(
        1, 1 if ceiling is None else 2, height=2.9,
        title="Gain from beyond the training row, by how sparse the reaction is",
        caption=f"Thirds by D of the token that {selector} picks; other reactions are alike. Bands: 95%; {count}.",
    )  # fmt: skip
    own = rows[(rows["model"] == models[0]) & (rows["sparsity_from"] == models[0])]
    lines = {"third_gain_nats": (models[0], BLUE), "third_null_gain_nats": ("null context", GREY)}
    if ceiling is not None:
        lines["third_ceiling_gain_nats"] = (ceiling, INK)
    for quantity, (label, color) in lines.items():
        _draw(axes[0, 0], own[own["quantity"] == quantity], label, color)
    axes[0, 0].set(title="gain", ylabel="nats")
    if ceiling is not None:
        shares = rows[(rows["quantity"] == "third_share_of_ceiling") & (rows["sparsity_from"] == ceiling)]
        for model, color in zip(models, SERIES * len(models), strict=False):
            _draw(axes[0, 1], shares[shares["model"] == model], model, color)
        axes[0, 1].set(title=f"share of the gain of {ceiling}", ylabel="share")
    return drawn


def _draw(axis: Axes, rows: pd.DataFrame, label: str, color: str) -> None:
    draw_line(axis, rows, x=THIRD, color=color, label=label, is_dashed=color == INK)
    axis.axhline(0, color=INK, linewidth=0.7)
    axis.set_xticks(range(len(THIRDS)), THIRDS)
    axis.set(xlim=(0, len(THIRDS) - 1), xlabel="reaction")
