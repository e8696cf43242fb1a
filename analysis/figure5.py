"""Figure 5: which tokens are visible for L_short, L_long and L_short,sparse, in one window of the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from olmo_sparsity.errors import printable
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measured_tokenizer import tokenizer_of, window_texts
from olmo_sparsity.statistics.single.measurement import Measurement
from olmo_sparsity.statistics.single.shown_ks import quarter_ks
from olmo_sparsity.tables.reading import read_window
from olmo_sparsity.wording.findings import window_finding
from olmo_sparsity.wording.tokens import CIRCLE, token_words
from olmo_sparsity.wording.units import counted_words, unit_words

from .drawing import FigureOfMeasurement
from .output import Drawn, caption
from .style import ordered

PERCENTILE = 90
CHARS_A_LINE = 96
MAX_K = 8
TARGET_COLOUR, LONG_RANGE_COLOUR, LOCAL_COLOUR, MASKED_COLOUR = "#CC79A7", "#F0E442", "white", "#E4E4E4"
MASKED_TEXT, MASKED_EDGE = "#8A8A8A", "#B0B0B0"


@dataclass(frozen=True)
class Words:
    """The tokens of a window as text.

    Attributes:
        tokens: the tokens of the window, the long-range ones first.
        target: the token after them.
        num_long_range: number of long-range tokens.
    """

    tokens: list[str]
    target: str
    num_long_range: int

    def places(self) -> list[tuple[int, int]]:
        """Return (line, column) of each token and of the target in monospaced lines."""
        line, column, places = 0, 0, []
        for text in [*self.tokens, self.target]:
            if column and column + len(text) > CHARS_A_LINE:
                line, column = line + 1, 0
            places.append((line, column))
            column += len(text) + 1
        return places

    @property
    def num_lines(self) -> int:
        """Number of lines that the tokens and the target take."""
        return self.places()[-1][0] + 1


@dataclass(frozen=True)
class Panel:
    """One of the three losses.

    Attributes:
        title: which loss.
        loss_nats: its value.
        visible: positions of the window that the model sees.
        ranks: rank of each visible long-range position that a selector chose, from 1.
    """

    title: str
    loss_nats: float
    visible: set[int]
    ranks: dict[int, int]


def shown(text: str) -> str:
    """Return a token's text as its box shows it: a space is a middle dot; what the font may lack, squares."""
    words = (printable(text) if text.isspace() else token_words(text)).replace(" ", "\u00b7")
    return words if all(ord(c) < 0x2500 or c in f"\ufffd{CIRCLE}" for c in words) else "\u25a1" * len(words)


def _box(axis: Axes, text: str, *, place: tuple[int, int], face: str, is_visible: bool, is_bold_edge: bool) -> float:
    """Draw a token as a box at a place; returns the box's width in columns."""
    line, column = place
    width = len(text) + 0.6
    axis.add_patch(
        plt.Rectangle(
            (column - 0.3, -line - 0.42), width, 0.84, facecolor=face, edgecolor="black" if is_visible else MASKED_EDGE,
            linewidth=1.1 if is_bold_edge else 0.4,
        )
    )  # fmt: skip
    return width


def _draw_target(axis: Axes, text: str, *, place: tuple[int, int]) -> None:
    _box(axis, text, place=place, face=TARGET_COLOUR, is_visible=True, is_bold_edge=True)
    line, column = place
    axis.text(
        column, -line, text, family="monospace", fontsize=6.2, va="center", ha="left", color="black", fontweight="bold"
    )


def _draw_token(axis: Axes, index: int, *, words: Words, panel: Panel, place: tuple[int, int]) -> None:
    text, (line, column) = words.tokens[index], place
    is_visible, is_long_range = index in panel.visible, index < words.num_long_range
    face = (LONG_RANGE_COLOUR if is_long_range else LOCAL_COLOUR) if is_visible else MASKED_COLOUR
    is_bold_edge = is_visible and is_long_range
    width = _box(axis, text, place=place, face=face, is_visible=is_visible, is_bold_edge=is_bold_edge)
    color = "black" if is_visible else MASKED_TEXT
    axis.text(column, -line, text, family="monospace", fontsize=6.2, va="center", ha="left", color=color)
    if not is_visible:
        axis.plot([column - 0.2, column + width - 0.5], [-line, -line], color=MASKED_TEXT, linewidth=0.6)
    elif index in panel.ranks:
        axis.text(
            column + width - 0.3, -line + 0.42, str(panel.ranks[index]), fontsize=5, va="center", ha="center", color="white",
            bbox={"boxstyle": "circle,pad=0.12", "facecolor": "black", "edgecolor": "none"},
        )  # fmt: skip
    if index == words.num_long_range:  # the first local token
        axis.plot([column - 0.65, column - 0.65], [-line - 0.5, -line + 0.5], color="black", linewidth=2)


def _draw_panel(axis: Axes, panel: Panel, *, words: Words) -> None:
    """Draw the tokens as boxes: visible ones dark on white (long-range ones on yellow), masked ones grey, struck out."""
    *places, place_of_target = words.places()
    for index, place in enumerate(places):
        _draw_token(axis, index, words=words, panel=panel, place=place)
    _draw_target(axis, words.target, place=place_of_target)
    axis.set_xlim(-1, CHARS_A_LINE + 2)
    axis.set_ylim(-place_of_target[0] - 0.8, 0.8)
    axis.axis("off")
    axis.set_title(f"{panel.title}. Loss of the target: {panel.loss_nats:.2f} nats", loc="left", fontsize=8.5)


def _chosen_window(measurement: Measurement) -> int:
    """Return the window whose long gain is nearest to the 90th percentile: a rule chooses it, not the eye."""
    gains = measurement.windows["gain_long_nats"]
    row = int(np.abs(gains.to_numpy() - float(gains.quantile(PERCENTILE / 100))).argmin())
    return int(measurement.windows["window_id"].iloc[row])


def _panels(measured: Measured, window: dict, *, selector: str) -> list[Panel]:
    rows = read_window(measured.tables, "selections", window_id=window["window_id"])
    (chosen,) = (row for row in rows if (row["selector"], row["context"]) == (selector, "real"))
    few = quarter_ks(chosen["k"], measured.summary.num_units)
    k, unit = max(k for k in few if k <= MAX_K or k == few[0]), measured.measurement.unit
    index = chosen["k"].index(k)
    if unit == "token":
        influential, ranks = (
            chosen["positions"][:k],
            {j: rank for rank, j in enumerate(chosen["positions"][:k], start=1)},
        )
    else:
        influential = chosen["positions"][: chosen["num_tokens"][index]]
        ranks = {last: rank for rank, last in enumerate(chosen["group_last"][:k], start=1)}
    lengths = measured.measurement.lengths
    local = set(range(lengths.num_long_range, lengths.full_len))
    units = unit_words(unit, measured.measurement.setup.visibility, len(ranks))
    chosen_words = f"{len(ranks)} most influential {'ones' if units == 'tokens' else units}"
    sparse = f"L_short,sparse: the local tokens and the {chosen_words} ({selector}, numbered by rank)"
    return [
        Panel("L_short: only the local tokens", window["loss_short_nats"], local, {}),
        Panel("L_long: all tokens", window["loss_long_nats"], set(range(lengths.full_len)), {}),
        Panel(
            sparse,
            chosen["loss_sparse_nats"][index],
            local | set(influential),
            ranks,
        ),
    ]


def draw(measured: Measured) -> Iterator[Drawn]:
    """Draw ``figure5``: the window whose long gain is nearest to the 90th percentile, with what a selector that does not see
    the target chose, if such a one was measured."""
    measurement = measured.measurement
    window_id = _chosen_window(measurement)
    (window,) = read_window(measured.tables, "windows", window_id=window_id)
    *tokens, target = map(shown, window_texts(window, tokenizer_of(measured.tables)))
    words = Words(tokens, target, measurement.lengths.num_long_range)
    selector = next(iter(measured.summary.blind_selectors), ordered(measurement)[0])
    panels = _panels(measured, window, selector=selector)
    figure, axes = plt.subplots(3, 1, figsize=(8.2, 3 * (0.2 * words.num_lines + 0.35)), layout="constrained")
    for axis, panel in zip(axes, panels, strict=True):
        _draw_panel(axis, panel, words=words)
    text = (
        "White: local, visible; yellow: long-range, visible; grey, struck out: masked; last, bold: the target. "
        f"Window {window_id} (document {window['doc_id']}, {window['source']}): its long gain, "
        f"{window['gain_long_nats']:.2f} nats, is nearest to the {PERCENTILE}th percentile of the windows (each counts once). "
        "The bar separates long-range from local tokens."
    )
    if measurement.selectors[selector].sees_target:
        text += f" {selector} sees the target: in a single window, choices that fit this target by chance look like the others."
    caption(figure, measured.summary, words=text)
    chosen = (
        f"{counted_words(measurement.unit, measurement.setup.visibility, len(panels[-1].ranks))} chosen by {selector}"
    )
    short, long, sparse = (panel.loss_nats for panel in panels)
    finding = window_finding(words.target, short_nats=short, long_nats=long, sparse_nats=sparse, chosen=chosen)
    yield Drawn(figure, "figure5", finding)


FIGURE = FigureOfMeasurement(draw)
