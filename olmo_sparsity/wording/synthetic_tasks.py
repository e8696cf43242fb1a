"""Words about the results of synthetic tasks."""

from __future__ import annotations

from typing import Optional

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.synthetic import Accuracy, BridgePoint, Setting


def setting_words(setting: Setting) -> str:
    """Return a setting in words."""
    scratchpad = "with" if setting.scratchpad else "without"
    positions = setting.positions if setting.num_chunks > 1 else "ordinary"
    planted = "" if setting.placed == "any/1" else f", planted {place_words(setting.placed)}"
    return f"{task_words(setting)} {scratchpad} a scratchpad, positions {positions}, K_train = {setting.max_sparsity}{planted}"


def place_words(place: str) -> str:
    """Return one of ``synthetic.test_placed`` in words."""
    locality, spread = place.split("/")
    return f"{'anywhere' if locality == 'any' else f'within {locality}'}, {spread} apart"


def method_words(setting: Setting) -> str:
    """Return the way position IDs are given, and whether without a scratchpad."""
    names = {
        "predicted": "Predictive Position Coupling",
        "coupled": "position coupling, true IDs given",
        "shifted": "absolute, random shift",
        "pose": "RoPE with PoSE" if setting.num_chunks > 1 else "RoPE without PoSE",
    }
    return names[setting.positions] + ("" if setting.scratchpad else ", no scratchpad")


def learned_words(learned: int, seeds: int) -> str:
    """Return how many seeds have learned a task, such as `` (not learned)``; nothing where all have."""
    if learned == seeds:
        return ""
    return f" (learned by {learned} of {seeds} seeds)" if learned else " (not learned)"


def task_words(setting: Setting) -> str:
    """Return the task in words."""
    task = setting.task if setting.modulus == 2 else f"sum modulo {setting.modulus}"
    return task + " in text" * (setting.background == "text")


def positions_words(setting: Setting) -> str:
    """Return how position IDs were given in training."""
    if setting.positions != "pose":
        return setting.positions
    return "PoSE" if setting.num_chunks > 1 else "without PoSE"


def _estimate_words(estimate: Optional[Estimate]) -> str:
    if estimate is None:
        return "none"
    bounds = f" [{estimate.low:.2f}, {estimate.high:.2f}]" if estimate.has_interval else ""
    return f"{estimate.mean:.2f}{bounds}"


def accuracy_lines(accuracies: list[Accuracy]) -> list[str]:
    """Return the accuracies as lines of text: a title for each setting, a line for each k."""
    lines: list[str] = []
    for setting in dict.fromkeys(accuracy.setting for accuracy in accuracies):
        own = [accuracy for accuracy in accuracies if accuracy.setting == setting]
        seeds = len(own[0].of_seeds)
        lines.append(
            f"{setting_words(setting)}: accuracy by length (training: {setting.train_lengths[0]} to "
            f"{setting.train_lengths[1]} tokens; {seeds} seed{'s' * (seeds > 1)})"
        )
        for k in sorted({accuracy.k for accuracy in own}):
            points = [
                f"{one.length}{f' {one.place}' if one.place else ''}: {_estimate_words(one.right)}"
                for one in own
                if one.k == k
            ]
            lines.append(f"  k = {k}: {'; '.join(points)}")
    return lines


def bridge_lines(points: list[BridgePoint]) -> list[str]:
    """Return what the selectors found as lines of text."""
    lines: list[str] = []
    for setting in dict.fromkeys(point.setting for point in points):
        lines.append(f"{setting_words(setting)}: planted bits found, R(k), D(k)")
        for point in (point for point in points if point.setting == setting):
            lines.append(
                f"  {point.length} tokens, k = {point.k}, {point.selector}: found {_estimate_words(point.found)} (by chance "
                f"{point.found_by_chance:.2f}), R {_estimate_words(point.recovered_fraction)}, D "
                f"{_estimate_words(point.prediction_recovered)}, accuracy {_estimate_words(point.right)}"
            )
    return lines
