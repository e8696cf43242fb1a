"""What a measurement found: four questions with a verdict each, two tables and a caution, as one screen or in other forms."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any, Literal, Optional

import pandas as pd
from rich.padding import Padding
from rich.text import Text

from olmo_sparsity.config import MIN_DOCUMENTS
from olmo_sparsity.errors import printable_lines
from olmo_sparsity.statistics.enough import few, share_at
from olmo_sparsity.statistics.quantities import counted, first_blind, gate, pick, shown_ks, side_of_zero
from olmo_sparsity.statistics.spectrum import TOLERANCE
from olmo_sparsity.tables import lengths_of, model_name
from olmo_sparsity.view.console import SafeConsole, json_of, markdown_of, null_context, number, percent, print_table

Form = Literal["text", "json", "csv", "md", "tex"]
VERDICTS: dict[str, str] = {
    "above": "YES", "below": "NO", "unclear": "NOT SHOWN", "too few": "TOO FEW DOCUMENTS", "not applicable": "DOES NOT APPLY",
}  # fmt: skip
TOO_FEW = "Intervals need at least {least} documents; these are {documents}."
HELPS: dict[str, str] = {
    "above": "All {full} tokens predict the next one (the target) better than the last {some}.",
    "below": "The last {some} tokens predict the next one (the target) better than all {full}.",
    "unclear": "All {full} tokens are not shown to predict better than the last {some}.",
    "too few": TOO_FEW,
    "not applicable": "No training row shorter than the {full} tokens is known.",
}
GAP = " With the last {some} at the front, where training rows begin: {gain}."
ON_AVERAGE = "{k} of {units}, picked blind to the target ({selector}). Random: {random}, blending: {blend}."
OF_TARGETS = "{k} of {all} ({selector}) predict as all do, within {tolerance:g} nats. Random: {random}, none: {none}."
NO_GAIN = "No gain is shown that tokens could give back."
NO_CHOICE = "Needs the selector random, and one that does not see the target, at a small k."
DAMPED = {"above": "less", "below": "more", "unclear": "as much", "too few": "perhaps as much"}
CONTROLS = {
    "Damping": (
        "gain_over_damping_nats", "Blending the predictions without and with all tokens gains {0}: choosing adds {1} nats.",
    ),
    "Null context": ("excess_over_random_nats", "The gain over random tokens is {1} nats larger than in the null context."),
}  # fmt: skip
KEYS = ["group", "selector", "context", "k", "x"]
SHOWN = ("kl", "attention", "unmask-one", "random", "nearest")  # where they were measured
STYLES = {"YES": "bold green", "NO": "bold red"}


@dataclass(frozen=True)
class Answer:
    """The answer to a question; ``number`` is empty where there is none."""

    question: str
    verdict: str
    sentence: str
    number: str = ""


def answers(frame: pd.DataFrame) -> list[Answer]:
    """Does the long context help; beyond the training row; are few tokens enough, on average and for most predictions.

    The first number is the long gain, of which R(k) is a share; its verdict is that of the gate.
    """
    lengths, documents = lengths_of(frame.attrs["manifest"]), frame["n_documents"].max()
    found = []
    for question, name, tested, some in (
        ("Does the long context help?", "long_gain_nats", "gate_gain_nats", lengths.local_len),
        ("Does it help beyond its training row?", "gain_beyond_nats", "gain_beyond_nats", lengths.train_len),
    ):
        of, row, gain = gate(frame, tested), pick(frame, name), pick(frame, tested)
        sentence = HELPS[of].format(full=lengths.full_len, some=some, least=MIN_DOCUMENTS, documents=documents)
        value = "" if row is None else number(row)
        if of in ("above", "below", "unclear") and gain is not None and number(gain) != value:
            sentence += GAP.format(some=some, gain=number(gain))
        found.append(Answer(question, VERDICTS[of], sentence, value and f"gain {value} nats"))
    found.append(_enough(frame, "recovered_fraction", "Are few tokens enough, on average?"))
    if "spectrum_share" in set(frame["quantity"]):  # means over seeds have none
        found.append(_enough(frame, "spectrum_share", "Are few tokens enough, for 9 of 10 predictions?"))
    return found


def _enough(frame: pd.DataFrame, name: str, question: str) -> Answer:
    of_targets, selector = name == "spectrum_share", first_blind(frame)
    k, of = few(frame, of_targets=of_targets)
    if k is None or of in ("too few", "not applicable"):
        too_few = TOO_FEW.format(least=MIN_DOCUMENTS, documents=frame["n_documents"].max())
        sentence = too_few if of == "too few" else NO_CHOICE if gate(frame) == "above" else NO_GAIN
        return Answer(question, VERDICTS[of], sentence)
    random, none = share_at(frame, name, "random", k), share_at(frame, name, selector, 0)
    blend = pick(frame, "expected_gain_nats", selector=selector, context="real", k=k)
    gain, all_units = pick(frame, "long_gain_nats"), round(frame.attrs["num_units"])
    sentence = (OF_TARGETS if of_targets else ON_AVERAGE).format(
        k=k, all=all_units, units=counted(all_units, frame.attrs["manifest"]), selector=selector,
        random=percent(random).partition(" ")[0], none=percent(none).partition(" ")[0], tolerance=TOLERANCE,
        blend="-" if blend is None or gain is None else f"{blend['value'] / gain['value']:.0%}",
    )  # fmt: skip
    what = "of them" if of_targets else "of the gain"
    return Answer(question, VERDICTS[of], sentence, f"{percent(share_at(frame, name, selector, k))} {what}")


def caution(frame: pd.DataFrame, k: Optional[int]) -> str:
    """What R(k) alone does not tell: whether a choice gains more than damping, and than in the null context; k as of `few`."""
    selector = first_blind(frame)
    if k is None or selector is None:
        return f"{NO_CHOICE if gate(frame) == 'above' else NO_GAIN} Other numbers of selectors are evidence of nothing."
    return " ".join(["R alone says little.", *(text for _, _, text in controls(frame, selector, k)[: len(CONTROLS)])])


def controls(frame: pd.DataFrame, selector: str, k: int) -> list[tuple[str, str, str]]:
    """Each control of a choice: its name, whether the numbers passed it, and by how much."""
    is_blind, found = selector == first_blind(frame), []
    counts = is_blind and gate(frame) == "above"  # else there is no gain, or luck in it
    for name, (quantity, sentence) in CONTROLS.items():
        row = pick(frame, quantity, selector=selector, context="real", k=k)
        side = side_of_zero(row)
        text = f"{name}: not measured." if row is None else sentence.format(DAMPED[side], number(row))
        found.append((name, {"above": "passed", "below": "failed"}.get(side, "open") if counts else "open", text))
    sees = f"{selector} picks {'without seeing' if is_blind else 'by'} the target. {seeing_line(frame, k)}"
    documents, overlap = frame["n_documents"].max(), pick(frame, "train_overlap_share")
    shared = "" if overlap is None else f" Windows that share text with training: {overlap['value']:.1%}."
    found.append(("Optimism", "passed" if is_blind else "open", sees))
    state = "passed" if documents >= MIN_DOCUMENTS else "failed"
    return [*found, ("Documents", state, f"{documents:,} documents; intervals need {MIN_DOCUMENTS}.{shared}")]


def measured_line(manifest: dict[str, Any], frame: pd.DataFrame) -> str:
    """What was measured: the model, windows, text and lengths."""
    lengths = lengths_of(manifest)
    rule = "contextual" if manifest.get("visibility") == "contextual" else None
    text = ", ".join(filter(None, (PurePath(manifest["source"]).name, manifest.get("split"), rule)))
    row = f"; training rows of {lengths.train_len} tokens" if lengths.train_len else ""
    counts = f"{frame['n_windows'].max():,} windows of {frame['n_documents'].max():,} documents ({text})"
    tokens = f"{lengths.local_len} local + {lengths.num_long_range} earlier tokens"
    return f"{model_name(manifest)}: {counts}; {tokens}{row}; brackets: 95% intervals"


def first_token_line(manifest: dict[str, Any]) -> str:
    """A warning where a loss is clearly lower with the other choice of a first token; else empty."""
    check = (manifest.get("fit") or {}).get("anchor") or {"chosen": "", "lower_with": {}}
    better = {*check["lower_with"].values()} - {None, check["chosen"]}
    return "".join(f"WARNING: a loss is lower with another first token; use influence.anchor={of}" for of in better)


def seeing_line(frame: pd.DataFrame, k: Optional[int]) -> str:
    """How much of the gain of a selector that sees the target is optimism at k; empty where none was measured."""
    seeing = {of["selector"] for of in frame.attrs["selectors"] if of["sees_target"]}
    name = next((name for name in shown_selectors(frame) if name in seeing), None)
    names = ("gain_sparse_nats", "optimism_nats", "corrected_gain_nats")
    gain, optimism, left = (pick(frame, of, selector=name, context="real", k=k) for of in names)
    if gain is None or optimism is None or left is None:
        return ""
    return f"{name}, k = {k}: gain {gain['value']:.3f} - luck (optimism) {optimism['value']:.3f} = {number(left)}"


def shown_selectors(frame: pd.DataFrame) -> list[str]:
    """The selectors of a screen: the usual ones that were measured and those of the user's own files, else all."""
    measured = [of["selector"] for of in frame.attrs["selectors"]]
    own = frame.attrs["manifest"].get("own_selectors", {})
    return [name for name in (*SHOWN, *own) if name in measured] or measured


def recovered_table(frame: pd.DataFrame) -> pd.DataFrame:
    """R(k) by selector and k; empty where the gate did not pass."""
    seeing = {of["selector"] for of in frame.attrs["selectors"] if of["sees_target"]}
    rows = {f"{name}, sees target" if name in seeing else name: (name, "real") for name in shown_selectors(frame)}
    return _shares(frame, "recovered_fraction", "Gain given back (R)", rows)


def spectrum_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Shares of the predictions that need at most k tokens: of the first blind selector, real and null, and of the controls."""
    chosen = first_blind(frame)
    rows = {chosen: (chosen, "real"), f"{chosen}, null context": (chosen, "null")} if chosen else {}
    rows |= {name: (name, "real") for name in ("random", "nearest") if name in shown_selectors(frame)}
    return _shares(frame, "spectrum_share", "Predict as all do", rows, 0)


def _shares(
    frame: pd.DataFrame, quantity: str, title: str, rows: dict[str, tuple[str, str]], *first: int
) -> pd.DataFrame:
    """A row for each selector and context, a column for each of some shown k; empty where the gate did not pass."""
    if gate(frame) != "above" or quantity not in set(frame["quantity"]):
        return pd.DataFrame()
    ks = shown_ks(frame)
    ks = [ks[0], ks[len(ks) // 2], ks[-1]] if len(ks) > 3 else ks  # for a screen of 80 columns
    shown = frame[(frame["quantity"] == quantity) & frame["group"].isna() & frame["x"].isin([float("nan"), TOLERANCE])]
    cells = {(of["selector"], of["context"], of["k"]): percent(of) for of in shown.to_dict("records")}
    columns = {f"k = {k}": [cells.get((*of, k), "-") for of in rows.values()] for k in (*first, *ks)}
    return pd.DataFrame({title: list(rows), **columns})


def every_table(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """All numbers, in a table for each set of keys that rows have."""
    frame, tables = pd.DataFrame(frame, copy=False), []  # without its attributes, which pandas copies at every step
    for _, rows in frame.groupby([frame[key].notna() for key in KEYS], sort=False):
        kept = [key for key in KEYS if rows[key].notna().any()]
        texts = rows[kept].astype(object).map(lambda key: f"{key:g}" if isinstance(key, float) else str(key))
        texts.insert(0, "quantity", rows["quantity"])
        tables.append(texts.assign(value=[number(row) for row in rows.to_dict("records")]))
    return tables


def print_answers(frame: pd.DataFrame) -> None:
    """Print what was measured, and the answers."""
    whole = frame[frame["group"].isna()]  # without classes of targets there are few rows to search
    console = SafeConsole()
    console.print(measured_line(frame.attrs["manifest"], frame))
    for answer in answers(whole):
        verdict = Text(f"{answer.verdict:3} ", STYLES.get(answer.verdict, "bold"))
        console.print(verdict.append(answer.question, "bold").append(f"  {answer.number}".rstrip(), "not bold"))
        console.print(Padding(Text(answer.sentence), (0, 0, 0, 4), expand=False))


def print_summary(frame: pd.DataFrame, *, every: bool = False, form: Form = "text") -> None:
    """Print the answers, two tables and a caution; with ``every`` all numbers in place of the tables."""
    if form == "csv":
        print(printable_lines(frame.to_csv(index=False)), end="")
        return
    manifest, whole = frame.attrs["manifest"], frame[frame["group"].isna()]
    k, _ = few(whole)
    warning = caution(whole, k)
    if form == "json":
        facts = {"manifest": manifest, "answers": [asdict(answer) for answer in answers(whole)], "caution": warning}
        print(json_of(facts, frame))
        return
    tables = every_table(frame) if every else [recovered_table(whole), spectrum_table(whole)]
    tables = [table for table in tables if len(table)]
    notes = [line for line in (seeing_line(whole, k), warning, first_token_line(manifest)) if line]
    notes.append(f"Null context: {null_context(manifest)}.")
    if form == "text":
        console = SafeConsole()
        print_answers(whole)
        for table in tables:
            console.print()
            print_table(table, console)
        console.print("\n".join(["", *notes]) + " More: `summary --every`, `report`")
        return
    lines = [f"{of.question} {' '.join(filter(None, (of.verdict, of.number)))}. {of.sentence}" for of in answers(whole)]
    start = "%" if form == "tex" else "-"
    texts = [table.to_latex(index=False, escape=True) if form == "tex" else markdown_of(table) for table in tables]
    text = "".join(f"{start} {line}\n" for line in [measured_line(manifest, frame), *lines, *notes])
    print(printable_lines(text + "".join(f"\n{of}" for of in texts)), end="")
