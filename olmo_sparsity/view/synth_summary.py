"""What ``olmo-sparsity synth summary`` prints of runs of synthetic tasks: sentences, the runs, and how far they hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from olmo_sparsity.statistics.inside_and_beyond import Twin, read_inside_and_beyond
from olmo_sparsity.statistics.length_generalization import LEVEL, Generalization, TaskRun, read_generalization
from olmo_sparsity.tables.reading import newest_finished, read_manifest
from olmo_sparsity.view.as_json import record_json
from olmo_sparsity.view.console import print_json
from olmo_sparsity.view.inside_and_beyond import twin_items
from olmo_sparsity.view.result_table import ResultTable, Sentence, keys, number, plain, rounded, words
from olmo_sparsity.view.table_formats import markdown_of
from olmo_sparsity.view.table_printing import print_items, results_console
from olmo_sparsity.wording.length_generalization import furthest_words, generalization_sentences, length_words
from olmo_sparsity.wording.synthetic_tasks import distinct_words


def print_synth_summary(runs: Sequence[Path], *, form: Literal["text", "json", "md"] = "text") -> None:
    """Print what the newest evaluations of runs of synthetic tasks show.

    Where they were evaluated with ``synthetic.test_row_len``: the accuracies inside the row and beyond it. Otherwise the runs,
    and how far they hold.

    Raises:
        UserError: a run has no finished evaluation, or they cannot be read together.
    """
    folders = [newest_finished(run, "synthetic") for run in runs]
    found: Twin | Generalization
    if any(read_manifest(folder, "synthetic").get("test_row_len") for folder in folders):
        found = read_inside_and_beyond(folders)
        items = twin_items(found)
    else:
        found = read_generalization(folders)
        items = [Sentence(sentence, is_bold=True) for sentence in generalization_sentences(found)]
        items += [table_of_runs(found.runs), table_of_lengths(found)]
    if form == "json":
        print_json(record_json(found))
    elif form == "md":
        print(markdown_of(items), end="")
    else:
        print_items(items, results_console())


def _learned_words(run: TaskRun) -> str:
    if run.accuracy_within is None:
        return "not evaluated"
    return "learned" if run.has_learned else "not learned"


def table_of_runs(runs: Sequence[TaskRun]) -> ResultTable:
    """Return one row a run: steps, minutes, loss, and whether it has learned."""
    trained = distinct_words(run.setting for run in runs)
    rows = [
        (
            *words(run.run, trained[run.setting]),
            number(run.seed),
            number(run.steps),
            *words(run.ended_by or "-"),
            rounded(run.minutes, ".1f"),
            rounded(run.validation_loss_nats, ".4f"),
            rounded(run.accuracy_within, ".3f"),
            *words(_learned_words(run)),
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


def table_of_lengths(found: Generalization) -> ResultTable:
    """Return one row a setting and k: the length up to which its accuracy holds."""
    trained = distinct_words(one.setting for one in found.furthest)
    rows = [
        (
            *words(trained[one.setting]),
            number(one.k),
            *words(furthest_words(one), ", ".join(length_words(length, one.longest) for length in one.of_seeds)),
        )
        for one in found.furthest
    ]
    columns = (*keys("trained", "k"), *plain("holds up to", "by seed"))
    return ResultTable(
        "lengths", columns, tuple(rows), f"tokens up to which the accuracy is at least {LEVEL} at every evaluated length",
        "in brackets: where the ends of the 95% intervals of the accuracies do; an accuracy without one may be anything; "
        "at least: nothing longer was evaluated.",
    )  # fmt: skip
