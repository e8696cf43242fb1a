"""Figure of what the choices of many selectors are worth, at one k: one line a selector, one column a measurement.

``python -m analysis.choices --tables A --tables B ... --k 8 --out FOLDER``: such as those of several models or lengths. A
selector is drawn in the columns of the measurements that have it: no column mixes the windows of several.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import matplotlib.pyplot as plt
import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.records.selectors import SELECTORS, in_legend_order
from olmo_sparsity.records.window_input import OF_PREDICTIONS, needs_pass
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.spectrum import RANDOM
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.wording.numbers import interval, no_interval_words
from olmo_sparsity.wording.setup import foreign_words, null_label, short_anchor_warning
from olmo_sparsity.wording.units import units_of, units_words

from .drawing import WidthOption, mistakes_in_one_line, print_pictures, run_command
from .output import Drawn, caption_text, lines_of_gates_not_passed, measured_in_full, write_above
from .paper import Width, drawn_for
from .style import blind, ordered

NAME = "choices"
TITLE_CHARS = 24  # of a line of a panel's title
KINDS = {  # what a choice is made from -> colour
    "the model, by derivatives or runs": "#009E73",
    "one pass: attention, keys, values": "#0072B2",
    "the text or the place alone": "#D55E00",
    "control": "#777777",
}
WORDS = (
    "What k = {k} {units} are worth that each selector chooses, none of which sees the target. Above: gain over as many random "
    "ones, in nats. Below: D(k), the share of the model's reaction to the long context that they reproduce, under the real "
    "context (filled) and under {null} (hollow); no label enters, so D(k) alone is no evidence that a choice is useful. "
    "Lines: 95% intervals by bootstrap over documents. Sorted by the mean gain over the columns{where_measured}."
)


def _kind(name: str) -> str:
    """Return what a selector chooses from, a key of ``KINDS``."""
    selector, (runs, one_pass, text, control) = SELECTORS[name], KINDS
    if selector.is_control and name != "nearest":
        return control
    if selector.needs_attention or needs_pass(selector.needs):
        return one_pass
    asks_model = selector.can_imitate or selector.singles or selector.steps or selector.needs & set(OF_PREDICTIONS)
    return runs if asks_model else text


def _gain(summary: Summary, name: str, k: int) -> Estimate:
    gain = summary.at(name, "real", k).gain_over_random_nats
    assert gain is not None, name
    return gain


def _blind(measured: Measured) -> list[str]:
    """Return the selectors that do not see the target, in the order of legends."""
    return blind(measured.measurement, ordered(measured.measurement))


def _draw_dots(
    axis: Axes, values: Sequence[Estimate | None], names: Sequence[str], *, shift: float, filled: bool
) -> None:
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        if value is None:
            continue
        color = KINDS[_kind(name)]
        if value.bounds is not None:
            axis.hlines(place + shift, *value.bounds, color=color, linewidth=1.4 if filled else 0.8)
        face = color if filled else "white"
        axis.plot(value.mean, place + shift, "o", color=color, markerfacecolor=face, markersize=4.5 if filled else 3.5)


def _finding(measured: Sequence[Measured], titles: Sequence[str], names: Sequence[str], *, k: int) -> str:
    """Return of each measurement which choice gains most over random, and for how many a gain is shown."""
    parts = []
    for one, title in zip(measured, titles, strict=True):
        gains = {name: _gain(one.summary, name, k) for name in names if name != RANDOM and name in _blind(one)}
        best = max(gains, key=lambda name: gains[name].mean)
        shown = [name for name, gain in gains.items() if gain.low is not None and gain.low > 0]
        parts.append(
            f"{title}: {best} gains most over random, {interval(gains[best], 3)} nats; a gain is shown for "
            f"{len(shown)} of {len(gains)}" + (f" ({', '.join(shown)})" if shown else "")
        )
    return f"k = {k}. {'; '.join(parts)}"


def _titles(measured: Sequence[Measured]) -> list[list[str]]:
    """Return the parts of each column's title; equal ones also have the definition of visible, or the number of the column."""
    titles = [_title(one.summary) for one in measured]
    numbers = [f"column {number}" for number, _ in enumerate(measured, 1)]
    for words in ([one.summary.setup.label for one in measured], numbers):
        pairs = list(zip(titles, words, strict=True))
        titles = [
            [*title, word] if len({other for equal, other in pairs if equal == title}) > 1 else title
            for title, word in pairs
        ]
    return titles


def _title(summary: Summary) -> list[str]:
    lengths = summary.lengths
    data = [f"{lengths.local_len:,} of {lengths.full_len:,} tokens", f"{summary.num_windows:,} windows"]
    return [summary.run, *data]


def _drawn_names(measured: Sequence[Measured], titles: Sequence[str], *, k: int) -> list[str]:
    """Return the selectors that do not see the target, by the mean of their gains over the measurements that have them, rising.

    Raises:
        UserError: a measurement lacks k or `random`, or has no such selector but `random`.
    """
    gains: dict[str, list[float]] = {}
    for one, title in zip(measured, titles, strict=True):
        if k not in one.summary.ks:
            measured_ks = ", ".join(map(str, one.summary.ks))
            raise UserError(f"{title}: k = {k} was not measured, but {measured_ks}; choose another --k")
        if RANDOM not in one.measurement.selectors:
            raise UserError(f"{title}: random was not measured, and gains are over it; name it with --selector random")
        names = _blind(one)
        if names == [RANDOM]:
            raise UserError(
                f"{title}: no selector but random that does not see the target was measured; name one with --selector, "
                "such as kl"
            )
        for name in names:
            gains.setdefault(name, []).append(0.0 if name == RANDOM else _gain(one.summary, name, k).mean)
    return sorted(in_legend_order(gains), key=lambda name: np.mean(gains[name]))


def _null_words(measured: Sequence[Measured]) -> str:
    """Return ``foreign text``, or ``the null context`` where that of some measurement is none."""
    words = {foreign_words(one.summary.null_context, one.summary.null_contexts) for one in measured}
    return words.pop() if len(words) == 1 else "the null context"


def _write_words(
    figure: Figure,
    measured: Sequence[Measured],
    titles: Sequence[str],
    names: Sequence[str],
    *,
    k: int,
    finding: str,
    handles: list[Line2D],
) -> None:
    """Write the caption, and the gates that failed above the figure."""
    summaries = [one.summary for one in measured]
    lacking = any(name not in _blind(one) for one in measured for name in names)
    where_measured = " where a selector was measured; without a dot it was not" if lacking else ""
    units = " or ".join(dict.fromkeys(map(units_of, summaries)))
    counted = "".join(f"{words} " for words in dict.fromkeys(map(units_words, summaries)) if words)
    few = (
        no_interval_words(f"D({k}) of {title}", of.num_documents) for title, of in zip(titles, summaries, strict=True)
    )
    data = " ".join([*filter(None, few), *map(measured_in_full, summaries)])
    columns_of: dict[str, list[int]] = {}  # that a warning is about
    for number, summary in enumerate(summaries, 1):
        columns_of.setdefault(short_anchor_warning(summary.setup), []).append(number)
    caption_text(
        figure,
        f"{WORDS.format(k=k, units=units, null=_null_words(measured), where_measured=where_measured)} {counted}{finding}. {data}",
        last=" ".join(
            f"{'Column' if len(of) == 1 else 'Columns'} {', '.join(map(str, of))}: {words}"
            for words, of in columns_of.items()
            if words
        ),
        handles=handles,
        columns=2 if len(measured) == 1 else 3,  # one panel is narrow
    )
    if failed := lines_of_gates_not_passed(zip(titles, summaries, strict=True)):
        write_above(figure, failed)


def draw_measured(measured: Sequence[Measured], k: int) -> Drawn:
    """Draw ``choices``.

    Raises:
        UserError: a measurement lacks k or `random`, or has no other selector that does not see the target.
    """
    parts_of_titles = _titles(measured)
    titles = [", ".join(parts) for parts in parts_of_titles]
    names = _drawn_names(measured, titles, k=k)
    height = 0.19 * len(names) + 0.7
    figure, axes = plt.subplots(
        2,
        len(measured),
        figsize=(2.2 + 2.6 * len(measured), 2 * height),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    for column, (one, parts) in enumerate(zip(measured, parts_of_titles, strict=True)):
        own = _blind(one)
        gains = [_gain(one.summary, name, k) if name in own and name != RANDOM else None for name in names]
        above, below = axes[:, column]
        _draw_dots(above, gains, names, shift=0, filled=True)
        above.set_title("\n".join(line for part in parts for line in textwrap.wrap(part, TITLE_CHARS)))
        above.set_xlabel("gain over random, nats")
        for context, shift, filled in (("null", -0.2, False), ("real", 0.15, True)):
            recovered = [
                one.summary.at(name, context, k).prediction_recovered if name in own else None for name in names
            ]
            _draw_dots(below, recovered, names, shift=shift, filled=filled)
        below.set_xlabel(f"D({k})")
        for axis in (above, below):
            axis.axvline(0, color="black", linewidth=0.8)
            axis.grid(axis="y", color="#EEEEEE", linewidth=0.6)
            axis.set_axisbelow(True)
    for axis in axes[:, 0]:
        axis.set_yticks(range(len(names)), names)
        axis.set_ylim(-0.6, len(names) - 0.4)
    used = {_kind(name) for name in names}
    handles = [
        Line2D([], [], color=color, marker="o", linewidth=1.4, label=kind)
        for kind, color in KINDS.items()
        if kind in used
    ]
    handles.append(
        Line2D(
            [],
            [],
            color="black",
            marker="o",
            markerfacecolor="white",
            linewidth=0.8,
            label=null_label(_null_words(measured)),
        )
    )
    finding = _finding(measured, titles, names, k=k)
    _write_words(figure, measured, titles, names, k=k, finding=finding, handles=handles)
    return Drawn(figure, NAME, finding)


def draw(tables: list[Path], k: int) -> Iterator[Drawn]:
    """Draw ``choices`` from influence folders, and print what it shows.

    Raises:
        UserError: as ``draw_measured``, or a folder cannot be read.
    """
    drawn = draw_measured([Measured.read(folder) for folder in tables], k)
    print(printable(drawn.finding))
    yield drawn


def command(
    tables: Annotated[list[Path], typer.Option(help="Influence folder; repeated for each column.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("runs/figures"),
    k: Annotated[int, typer.Option(help="The measured k.")] = 8,
    width: WidthOption = Width.screen,
) -> None:
    """Draw the figure."""
    with mistakes_in_one_line(), drawn_for(width):
        print_pictures(draw(tables, k), out)


if __name__ == "__main__":
    run_command(command)
