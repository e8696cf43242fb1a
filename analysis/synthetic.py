"""Figures of the synthetic tasks: accuracy against length (Figures 1 to 3 of arXiv 2502.16792)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.length_generalization import (
    LEVEL,
    every_seed_learned,
    num_learned,
    of_encodings,
    of_methods,
    of_sparsity_alone,
    task_runs,
)
from olmo_sparsity.statistics.synthetic import (
    Accuracy,
    Setting,
    predicted_accuracy,
    read_accuracies,
)
from olmo_sparsity.tables.reading import newest_finished
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.synthetic_tasks import (
    distinct_words,
    encoding_words,
    learned_words,
    method_words,
    setting_words,
    task_words,
)

from .drawing import FigureOfRuns
from .output import Drawn, caption_text
from .style import band, mark_of_one

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#332288", "#999933", "#882255", "#44AA99")
MARKERS = ("o", "s", "^", "D", "v", "P", "*", "p", "X", "h")
THEORY: dict[str, Any] = {"color": "black", "linestyle": "--"}
NUM_VALUES = 10  # of variable assignment
LOGARITHMIC = 15  # times the shortest length is the longest one where lengths are drawn on a logarithmic axis
MORE_THAN_TRAINED = 4  # k up to K_train and so many more are drawn; of larger ones alone, the smallest
TITLES = {"parity": "sparse parity", "variables": "variable assignment"}


Learned = Mapping[Setting, tuple[int, int]]  # seeds that have learned the task, and all seeds
Draw = Callable[[list[Accuracy], Learned], Drawn]


def _look(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}


def _only_setting(settings: Sequence[Setting], *parts: str) -> Setting:
    """Return the first of the settings of a figure, which differ in nothing that its caption says of all of them.

    Raises:
        UserError: they differ in one of these parts.
    """
    first = settings[0]
    for part in parts:
        for other in settings[1:]:
            if getattr(other, part) != getattr(first, part):
                raise UserError(
                    f"one figure cannot show runs that differ in {part}: {getattr(first, part)} ({setting_words(first)}) and "
                    f"{getattr(other, part)} ({setting_words(other)}); give the runs of one of them"
                )
    return first


def _frame(axis: Axes, setting: Setting, lengths: Sequence[int]) -> None:
    """Mark the training lengths and set the axes."""
    axis.axvspan(*setting.train_lengths, color="grey", alpha=0.12, linewidth=0)
    axis.set_ylim(-0.03, 1.05)
    if max(lengths) >= LOGARITHMIC * min(lengths):
        axis.set_xscale("log")
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.minorticks_off()
        axis.set_xlim(min(lengths) / 1.08, max(lengths) * 1.08)
    else:
        axis.set_xlim(0, max(lengths) * 1.03)
    axis.set_xlabel("prompt length, tokens")


def _by_chance(setting: Setting, *, length: int, k: int) -> float:
    """Return the accuracy of a single answer at random: a sum, or the value at the end of one of the prompt's chains."""
    if setting.task == "parity":
        return 1 / setting.modulus
    num_chains = math.ceil(length // 2 / k)
    return (1 + (num_chains - 1) / NUM_VALUES) / num_chains


def _draw_chance(axis: Axes, setting: Setting, lengths: Sequence[int], *, k: int) -> None:
    accuracies = [_by_chance(setting, length=length, k=k) for length in lengths]
    axis.plot(lengths, accuracies, color="grey", linestyle=":", linewidth=1, marker=mark_of_one(lengths))


def _at_words(one: Accuracy) -> str:
    return f"{interval(one.right)} at k = {one.k} in prompts of {one.length} tokens"


def _draw_seeds(axis: Axes, x: Sequence[float], points: Sequence[Accuracy], *, color: str, **looks: Any) -> None:
    """Draw the accuracies of one setting: the means as a line, and a thin line for each seed; one seed alone with its band."""
    if len(points[0].of_seeds) == 1:
        band(axis, x, estimates=[one.right for one in points], color=color, **looks)
        return
    thin: dict[str, Any] = {"color": color, "linestyle": looks.get("linestyle", "-"), "linewidth": 0.6, "alpha": 0.5}
    thin |= {"marker": mark_of_one(x, "."), "markersize": 3}
    for values in zip(*(one.of_seeds for one in points), strict=True):
        axis.plot(x, values, **thin)
    axis.plot(x, [one.right.mean for one in points], color=color, linewidth=1.6, markersize=3.5, **looks)


def _seeds_words(accuracies: Sequence[Accuracy]) -> str:
    """Return what ``_draw_seeds`` shows of seeds."""
    counts = sorted({len(one.of_seeds) for one in accuracies})
    if counts == [1]:
        return "One training seed, so the intervals (95%) hold the choice of sequences only"
    numbers = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    alone = "; a band, where there is one seed: the 95% interval over sequences" if counts[0] == 1 else ""
    return f"Thick: the mean over {numbers} training seeds; thin: each of them{alone}"


def _draw_parity(accuracies: list[Accuracy], learned: Learned) -> Drawn:
    """Draw Figure 1: a panel for each K_train, a line for each k up to K_train and ``MORE_THAN_TRAINED``."""
    smallest: dict[Setting, int] = {}
    for one in accuracies:
        smallest[one.setting] = min(one.k, smallest.get(one.setting, one.k))
    accuracies = [
        one for one in accuracies if one.k <= max(one.setting.max_sparsity + MORE_THAN_TRAINED, smallest[one.setting])
    ]
    settings = sorted({one.setting for one in accuracies}, key=lambda setting: setting.max_sparsity)
    first = _only_setting(
        settings,
        *(
            "scratchpad",
            "positions",
            "train_lengths",
            "max_position",
            "modulus",
            "background",
            "num_chunks",
            "position_embedding",
            "rope_scaling",
            "rope_factor",
        ),
    )
    sparsities = sorted({one.k for one in accuracies})
    figure, axes = plt.subplots(
        1, len(settings), figsize=(3.3 * len(settings) + 0.8, 3.4), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, setting in zip(axes[0], settings, strict=True):
        own = [one for one in accuracies if one.setting == setting]
        for number, k in enumerate(sparsities):
            points = [one for one in own if one.k == k]
            if points:
                _draw_seeds(axis, [one.length for one in points], points, **_look(number))
        lengths = sorted({one.length for one in own})
        _draw_chance(axis, setting, lengths, k=1)
        guaranteed = sorted({one.length for one in own if predicted_accuracy(one) is not None})
        if guaranteed:
            look_of_theory = {**THEORY, "marker": mark_of_one(guaranteed)}
            axis.plot(guaranteed, [1.015] * len(guaranteed), linewidth=1, **look_of_theory)
        _frame(axis, setting, lengths)
        axis.set_title(f"K_train = {setting.max_sparsity}{learned_words(*learned[setting])}")
    axes[0][0].set_ylabel("accuracy")
    handles = [Line2D([], [], label=f"k = {k}", **_look(number)) for number, k in enumerate(sparsities)]
    if any(predicted_accuracy(one) is not None for one in accuracies):
        handles.append(Line2D([], [], label="theory", **THEORY))
    handles.append(Line2D([], [], color="grey", linestyle=":", label="chance"))
    caption_text(
        figure,
        f"{'Sparse parity' if first.modulus == 2 else f'Sum modulo {first.modulus}'}{' in text' * (first.background == 'text')}: "
        "accuracy against the length of the prompt, for k planted "
        f"{'bits' if first.modulus == 2 else 'values'}; training has k uniform from 1 to K_train and {first.train_lengths[0]} to "
        f"{first.train_lengths[1]} tokens (grey). {_seeds_words(accuracies)}. {encoding_words(first)}, position IDs "
        f"below {first.max_position}. Dashed (drawn slightly above 1): the accuracy that the theory "
        f"predicts, not fitted; it gives none for larger k, nor for prompts longer than those of training."
        f"{_learned_caption(learned, settings)}",
        handles=handles,
    )
    longest = [
        max((one for one in accuracies if one.setting == of), key=lambda one: (one.k == of.max_sparsity, one.length))
        for of in settings
    ]
    found = "; ".join(
        f"K_train = {one.setting.max_sparsity}{learned_words(*learned[one.setting])}: {_at_words(one)}"
        for one in longest
    )
    name = "synthetic-parity" + "-text" * (first.background == "text")
    return Drawn(figure, name, f"Accuracy in the longest prompts, {found}.")


def _learned_caption(learned: Learned, settings: Sequence[Setting]) -> str:
    """Return what learned means, where a setting of a figure has seeds that have not."""
    if all(every_seed_learned(learned, setting) for setting in settings):
        return ""
    return f" Learned: an accuracy of at least {LEVEL} at the training lengths, k up to K_train."


def _draw_methods(task: str, name: str, words: Callable[[Setting], str] = method_words) -> Draw:
    """Return what draws one figure; ``words`` names its lines in the legend."""

    def draw(accuracies: list[Accuracy], learned: Learned) -> Drawn:
        """Draw Figure 2 or 3, or encodings: a panel for each k, a line for each way to give position IDs."""
        order = ("predicted", "coupled", "shifted", "pose", "randpos")
        with_steps = any(one.setting.scratchpad for one in accuracies)
        sparsities = sorted({one.k for one in accuracies if one.setting.scratchpad == with_steps})
        settings = sorted(
            {one.setting for one in accuracies if one.k in sparsities},
            key=lambda setting: (
                not setting.scratchpad,
                order.index(setting.positions),
                -setting.num_chunks,
                words(setting),
            ),
        )
        first = _only_setting(settings, "train_lengths", "max_sparsity", "modulus")
        names = distinct_words(settings, words)
        has_answers = not all(setting.scratchpad for setting in settings)
        figure, axes = plt.subplots(
            1,
            len(sparsities),
            figsize=(3.9 * len(sparsities) + 1.2, 3.4),
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        for axis, k in zip(axes[0], sparsities, strict=True):
            for number, setting in enumerate(settings):
                points = [one for one in accuracies if one.setting == setting and one.k == k]
                look = _look(number) | {"linestyle": _style(setting, with_steps)}
                if not points:
                    continue
                own = [one.length for one in points]
                _draw_seeds(axis, own, points, **look)
                if setting.positions == "predicted":
                    tokens = [one.tokens_right.mean for one in points]
                    axis.plot(own, tokens, color=look["color"], linestyle=":", linewidth=1.2, marker=mark_of_one(own))
            lengths = sorted({one.length for one in accuracies if one.k == k})
            if has_answers:
                _draw_chance(axis, first, lengths, k=k)
            _frame(axis, first, lengths)
            axis.set_title(f"k = {k}")
        axes[0][0].set_ylabel("accuracy of the whole response")
        handles = [
            Line2D(
                [],
                [],
                label=names[setting] + learned_words(*learned[setting]),
                linestyle=_style(setting, with_steps),
                **_look(number),
            )
            for number, setting in enumerate(settings)
        ]
        predicts = ""
        if any(setting.positions == "predicted" for setting in settings):
            predicts = (
                " Under Predictive Position Coupling the model predicts the position IDs of its response, and a wrong one is an "
                "error; with the true IDs given, they tell what was read."
            )
            handles.append(Line2D([], [], color=COLOURS[0], linestyle=":", label="Predictive, wrong IDs forgiven"))
        if has_answers:
            handles.append(Line2D([], [], color="grey", linestyle=":", label="chance" + ", no scratchpad" * with_steps))
        elsewhere = dict.fromkeys(words(one.setting) for one in accuracies if one.setting not in settings)
        not_drawn = f" Not drawn, since evaluated at other k alone: {'; '.join(elsewhere)}." if elsewhere else ""
        title = TITLES[task] if first.modulus == 2 else task_words(first)
        caption_text(
            figure,
            f"{title.capitalize()}: accuracy of the whole response against the length of the prompt; training has k "
            f"uniform from 1 to {first.max_sparsity} and {first.train_lengths[0]} to {first.train_lengths[1]} tokens (grey). "
            f"{_seeds_words(accuracies)}.{predicts}"
            f"{_learned_caption(learned, settings)}{not_drawn}",
            handles=handles,
            columns=2,
        )
        hardest = [
            max(
                (one for one in accuracies if one.setting == of and one.k in sparsities),
                key=lambda one: (one.k, one.length),
            )
            for of in settings
        ]
        found = "; ".join(
            f"{names[one.setting]}{learned_words(*learned[one.setting])}: {_at_words(one)}" for one in hardest
        )
        return Drawn(figure, name, f"Accuracy of the whole response by the way position IDs are given, {found}.")

    return draw


def _style(setting: Setting, with_steps: bool) -> Literal["-", "--"]:
    """Return the line style: dashed without a scratchpad, where others have one."""
    return "--" if with_steps and not setting.scratchpad else "-"


def draw(runs: list[Path]) -> Iterator[Drawn]:
    """Draw the figures of the tasks that the runs were trained on.

    Raises:
        UserError: no run has a table.
    """
    answers = [newest_finished(run, "synthetic") for run in runs if (run / "synthetic").is_dir()]
    if not answers:
        raise UserError(f"{runs[0]}: there are no synthetic tables here; run `olmo-sparsity synth eval` first")
    found = read_accuracies(answers)
    if any(one.place for one in found):
        raise UserError(
            "some of these runs were evaluated with the planted tokens inside a row and beyond it (synthetic.test_row_len); "
            "`python -m analysis inside_and_beyond` draws them"
        )
    learned = num_learned(task_runs(answers))
    settings = [one.setting for one in found]
    alone = of_sparsity_alone(settings)
    of_background = [[one for one in alone if one.background == background] for background in ("noise", "text")]
    figures: list[tuple[list[Setting], Draw]] = [
        *((chosen, _draw_parity) for chosen in of_background),
        (of_methods(settings, "parity"), _draw_methods("parity", "synthetic-scratchpad")),
        (of_methods(settings, "variables"), _draw_methods("variables", "synthetic-variables")),
    ]
    for chosen, draw_figure in figures:
        if chosen:
            yield draw_figure([one for one in found if one.setting in chosen], learned)
    encodings = of_encodings(settings)
    trained = [one for one in found if one.setting in encodings and one.k <= one.setting.max_sparsity]
    if trained:
        yield _draw_methods("parity", "synthetic-encodings", encoding_words)(trained, learned)


FIGURE = FigureOfRuns(draw)
