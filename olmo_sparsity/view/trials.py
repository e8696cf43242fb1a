"""What ``hypothesis``, ``synth eval`` and ``synth summary`` print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from olmo_sparsity.statistics.hypothesis import CONTRAST, GROUPS, NUMBERS, read_hypothesis
from olmo_sparsity.statistics.quantities import pick, side_of_zero
from olmo_sparsity.statistics.synthetic import read_synthetic
from olmo_sparsity.tables import lengths_of
from olmo_sparsity.view.console import SafeConsole
from olmo_sparsity.view.tables import json_of, print_table
from olmo_sparsity.view.text import VERDICTS, number

NULL = {"document": "foreign text", "shuffled": "shuffled text"}
GAINS = "{model}: do sparse reactions gain more from beyond the training row, by more than on {null}?"
SHARES = "{model}: do sparse reactions gain a larger share of the ceiling's gain?"
SAME_RUN = "Sparsity and gain are of one run, so its noise is in both; name further seeds with --run."
SAME_MODEL = "Sparsity and gain are of one pretrained model, so its noise is in both."
NO_CEILING = "Without a ceiling there is no share: sparse reactions may gain more in any model."
MEASURED = (
    "{num_windows:,} targets of {num_documents:,} documents, in thirds of equal reaction, distance and entropy. Gain: loss with "
    "{local_len} tokens minus loss with {full_len}. Seeds: {seeds}."
)


def print_hypothesis(runs: Sequence[Path], *, selector: str = "kl", as_json: bool = False) -> None:
    """Print whether sparsity predicts the gain from beyond the training row; seeds of a configuration are one model."""
    table = read_hypothesis(runs, selector=selector)
    manifest, console = table.attrs.pop("manifest"), SafeConsole()
    of: Any = table.attrs
    if as_json:
        print(json_of(of, table))
        return
    null = NULL[manifest["influence"].get("null_context", "document")]
    for (model, sparsity_from), entry in table.groupby(["model", "sparsity_from"], sort=False):
        question, names = GAINS, ["real_minus_null_nats", "third_gain_nats"]
        if sparsity_from == of["ceiling"]:
            question, names = SHARES, ["third_share_of_ceiling"]
        rows = [pick(entry, name, selector=selector, group=CONTRAST) for name in names]
        sides = [side_of_zero(row) for row in rows]
        verdict = VERDICTS[next((side for side in sides if side != "above"), "above")]
        console.print(question.format(model=model, null=null), style="bold")
        difference = (
            "" if rows[0] is None else f": sparse minus dense {number(rows[0], digits=NUMBERS[names[0]].digits)}"
        )
        console.print(verdict + difference)
        print_table(_thirds(entry, f"{model} by {sparsity_from}", null), console)
        console.print()
    for model in [model for model in table["sparsity_from"].unique() if of["models"][model] == 1]:
        console.print(f"{model}: {SAME_MODEL if model in of['pretrained'] else SAME_RUN}")
    if of["ceiling"] is None:
        console.print(NO_CEILING)
    seeds, lengths = ", ".join(f"{model} {num}" for model, num in of["models"].items()), lengths_of(manifest)
    console.print(MEASURED.format(**of, seeds=seeds, local_len=lengths.local_len, full_len=lengths.full_len))


def _thirds(entry: pd.DataFrame, title: str, null: str) -> pd.DataFrame:
    """Values by third; the interval is that of the difference."""
    shown = entry.assign(**{end: entry[end].where(entry["group"] == CONTRAST) for end in ("low", "high")})
    cells = entry.assign(cell=[number(row, digits=NUMBERS[row["quantity"]].digits) for _, row in shown.iterrows()])
    table = cells.pivot(index="quantity", columns="group", values="cell").reindex(columns=list(GROUPS)).fillna("-")
    table = table.reindex([name for name in NUMBERS if name in table.index])
    table.insert(0, title, [NUMBERS[name].label.format(null=null) for name in table.index])
    return table


def print_accuracies(folders: Sequence[Path], *, as_json: bool = False) -> None:
    """Print the accuracies of evaluated runs, or of folders of tables; seeds of a configuration are one model."""
    table = read_synthetic(folders)
    of: Any = table.attrs
    if as_json:
        print(json_of(of, table))
        return
    console, places = SafeConsole(), {"inside": ", inside the row", "beyond": ", beyond it"}
    for model, setting in of["settings"].items():
        rows = table[(table["model"] == model) & (table["quantity"] == "accuracy")]
        lengths = [f"{x:.0f}{places.get(group, '')}" for x, group in zip(rows["x"], rows["group"], strict=True)]
        cells = rows.assign(tokens=lengths, cell=[number(row) for _, row in rows.iterrows()])
        by_k = cells.pivot(index="tokens", columns="k", values="cell").reindex(dict.fromkeys(lengths)).fillna("-")
        console.print(model)
        print_table(by_k.rename(columns="k = {}".format).reset_index(), console)
        trained = "trained on {train_lengths[0]} to {train_lengths[1]} tokens, k up to {max_sparsity}".format(**setting)
        learned, answered = setting["learned"]
        console.print(f"{trained}; seeds: {setting['seeds']}{f', learned by {learned}' if answered else ''}\n")
