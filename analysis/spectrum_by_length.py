"""Figure of the dependency spectrum against the length: how many tokens most targets need, and how many targets need more.

``python -m analysis spectrum_by_length --tables A --tables B ... --out FOLDER``: measurements of one model, or several, at
several lengths and of the same targets (``influence.min_preceding``), such as ``make lengths`` makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.same_targets import ModelAtLengths, read_length
from olmo_sparsity.statistics.several.spectrum_by_length import (
    Growth,
    LongerKey,
    SpectrumByLength,
    SpectrumOfModel,
    spectrum_by_length,
)
from olmo_sparsity.statistics.single.measurement import CONTEXTS
from olmo_sparsity.statistics.single.spectrum import REACHED, TOLERANCE, Curve, Spectra, Spectrum, chosen_family
from olmo_sparsity.statistics.single.summary import gate_of
from olmo_sparsity.wording.gates import gate_in_words
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.setup import NULL_WORDS, definition_words, estimand_words, subject_words
from olmo_sparsity.wording.spectrum import rounding_words
from olmo_sparsity.wording.spectrum_by_length import length_sentences
from olmo_sparsity.wording.units import entry_words, unit_words

from .drawing import FigureOfLengths
from .output import Drawn, caption_text, write_above
from .spectrum import family_label
from .style import LINE_LOOKS, LOOKS, context_entry, dodges

NAME = "spectrum-by-length"
ALL_LOOK: dict[str, Any] = {"color": "grey", "linewidth": 1, "linestyle": "-."}
POWERS = tuple(2**i for i in range(24))
MOST_TICKS = 7
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
    nulls = dict.fromkeys(of.null_context for model in models for of in model.measurements.values())
    targets = "The targets, and the foreign text, of a model are the same at every length."
    if "shuffled" in nulls:
        kinds = " or ".join(NULL_WORDS[null] for null in nulls)
        targets = f"The targets of a model are the same at every length. Null context: {kinds}."
    return f"{targets} Those of other models are their own." if len(models) > 1 else targets


def _look(family: str, context: str) -> dict[str, Any]:
    return {"color": LOOKS[family]["color"], "linewidth": 1.7 if context == "real" else 1.1, **LINE_LOOKS[context]}


def _lines(found: SpectrumByLength) -> list[tuple[str, str]]:
    """Return families and contexts, what is drawn last, over the others, at the end."""
    return [(family, context) for family in reversed(found.families) for context in reversed(CONTEXTS)]


def _draw_needs(axis: Axes, model: SpectrumOfModel, found: SpectrumByLength, *, share: float) -> None:
    """Draw the k that a share of the targets needs at each length; more than every measured k has a mark, and no point."""
    lines = _lines(found)
    all_tokens = [measurement.lengths.num_long_range for measurement in model.measurements.values()]
    axis.plot(model.lengths, all_tokens, **ALL_LOOK)
    below: dict[tuple[int, float], int] = {}
    for (family, context), shift in zip(lines, dodges(len(lines), model.lengths), strict=True):
        of_lengths = {length: _spectrum(spectra, family, context) for length, spectra in model.spectra.items()}
        needs = {length: spectrum.reaching(share) for length, spectrum in of_lengths.items()}
        places = [length * shift for length in needs]
        look = _look(family, context)
        values = np.array([need.value for need in needs.values()], dtype=float)  # None becomes NaN, a gap
        axis.plot(places, values, marker="o", markersize=3.5, **look)
        for place, (length, need) in zip(places, needs.items(), strict=True):
            most = model.spectra[length].max_k
            if need.value is None:
                words = f">{most:,}" + (" null" if context == "null" else "")
                add_mark(axis, words, at=(length, most), below=below, length=length, color=look["color"])
            if context == "real" and of_lengths[length].has_intervals and need.low is not None:
                axis.vlines(place, need.low, most if need.high is None else need.high, color=look["color"], linewidth=1)
    axis.set_yscale("symlog", base=2, linthresh=1)
    ticks = [power for power in POWERS if power <= max(all_tokens)]
    ticks = [0, *ticks[:: -(-len(ticks) // MOST_TICKS)]]
    axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.set_ylim(-0.15, 1.3 * max(all_tokens))
    make_room(axis, below)
    set_length_axis(axis, model.lengths)


def _draw_growth(axis: Axes, model: SpectrumOfModel, found: SpectrumByLength) -> None:
    """Draw the share of the targets that need more than at the shortest length, at each longer one."""
    longer, lines = model.lengths[1:], _lines(found)
    for (family, context), shift in zip(lines, dodges(len(lines), longer), strict=True):
        curve = Curve(family, context, TOLERANCE)
        shares = [model.growth[LongerKey(curve, length)].more for length in longer]
        places, look = [length * shift for length in longer], _look(family, context)
        axis.plot(places, [share.mean for share in shares], marker="o", markersize=3.5, **look)
        if context == "real":
            bounds = np.array([share.bounds for share in shares if share.bounds is not None]).reshape(-1, 2).T
            axis.vlines(places[: bounds.shape[1]], *bounds, color=look["color"], linewidth=1)
    axis.set_ylim(0, 1)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    set_length_axis(axis, longer)


def _spectrum(spectra: Spectra, family: str, context: str) -> Spectrum:
    spectrum = spectra.of(family, context)
    assert spectrum is not None, family
    return spectrum


def _words(found: SpectrumByLength) -> str:
    first = next(iter(found.models[0].measurements.values()))
    visibility = found.models[0].setup.visibility
    sentences = " ".join(" ".join(length_sentences(found, model)) for model in found.models)
    all_spectra = [spectra for model in found.models for spectra in model.spectra.values()]
    rounding = next((words for spectra in all_spectra if (words := rounding_words(spectra))), "")
    entries = f"{words} " if (words := entry_words(visibility)) else ""
    null = NULL_WORDS[first.null_context]
    return (
        f"The smallest measured k that is enough for 50, 80 and 90% of the targets, KL(p_all, p_{{J_k}}) at most {TOLERANCE:g} "
        f"nats, and the share of the targets that need more than at the shortest length, against the length of the full context; "
        f"local context fixed at {first.lengths.local_len} tokens. {sentences} 0: the local tokens suffice. Grey: all long-range "
        f"tokens. A mark such as >64: more than every measured k. {targets_words(found.models)} A target counts as needing more "
        "only where the measured k show it. p_all is another prediction at every length. Bars: k at which the simultaneous 95% "
        "band of the distribution holds the share, and 95% intervals of shares, by bootstrap over documents. "
        f"k counts {unit_words('token', visibility)}; that of a choice is an upper bound. {entries}A reaction is no gain: "
        f"compare the null context ({null}).{rounding} {company_words(found.models)}"
    )


def table(found: SpectrumByLength) -> pd.DataFrame:
    """Return the numbers of every tolerance, a row a model, curve and length. A k of more than ``max_k`` is missing.

    ``more``, ``fewer`` and ``suffix_minus_this`` are shares of the targets, against the shortest length; missing there.
    """
    rows = []
    for model in found.models:
        for curve in found.curves:
            for length, spectra in model.spectra.items():
                spectrum = spectra.by_curve[curve]
                needs = {f"{share:.0%}": spectrum.reaching(share) for share in REACHED}
                rows.append(
                    {
                        "model": model.name, **curve._asdict(), "full_len": length,
                        "gate": gate_of(model.gate_gains_nats[length]), "max_k": spectra.max_k,
                        "has_intervals": spectrum.has_intervals,
                        **{f"k_{name}": need.value for name, need in needs.items()},
                        **{f"k_{name}_low": need.low for name, need in needs.items()},
                        **{f"k_{name}_high": need.high for name, need in needs.items()},
                        **_shares("none_needed", spectrum.none_needed),
                        **_growth_columns(model.growth.get(LongerKey(curve, length))),
                    }
                )  # fmt: skip
    return pd.DataFrame(rows)


def _growth_columns(growth: Optional[Growth]) -> dict[str, Optional[float]]:
    names = ("more", "fewer", "suffix_minus_this")
    columns = [_shares(name, None if growth is None else getattr(growth, name)) for name in names]
    return {name: value for of in columns for name, value in of.items()}


def _shares(name: str, share: Optional[Estimate]) -> dict[str, Optional[float]]:
    values = (None, None, None) if share is None else (share.mean, share.low, share.high)
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def draw_found(found: SpectrumByLength) -> Drawn:
    """Draw ``spectrum-by-length``, a row of panels a model, with its numbers as CSV."""
    columns = len(REACHED) + 1
    figure, axes = plt.subplots(
        len(found.models), columns, figsize=(10.8, 0.4 + 3.1 * len(found.models)), squeeze=False, layout="constrained"
    )
    visibility = found.models[0].setup.visibility
    for row, model in zip(axes, found.models, strict=True):
        for axis, share in zip(row, REACHED, strict=False):
            _draw_needs(axis, model, found, share=share)
            axis.set_title(f"{share:.0%} of the targets need at most")
        _draw_growth(row[-1], model, found)
        row[-1].set_title(f"targets that need more than at {model.lengths[0]:,}")
        name = f"{model.name}\n" if len(found.models) > 1 else ""
        row[0].set_ylabel(f"{name}k, {unit_words('token', visibility)}, within {TOLERANCE:g} nats")
    for axis in axes[-1]:
        axis.set_xlabel("full context, tokens")
    handles = [
        Line2D([], [], color=LOOKS[family]["color"], label=family_label(family, visibility))
        for family in found.families
    ]
    handles += [*map(context_entry, CONTEXTS), Line2D([], [], label="all long-range tokens", **ALL_LOOK)]
    caption_text(figure, _words(found), handles=handles)
    write_gates_not_passed(figure, found.models)
    finding = " ".join(length_sentences(found, model)[0] for model in found.models)
    return Drawn(figure, NAME, finding, numbers=(".csv", table(found).to_csv(index=False, lineterminator="\n")))


def draw(tables: list[Path]) -> Iterator[Drawn]:
    """Draw ``spectrum-by-length`` from influence folders.

    Raises:
        UserError: the measurements cannot be compared.
    """
    measured = [read_length(folder) for folder in tables]
    common = [
        name for name in measured[0].measurement.selectors if all(name in m.measurement.selectors for m in measured)
    ]
    selector = chosen_family([name for name in common if not measured[0].measurement.selectors[name].sees_target])
    yield draw_found(spectrum_by_length(measured, selector=selector or "attention"))


FIGURE = FigureOfLengths(draw)
