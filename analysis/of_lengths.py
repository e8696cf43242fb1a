"""What the figures of several lengths of one model share: ticks, gates, whose targets, and their command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from olmo_sparsity.statistics.several.same_targets import ModelAtLengths
from olmo_sparsity.statistics.single.summary import gate_of
from olmo_sparsity.wording.gates import gate_in_words
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.setup import definition_words, estimand_words, is_foreign, null_kind_words, subject_words

from .drawing import WidthOption, mistakes_in_one_line, print_pictures
from .output import Drawn, write_above
from .paper import Width, drawn_for

MARK_POINTS = 7  # height of a mark
PANEL_POINTS = 140  # height of a panel, about
MOST_MARKS = 0.6  # of a panel, that marks take at most


def set_length_axis(axis: Axes, lengths: Sequence[int]) -> None:
    """Make the axis of lengths logarithmic, with a tick at each."""
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, [f"{length:,}" for length in lengths])
    if len(lengths) == 1:  # else lines side by side would fill the panel, and look like several lengths
        axis.set_xlim(lengths[0] / 2, lengths[0] * 2)
    axis.minorticks_off()
    axis.grid(color="#DDDDDD", linewidth=0.5)
    axis.set_axisbelow(True)


def add_mark(
    axis: Axes, words: str, *, at: tuple[float, float], below: dict[tuple[int, float], int], length: int, color: str
) -> None:
    """Write a mark in place of a point that no measured k reaches; marks of the same length and k stand on one another.

    Args:
        axis: the panel.
        words: the mark.
        at: its place.
        below: number of the topmost mark of each length and k, which this one is added to.
        length: of the full context.
        color: of the line.
    """
    number = below[length, at[1]] = below.get((length, at[1]), -1) + 1
    axis.annotate(
        words, at, xytext=(0, 1 + MARK_POINTS * number), textcoords="offset points", ha="center", va="bottom",
        fontsize=MARK_POINTS - 1, color=color, annotation_clip=False,
    )  # fmt: skip


def make_room(axis: Axes, below: Mapping[tuple[int, float], int]) -> None:
    """Extend a panel whose scale is set so that its marks, and those that stand on them, are inside."""
    if not below:
        return
    scale = axis.yaxis.get_transform()
    low, high = scale.transform(np.array(axis.get_ylim()))
    places = {key: float(scale.transform(np.array([key[1]]))[0]) for key in below}
    low = min([low, *places.values()])
    for key, number in below.items():
        share = min(MOST_MARKS, (2 + MARK_POINTS * (number + 1)) / PANEL_POINTS)
        high = max(high, low + (places[key] - low) / (1 - share))
    axis.set_ylim(*scale.inverted().transform(np.array([low, high])))


def _not_passed(model: ModelAtLengths) -> list[str]:
    """Return where the gate failed, and where it is not assessed: there too few documents give an interval."""
    by_verdict: dict[str, list[str]] = {}
    for length, gain in model.gate_gains_nats.items():
        if (gate := gate_of(gain)) != "passed":
            verdict = "FAILED" if gate == "failed" else f"is {gate_in_words(gate)}"
            by_verdict.setdefault(verdict, []).append(f"{length:,}")
    return [f"{verdict} at full_len {', '.join(lengths)}" for verdict, lengths in by_verdict.items()]


def gate_words(model: ModelAtLengths) -> str:
    """Return the long gain at each length, and at which the gate did not pass."""
    not_passed = _not_passed(model)
    gains = ", ".join(f"{length:,}: {interval(gain, 3)}" for length, gain in model.long_gains_nats.items())
    verdict = f"the gate {' and '.join(not_passed)}" if not_passed else "the gate passed at every length"
    return f"{model.name}: long gain, nats, at {gains}: {verdict}."


def write_gates_not_passed(figure: Figure, models: Iterable[ModelAtLengths]) -> None:
    """Write above a figure at which lengths a gate did not pass."""
    above = [f"{model.name}: gate {' and '.join(verdicts)}" for model in models if (verdicts := _not_passed(model))]
    if above:
        write_above(figure, above)


def company_words(models: Sequence[ModelAtLengths]) -> str:
    """Return the gates, of which models and definition the numbers are, and whose targets they are."""
    subjects = "; ".join(subject_words(model.run, model.setup) for model in models)
    data = "; ".join(
        f"{len(of_model.windows):,} windows of {of_model.num_documents:,} documents ({of_model.manifest['source']}, "
        f"{of_model.manifest['split']}), {estimand_words(of_model.estimand, of_model.lengths)}"
        for of_model in (next(iter(model.measurements.values())) for model in models)
    )
    gates = " ".join(gate_words(model) for model in models)
    return f"{gates} {subjects[0].upper()}{subjects[1:]}; {definition_words(models[0].setup)}. {data}."


def targets_words(models: Sequence[ModelAtLengths]) -> str:
    """Return that the targets are the same at every length, and what the null context is where it is no foreign text."""
    nulls = [
        (of.null_context, of.manifest.get("null_contexts") or {})
        for model in models
        for of in model.measurements.values()
    ]
    targets = "The targets, and the foreign text, of a model are the same at every length."
    if not all(is_foreign(*null) for null in nulls):
        kinds = " or ".join(dict.fromkeys(null_kind_words(*null) for null in nulls))
        targets = f"The targets of a model are the same at every length. Null context: {kinds}."
    return f"{targets} Those of other models are their own." if len(models) > 1 else targets


def command_of_lengths(draw: Callable[[list[Path], str], Iterator[Drawn]]) -> Callable[..., None]:
    """Return the command of a figure that is drawn from the tables of several lengths and a selector."""

    def command(
        tables: Annotated[list[Path], typer.Option(help="Influence folder of one length; repeated for each.")],
        out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("runs/figures"),
        selector: Annotated[str, typer.Option(help="A selector that does not see the target.")] = "attention",
        width: WidthOption = Width.screen,
    ) -> None:
        with mistakes_in_one_line(), drawn_for(width):
            print_pictures(draw(tables, selector), out)

    return command
