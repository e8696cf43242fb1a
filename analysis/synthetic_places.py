"""Figures of what a synthetic task depends on: where tokens are planted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.config.keys import counted
from olmo_sparsity.statistics.length_generalization import (
    PlaceSweep,
    length_ratio,
    place_size,
)
from olmo_sparsity.statistics.synthetic import Accuracy, Setting
from olmo_sparsity.wording.length_generalization import place_sentence
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.synthetic_tasks import learned_words, place_words, task_words

from .output import Drawn, caption_text
from .style import band, mark_of_one

NEAR, FAR = "#D55E00", "#0072B2"
BETWEEN = "0.6"
RATIOS = (1, 2, 4, 10)  # that the axis of lengths names


def draw_seeds(axis: Axes, x: Sequence[float], points: Sequence[Accuracy], *, color: str, **looks: Any) -> None:
    """Draw the accuracies of one setting: the means as a line, and a thin line for each seed; one seed alone with its band."""
    if len(points[0].of_seeds) == 1:
        band(axis, x, estimates=[one.right for one in points], color=color, **looks)
        return
    thin: dict[str, Any] = {"color": color, "linestyle": looks.get("linestyle", "-"), "linewidth": 0.6, "alpha": 0.5}
    thin |= {"marker": mark_of_one(x, "."), "markersize": 3}
    for values in zip(*(one.of_seeds for one in points), strict=True):
        axis.plot(x, values, **thin)
    axis.plot(x, [one.right.mean for one in points], color=color, linewidth=1.6, markersize=3.5, **looks)


def seeds_words(accuracies: Sequence[Accuracy]) -> str:
    """Return what ``draw_seeds`` shows of seeds."""
    counts = sorted({len(one.of_seeds) for one in accuracies})
    if counts == [1]:
        return "One training seed, so the intervals (95%) hold the choice of sequences only"
    numbers = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    alone = "; a band, where there is one seed: the 95% interval over sequences" if counts[0] == 1 else ""
    return f"Thick: the mean over {numbers} training seeds; thin: each of them{alone}"


def draw_places(accuracies: Sequence[Accuracy], learned: Mapping[Setting, tuple[int, int]], sweep: PlaceSweep) -> Drawn:
    """Draw a panel for each way in which tokens are planted in training, a line for each in evaluation, at the largest k."""
    k = max(one.k for one in accuracies)
    settings = sorted({one.setting for one in accuracies}, key=lambda one: (one.spread, place_size(one.placed)))
    places = sorted({one.place for one in accuracies if one.place is not None}, key=place_size)
    looks: dict[str, dict[str, Any]] = {place: {"color": BETWEEN} for place in places} | {
        sweep.near: {"color": NEAR, "marker": "o"},
        sweep.far: {"color": FAR, "marker": "s"},
    }
    bound = sweep.bound
    columns = max(sum(one.spread == setting.spread for one in settings) for setting in settings)
    rows = -(-len(settings) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.3 * columns + 0.8, 2.9 * rows + 0.4), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for axis in axes.flat[len(settings) :]:
        axis.set_visible(False)
    for axis, setting in zip(axes.flat, settings, strict=False):
        own = [one for one in accuracies if one.setting == setting and one.k == k]
        for place in sorted(places, key=lambda one: one in (sweep.near, sweep.far)):
            points = sorted((one for one in own if one.place == place), key=lambda one: one.length)
            ratios = [length_ratio(one) for one in points]
            if points and looks[place]["color"] == BETWEEN:
                means = [one.right.mean for one in points]
                axis.plot(ratios, means, linewidth=0.6, marker=mark_of_one(ratios, "."), **looks[place])
            elif points:
                draw_seeds(axis, ratios, points, **looks[place])
        if bound is not None:
            ratios = sorted({length_ratio(one) for one in own})
            heights = [1 - bound.slope * ratio for ratio in ratios]
            axis.plot(ratios, heights, color="black", linewidth=0.8, marker=mark_of_one(ratios))
        axis.axvline(1, color="grey", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_xticks(RATIOS, [str(ratio) for ratio in RATIOS])
        axis.minorticks_off()
        axis.set_ylim(-0.03, 1.05)
        axis.set_title(f"trained {place_words(setting.placed)}{learned_words(*learned[setting])}", fontsize="small")
    for axis in axes[-1]:
        axis.set_xlabel("length / longest of training")
    for axis in axes[:, 0]:
        axis.set_ylabel("accuracy")
    handles = [
        Line2D([], [], label=f"evaluated {place_words(place)}", **looks[place])
        for place in dict.fromkeys((sweep.near, sweep.far))
    ]
    between = len(places) - len(handles)
    if between:
        label = f"{counted(between, 'place')} between"
        handles.append(Line2D([], [], color=BETWEEN, linewidth=0.6, label=label))
    fitted = ""
    if bound is not None:
        handles.append(Line2D([], [], color="black", linewidth=0.8, label="linear bound"))
        fitted = (
            f" Black: the bound 1 - {bound.slope:.3f} length / training length, fitted to one corner, trained and evaluated "
            f"{place_words(bound.place)}; that it is linear is an assumption."
        )
    first = settings[0]
    planted = "bits" if sweep.modulus == 2 else "values"
    caption_text(
        figure,
        f"{task_words(first).capitalize()}, k = {k} planted {planted}, by where they lie in training (panels; K_train = "
        f"{first.max_sparsity}, {first.train_lengths[0]} to {first.train_lengths[1]} tokens) and in evaluation (lines). "
        f"{seeds_words(accuracies)}; grey: means. A place: all {planted} within so many tokens, at least so many apart.{fitted}",
        handles=handles,
        columns=4,
    )
    name = "synthetic-places" + "-text" * (first.background == "text")
    name += "" if sweep.modulus == 2 else f"-modulo-{sweep.modulus}"
    far = max(one.length for one in accuracies)
    ends = [one for one in accuracies if one.k == k and one.length == far and one.place == one.setting.placed]
    found = "; ".join(f"{place_words(one.setting.placed)} {interval(one.right)}" for one in ends)
    finding = f"Accuracy in prompts of {far} tokens, k = {k}, evaluated as trained: {found}."
    return Drawn(figure, name, place_sentence(sweep) if sweep.effects else finding)
