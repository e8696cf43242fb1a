"""What ``compare``, ``hypothesis`` and ``synth summary`` print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from olmo_sparsity.selectors import CONTROLS
from olmo_sparsity.statistics.compare import CHOSEN, Comparison
from olmo_sparsity.statistics.hypothesis import CONTRAST, GROUPS, NUMBERS, read_hypothesis
from olmo_sparsity.statistics.quantities import QUANTITIES, pick, side_of_zero
from olmo_sparsity.statistics.synthetic import read_synthetic
from olmo_sparsity.tables import lengths_of
from olmo_sparsity.view.console import SafeConsole, json_of, null_context, number, print_table
from olmo_sparsity.view.summary import SHOWN, VERDICTS

PAIRED = {
    True: "Both measured the same windows: differences are paired, window by window.",
    False: "The windows differ: intervals of differences include the draw of the text.",
}
GAINS = "{model}: do sparse reactions gain more from beyond the training row, by more than in the null context?"
SHARES = "{model}: do sparse reactions gain a larger share of the ceiling's gain?"
SAME_RUN = "Sparsity and gain are of one run, so its noise is in both{}."
NO_CEILING = "Without a ceiling there is no share: sparse reactions may gain more in any model."
MEASURED = (
    "{num_windows:,} targets of {num_documents:,} documents, in thirds of equal reaction, distance and entropy. Gain: loss with "
    "{local_len} tokens minus loss with {full_len}. Null context: {null}. Seeds: {seeds}."
)
PLACES = {"inside": ", inside the row", "beyond": ", beyond it"}


def comparison_table(comparison: Comparison, *, every: bool = False) -> pd.DataFrame:
    """One row a number: its value in each measurement, and the difference.

    Without ``every``, the main numbers of the usual selectors at the smallest k; of those that see the target the corrected gain.
    """
    frame = comparison.frame
    if not every:
        shown = ({*SHOWN, CHOSEN} - {*CONTROLS}) & set(frame["selector"]) or set(frame["selector"])
        is_main = frame["selector"].isin(shown) & (frame["k"] == frame["k"].min()) & (frame["context"] == "real")
        is_luck = frame["selector"].isin(comparison.seeing) & (frame["quantity"] != "corrected_gain_nats")
        compared = [name for name, of in QUANTITIES.items() if "compare" in of.show]
        frame = frame[frame["quantity"].isin(compared) & (frame["selector"].isna() | (is_main & ~is_luck))]
    first, second = comparison.labels
    rows = []
    for row in frame.to_dict("records"):
        selector = None if row["selector"] == CHOSEN else row["selector"]  # the headers name them
        keys = [selector, None if pd.isna(row["k"]) else f"k = {row['k']}", row["context"] if every else None]
        label = ", ".join(filter(None, [QUANTITIES[row["quantity"]].header, *keys]))
        ends = ("_a", "_b", "_difference")
        rows.append([label, *("" if pd.isna(row[f"value{end}"]) else number(row, end=end) for end in ends)])
    return pd.DataFrame(rows, columns=["quantity", first, second, f"{second} minus {first}"])


def print_comparison(comparison: Comparison, *, every: bool = False, as_json: bool = False) -> None:
    """Print two measurements side by side."""
    if as_json:
        print(json_of({name: of for name, of in vars(comparison).items() if name != "frame"}, comparison.frame))
        return
    console = SafeConsole()
    print_table(comparison_table(comparison, every=every), console)
    console.print(PAIRED[comparison.is_paired])
    if not comparison.has_same_tokens:
        console.print("The tokenizers differ: losses in nats are of different tokens and have no difference.")


def print_hypothesis(runs: Sequence[Path], *, selector: str = "kl", as_json: bool = False) -> None:
    """Print whether sparsity predicts the gain from beyond the training row; seeds of a configuration are one model."""
    table = read_hypothesis(runs, selector=selector)
    manifest, console = table.attrs.pop("manifest"), SafeConsole()
    of: Any = table.attrs
    if as_json:
        print(json_of(of, table))
        return
    for (model, sparsity_from), entry in table.groupby(["model", "sparsity_from"], sort=False):
        question, names = GAINS, ["real_minus_null_nats", "third_gain_nats"]
        if sparsity_from == of["ceiling"]:
            question, names = SHARES, ["third_share_of_ceiling"]
        rows = [pick(entry, name, selector=selector, group=CONTRAST) for name in names]
        sides = [side_of_zero(row) for row in rows]
        verdict = VERDICTS[next((side for side in sides if side != "above"), "above")]
        console.print(question.format(model=model), style="bold")
        difference = "" if rows[0] is None else f": sparse minus dense {number(rows[0], NUMBERS[names[0]].digits)}"
        console.print(verdict + difference)
        print_table(_thirds(entry, f"{model} by {sparsity_from}"), console)
        console.print()
    for model in [model for model in table["sparsity_from"].unique() if of["models"][model] == 1]:
        more = "" if model in of["pretrained"] else "; name further seeds with --run"
        console.print(f"{model}: {SAME_RUN.format(more)}")
    if of["ceiling"] is None:
        console.print(NO_CEILING)
    lengths, null = lengths_of(manifest), null_context(manifest)
    seeds = ", ".join(f"{model} {num}" for model, num in of["models"].items())
    console.print(MEASURED.format(**of, seeds=seeds, null=null, local_len=lengths.local_len, full_len=lengths.full_len))


def _thirds(entry: pd.DataFrame, title: str) -> pd.DataFrame:
    """Values by third; the interval is that of the difference."""
    shown = entry.assign(**{end: entry[end].where(entry["group"] == CONTRAST) for end in ("low", "high")})
    cells = [number(row, NUMBERS[row["quantity"]].digits) for row in shown.to_dict("records")]
    table = entry.assign(cell=cells).pivot(index="quantity", columns="group", values="cell")
    table = table.reindex(index=[name for name in NUMBERS if name in table.index], columns=list(GROUPS)).fillna("-")
    table.insert(0, title, [NUMBERS[name].label for name in table.index])
    return table


def print_accuracies(folders: Sequence[Path], *, as_json: bool = False) -> None:
    """Print the accuracies of evaluated runs, or of folders of tables; seeds of a configuration are one model."""
    table, console = read_synthetic(folders), SafeConsole()
    of: Any = table.attrs
    if as_json:
        print(json_of(of, table))
        return
    for model, setting in of["settings"].items():
        rows = table[(table["model"] == model) & (table["quantity"] == "accuracy")]
        lengths = [f"{x:.0f}{PLACES.get(group, '')}" for x, group in zip(rows["x"], rows["group"], strict=True)]
        cells = rows.assign(tokens=lengths, cell=[number(row) for row in rows.to_dict("records")])
        by_k = cells.pivot(index="tokens", columns="k", values="cell").reindex(dict.fromkeys(lengths)).fillna("-")
        console.print(model)
        print_table(by_k.rename(columns="k = {}".format).reset_index(), console)
        trained = "trained on {train_lengths[0]} to {train_lengths[1]} tokens, k up to {max_sparsity}".format(**setting)
        learned, answered = setting["learned"]
        console.print(f"{trained}; seeds: {setting['seeds']}{f', learned by {learned}' if answered else ''}\n")
