"""Words about the results of synthetic tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Optional

from olmo_sparsity.config.keys import counted
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.synthetic import Accuracy, Setting
from olmo_sparsity.wording.numbers import interval

# What encodings of positions are called that do not depend on ``model.position_embedding``.
_OF_ANY_EMBEDDING = {
    "predicted": "Predictive Position Coupling",
    "coupled": "position coupling, true IDs given",
    "shifted": "absolute, random shift",
}


def setting_words(setting: Setting) -> str:
    """Return a setting in words."""
    scratchpad = "with" if setting.scratchpad else "without"
    positions = "ordinary" if setting.positions == "pose" and setting.num_chunks == 1 else setting.positions
    if setting.position_embedding == "none":
        positions = "none"
    elif setting.positions == "randpos":
        positions += f" with {setting.position_embedding}"
    positions += _scaling_words(setting)
    planted = "" if setting.is_placed_anywhere else f", {_planted_words(setting)}"
    return f"{task_words(setting)} {scratchpad} a scratchpad, positions {positions}, K_train = {setting.max_sparsity}{planted}"


def distinct_words(settings: Iterable[Setting], name: Callable[[Setting], str] = setting_words) -> dict[Setting, str]:
    """Return settings in words, those of ``name``. Those that are alike in these have what else they differ in behind them."""
    shown = {setting: name(setting) for setting in settings}
    others: tuple[Callable[[Setting], str], ...] = (
        encoding_words,
        trained_lengths_words,
        lambda one: f"chunks {one.num_chunks}",
        lambda one: f"positions below {one.max_position}",
        task_words,
        lambda one: f"K_train = {one.max_sparsity}",
        _planted_words,
        lambda one: f"embedding {one.position_embedding}" if one.positions in _OF_ANY_EMBEDDING else "",
    )
    alike = {setting: [one for one in shown if shown[one] == words] for setting, words in shown.items()}
    for setting, group in alike.items():
        differing = [words for words in others if len(set(map(words, group))) > 1]
        shown[setting] = ", ".join([shown[setting], *(words(setting) for words in differing)])
    return shown


def trained_lengths_words(setting: Setting) -> str:
    """Return how long the prompts of training are."""
    return f"prompts of {setting.train_lengths[0]} to {setting.train_lengths[1]} tokens"


def _planted_words(setting: Setting) -> str:
    """Return where tokens are planted in training."""
    where = "anywhere" if setting.locality is None else f"within {setting.locality}"
    return f"planted {where}, {setting.spread} apart"


def method_words(setting: Setting) -> str:
    """Return how positions were given and embedded, and whether without a scratchpad."""
    return encoding_words(setting) + ("" if setting.scratchpad else ", no scratchpad")


def learned_words(learned: int, seeds: int) -> str:
    """Return how many seeds have learned a task, such as `` (not learned)``; nothing where all have."""
    if learned == seeds:
        return ""
    return f" (learned by {learned} of {seeds} seeds)" if learned else " (not learned)"


def task_words(setting: Setting) -> str:
    """Return the task in words."""
    task = setting.task if setting.modulus == 2 else f"sum modulo {setting.modulus}"
    return task + " in text" * (setting.background == "text")


def encoding_words(setting: Setting) -> str:
    """Return how positions were given and embedded, as legends say it."""
    if setting.positions in _OF_ANY_EMBEDDING:
        return _OF_ANY_EMBEDDING[setting.positions]
    if setting.position_embedding == "none":
        return "no positions (NoPE)"
    embedding = "RoPE" if setting.position_embedding == "rope" else setting.position_embedding
    if setting.positions == "randpos":
        return f"{embedding} with RandPos"
    return f"{embedding} with{'' if setting.num_chunks > 1 else 'out'} PoSE{_scaling_words(setting)}"


def _scaling_words(setting: Setting) -> str:
    if setting.rope_scaling == "none":
        return ""
    name = {"linear": "position interpolation", "yarn": "YaRN"}[setting.rope_scaling]
    factor = "the length over that of training" if setting.rope_factor is None else f"{setting.rope_factor:g}"
    return f", {name} by {factor}"


def positions_words(setting: Setting) -> str:
    """Return how position IDs were given in training."""
    if setting.position_embedding == "none":
        return encoding_words(setting)
    if setting.positions != "pose":
        return setting.positions
    return "PoSE" if setting.num_chunks > 1 else "without PoSE"


def _estimate_words(estimate: Optional[Estimate]) -> str:
    return "none" if estimate is None else interval(estimate)


def accuracy_lines(accuracies: list[Accuracy]) -> list[str]:
    """Return the accuracies as lines of text: a title for each setting, a line for each k."""
    lines: list[str] = []
    for setting in dict.fromkeys(accuracy.setting for accuracy in accuracies):
        own = [accuracy for accuracy in accuracies if accuracy.setting == setting]
        seeds = len(own[0].of_seeds)
        lines.append(
            f"{setting_words(setting)}: accuracy by length (training: {setting.train_lengths[0]} to "
            f"{setting.train_lengths[1]} tokens; {counted(seeds, 'seed')})"
        )
        for k in sorted({accuracy.k for accuracy in own}):
            points = [
                f"{one.length}{f' {one.place}' if one.place else ''}: {_estimate_words(one.right)}"
                for one in own
                if one.k == k
            ]
            lines.append(f"  k = {k}: {'; '.join(points)}")
    return lines
