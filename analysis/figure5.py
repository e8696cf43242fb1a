"""Figure 5: which tokens L_short, L_long and L_short,sparse may see, for one real window with its words."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from olmo_sparsity.statistics.measurement import Measurement
from olmo_sparsity.tables.reading import read_window

from .style import caption, ordered, save, script

PERCENTILE = 90
CHARS_A_LINE = 96
MAX_K = 8


def shown(text: str) -> str:
    """A token's text in one line of printable characters (a space is a middle dot, a line break an arrow)."""
    marked = text.replace(" ", "\u00b7").replace("\n", "\u21b5").replace("\t", "\u2192")
    clean = "".join(c if unicodedata.category(c)[0] != "C" else "\ufffd" for c in marked)
    return clean if all(ord(c) < 0x2500 or c == "\ufffd" for c in clean) else "\u25a1" * len(clean)


def place(texts: list[str]) -> list[tuple[int, int]]:
    """(line, column) of each token in monospaced lines."""
    line, column, places = 0, 0, []
    for text in texts:
        if column and column + len(text) > CHARS_A_LINE:
            line, column = line + 1, 0
        places.append((line, column))
        column += len(text) + 1
    return places


def draw_tokens(
    axis: Axes, texts: list[str], visible: set[int], ranks: dict[int, int], num_long_range: int, target: str
) -> None:
    """Tokens as boxes: visible ones dark on white (long-range ones on yellow, numbered), masked ones grey, struck out."""
    places = place([*texts, target])
    for index, (text, (line, column)) in enumerate(zip([*texts, target], places, strict=True)):
        is_target = index == len(texts)
        seen = index in visible
        long_range = index < num_long_range
        face = "#CC79A7" if is_target else "#F0E442" if seen and long_range else "white" if seen else "#E4E4E4"
        width = len(text) + 0.6
        axis.add_patch(
            plt.Rectangle(
                (column - 0.3, -line - 0.42), width, 0.84, facecolor=face, edgecolor="black" if seen or is_target else "#B0B0B0",
                linewidth=1.1 if is_target or (seen and long_range) else 0.4,
            )
        )  # fmt: skip
        axis.text(
            column, -line, text, family="monospace", fontsize=6.2, va="center", ha="left",
            color="black" if seen or is_target else "#8A8A8A", fontweight="bold" if is_target else "normal",
        )  # fmt: skip
        if not seen and not is_target:
            axis.plot([column - 0.2, column + width - 0.5], [-line, -line], color="#8A8A8A", linewidth=0.6)
        if index in ranks and seen:
            axis.text(column + width - 0.3, -line + 0.42, str(ranks[index]), fontsize=5, va="center", ha="center",
                      bbox={"boxstyle": "circle,pad=0.12", "facecolor": "black", "edgecolor": "none"}, color="white")  # fmt: skip
        if index == num_long_range:
            axis.plot([column - 0.65, column - 0.65], [-line - 0.5, -line + 0.5], color="black", linewidth=2)
    axis.set_xlim(-1, CHARS_A_LINE + 2)
    axis.set_ylim(-places[-1][0] - 0.8, 0.8)
    axis.axis("off")


def draw(tables: Path, measurement: Measurement, summary: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``figure5``: the window whose long gain is nearest to the 90th percentile, so chosen by a rule, not by eye."""
    gains = measurement.windows["gain_long_nats"]
    row = int(np.abs(gains.to_numpy() - float(gains.quantile(PERCENTILE / 100))).argmin())
    window_id = int(measurement.windows["window_id"].iloc[row])
    (window,) = read_window(tables, "windows", window_id=window_id)
    selector = ordered(measurement)[0]
    (chosen,) = (
        row
        for row in read_window(tables, "selections", window_id=window_id)
        if (row["selector"], row["context"]) == (selector, "real")
    )

    num_long_range = summary["num_long_range"]
    texts = [shown(text) for text in window["token_texts"]]
    target = shown(window["target_text"])
    local = set(range(num_long_range, summary["full_len"]))
    which = max(i for i, k in enumerate(chosen["k"]) if k <= MAX_K or i == 0)
    k = chosen["k"][which]
    influential = chosen["positions"][:k]
    panels = [
        ("L_short: only the local tokens", window["loss_short_nats"], local, {}),
        ("L_long: all tokens", window["loss_long_nats"], local | set(range(num_long_range)), {}),
        (
            f"L_short,sparse: the local tokens and the {k} most influential ones ({selector}, numbered by rank)",
            chosen["loss_sparse_nats"][which],
            local | set(influential),
            {position: rank + 1 for rank, position in enumerate(influential)},
        ),
    ]
    num_lines = place([*texts, target])[-1][0] + 1
    figure, axes = plt.subplots(3, 1, figsize=(8.2, 3 * (0.2 * num_lines + 0.35)), layout="constrained")
    for axis, (title, loss, visible, ranks) in zip(axes, panels, strict=True):
        draw_tokens(axis, texts, visible, ranks, num_long_range, target)
        axis.set_title(f"{title}. Loss of the target: {loss:.2f} nats", loc="left", fontsize=8.5)
    caption(
        figure,
        summary,
        f"Window {window_id} (document {window['doc_id']}, {window['source']}): its long gain, "
        f"{window['gain_long_nats']:.2f} nats, is nearest to the {PERCENTILE}th percentile. White: local, visible; "
        "yellow: long-range, visible; grey, struck out: masked; last, bold: the target. "
        "The bar divides long-range from local tokens.",
    )
    return save(figure, out, "figure5", one_column=None)


if __name__ == "__main__":
    script(draw)
