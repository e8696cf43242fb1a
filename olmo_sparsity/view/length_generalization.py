"""What ``olmo-sparsity synth summary`` prints of runs of synthetic tasks: sentences, the runs, and how far they hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from olmo_sparsity.statistics.length_generalization import LEVEL, Generalization, TaskRun, read_generalization
from olmo_sparsity.view.as_json import record_json
from olmo_sparsity.view.console import print_json
from olmo_sparsity.view.result_table import Cell, Item, ResultTable, Sentence, keys, number, plain, rounded, words
from olmo_sparsity.view.table_printing import print_items, results_console
from olmo_sparsity.wording.length_generalization import furthest_words, generalization_sentences, length_words
from olmo_sparsity.wording.synthetic_tasks import place_words, setting_words


def print_generalization(folders: Sequence[Path], *, as_json: bool = False) -> None:
    """Print sentences, the table of runs and the furthest lengths; or JSON.

    Args:
        folders: of ``synth eval``.
        as_json: print all of it as JSON instead.
    """
    found = read_generalization(folders)
    if as_json:
        print_json(record_json(found))
        return
    items: list[Item] = [Sentence(sentence, is_bold=True) for sentence in generalization_sentences(found)]
    print_items([*items, table_of_runs(found.runs), table_of_lengths(found)], results_console())


def table_of_runs(runs: Sequence[TaskRun]) -> ResultTable:
    """Return one row a run: steps, minutes, loss, and whether it has learned."""
    rows = [
        (
            *words(run.run, setting_words(run.setting)),
            number(run.seed),
            number(run.steps),
            *words(run.ended_by or "-"),
            _rounded(run.minutes, ".1f"),
            _rounded(run.validation_loss_nats, ".4f"),
            _rounded(run.accuracy_within, ".3f"),
            *words("learned" if run.has_learned else "not learned"),
        )
        for run in runs
    ]
    columns = [
        *keys("run", "trained", "seed"),
        *plain("steps", "ended by", "minutes", "held-out loss", "accuracy within", "task"),
    ]
    return ResultTable(
        "runs", tuple(columns), tuple(rows), "runs",
        f"accuracy within: greedy, at the training lengths, k up to K_train; learned: at least {LEVEL}. held-out loss in nats.",
    )  # fmt: skip


def _rounded(value: float | None, form: str) -> Cell:
    return Cell("-") if value is None else rounded(value, form)


def table_of_lengths(found: Generalization) -> ResultTable:
    """Return one row a setting, place and k: the length up to which its accuracy holds."""
    rows = [
        (
            *words(setting_words(one.setting), place_words(one.place) if one.place else "as in training"),
            number(one.k),
            *words(furthest_words(one), ", ".join(length_words(length, one.longest) for length in one.of_seeds)),
        )
        for one in found.furthest
    ]
    columns = (*keys("trained", "planted", "k"), *plain("holds up to", "by seed"))
    return ResultTable(
        "lengths", columns, tuple(rows), f"tokens up to which the accuracy is at least {LEVEL} at every evaluated length",
        "in brackets: where the ends of the 95% intervals of the accuracies do; at least: nothing longer was evaluated.",
    )  # fmt: skip
