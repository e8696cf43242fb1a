"""A measurement as one HTML page: tables and their statistics in, a self-contained file out. Imports no torch.

What its charts draw are the numbers of ``summarize``, ``by_class`` and ``by_distance``, and its windows are rows of the tables.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Optional

from olmo_sparsity import __version__, pages
from olmo_sparsity.breakdowns import by_class, by_distance
from olmo_sparsity.classes import CLASSES
from olmo_sparsity.config import UserError
from olmo_sparsity.excerpts import CONTROLS, choose_windows, printable, read_excerpts, shown_first
from olmo_sparsity.statistics import ESTIMATES, MAIN_SELECTORS, Measurement, length_words, load, summarize
from olmo_sparsity.tables import read_facts

NUM_WINDOWS = 200
NUM_LARGEST = 10
SEED = 0
MAX_SCORES = 1_000_000  # numbers; beyond them only the scores of the chosen positions go into the page
SCORE_STEPS = 99
STYLES = ("report.css",)
SCRIPTS = ("draw.js", "figure4.js", "charts.js", "words.js", "report.js")
# What a position's score is, for people who read no code; README says the same in formulas.
SELECTOR_WORDS = {
    "unmask-one": "how far the loss of the target falls when this token alone is unmasked",
    "mask-one": "how far the loss of the target rises when this token alone is masked",
    "greedy": "forward selection: each step unmasks the token that lowers the loss of the target most",
    "gradient": "unmask-one to first order, from one backward pass",
    "lasso": "weight of the token in a sparse linear model of the loss over random visible sets",
    "kl": "how far this token alone moves the prediction to the one under full context",
    "attention": "attention that the last token pays to this one under full context, mean over heads and layers",
    "random": "control: a random number",
    "nearest": "control: the tokens next to the local context",
}
SELECTOR_ORDER = tuple(SELECTOR_WORDS)


def answer(summary: dict[str, Any], first: str) -> list[str]:
    """The answer in three sentences: is the long context worth anything, do few tokens give it back, how much is luck.

    Args:
        summary: of ``summarize``.
        first: the selector to speak of, best one that does not see the target.
    """
    of = {(e["selector"], e["context"], e["k"]): e for e in summary["selections"]}
    ks = sorted({k for _, _, k in of})
    low, high = ks[0], ks[-1]
    gain, null_gain = summary["long_gain_nats"], summary["null_long_gain_nats"]
    harm = ", which is harm" if null_gain["high"] is not None and null_gain["high"] < 0 else ""
    sentences = [
        f"Seeing all {summary['num_long_range']} long-range tokens besides the {summary['local_len']} local ones is worth "
        f"{_number(gain)} nats a target, {_above_zero(gain)}; foreign text in their place, {_number(null_gain)} nats{harm}."
    ]
    one = of[first, "real", low]
    sees = "which sees the target, so that luck is in it" if one["sees_target"] else "which does not see the target"
    if summary["gate"] == "passed":
        text = (
            f"Of this gain, the {_tokens(low)} that {first} picks, {sees}, {_give(low)} back the "
            f"fraction R({low}) = {_number(one['recovered_fraction'], 2)}"
        )
        if high > low:
            text += f", and {high} of them R({high}) = {_number(of[first, 'real', high]['recovered_fraction'], 2)}"
    else:
        text = (
            "So there is nothing that few tokens could be shown to give back, and no recovered fraction R(k) is given; "
            f"the {_tokens(low)} that {first} picks, {sees}, "
            f"{'gains' if low == 1 else 'gain'} {_number(one['gain_sparse_nats'])} nats"
        )
    over = one["gain_over_random_nats"]
    if over is not None:
        gains, tokens = ("it gains", "a token") if low == 1 else (f"{low} gain", "tokens")
        text += f"; what {gains} over {tokens} taken at random is {_number(over)} nats, {_above_zero(over)}"
    sentences.append(text + ".")
    seeing = next(
        (name for name in SELECTOR_ORDER if (name, "real", high) in of and of[name, "real", high]["sees_target"]), None
    )
    if seeing is not None:
        entry, null = of[seeing, "real", high], of[seeing, "null", high]
        text = (
            f"{seeing}, which sees the target, gains {_number(entry['gain_sparse_nats'])} nats with its {_tokens(high)}, but "
            f"{_number(null['gain_sparse_nats'])} with foreign text in their place, which is the luck of its choice"
        )
        left = entry["excess_over_random_nats"]
        if left is not None:
            text += f"; what is left over random is {_number(left)} nats, {_above_zero(left)}"
        sentences.append(text + ".")
    return sentences


def _number(value: dict[str, Any], digits: int = 3) -> str:
    return pages.minus_interval(value, digits)


def _tokens(k: int) -> str:
    return "one token" if k == 1 else f"{k} tokens"


def _give(k: int) -> str:
    return "gives" if k == 1 else "give"


def _above_zero(value: dict[str, Any]) -> str:
    """What an interval says about 0."""
    if value["low"] is None:
        return "from too few documents to tell it from 0"
    if value["low"] > 0:
        return "clearly above 0"
    return "clearly below 0" if value["high"] < 0 else "not to be told from 0"


def _slim(entry: dict[str, Any]) -> dict[str, Any]:
    """What the page draws of an entry of ``selections``."""
    return {name: entry[name] for name in ("selector", "context", "k", "sees_target", *ESTIMATES)}


def _rounded(values: Any, digits: int = 4) -> list[Optional[float]]:
    return [None if value is None or not math.isfinite(value) else round(value, digits) for value in values]


def _scores(selection: dict[str, Any], all_scores: bool) -> dict[str, Any]:
    """Scores in whole steps, ``SCORE_STEPS`` being ``score_scale``, the largest size in the window; None where left out here,
    or by screening."""
    scores = selection["scores"]
    scale = max(abs(score) for score in scores if score is not None) or 1.0
    kept = {i for i, score in enumerate(scores) if score is not None} & (
        set(range(len(scores))) if all_scores else set(selection["positions"])
    )
    return {
        "scores": [round(score / scale * SCORE_STEPS) if i in kept else None for i, score in enumerate(scores)],
        "score_scale": float(f"{scale:.3g}"),
    }


def window_data(excerpt: dict[str, Any], group: str, all_scores: bool) -> dict[str, Any]:
    """A window as the page has it, from a record of ``read_excerpts``. ``group``: ``sample`` or ``largest``."""
    selections: dict[str, Any] = {}
    for (selector, context), row in excerpt["selections"].items():
        selections.setdefault(selector, {})[context] = {
            "positions": row["positions"],
            "loss": _rounded(row["loss_sparse_nats"]),
            "gain": _rounded(row["gain_sparse_nats"]),
            **_scores(row, all_scores),
        }
    losses = ("loss_short_nats", "loss_long_nats", "null_loss_long_nats", "gain_long_nats", "null_gain_long_nats")
    return {
        "id": excerpt["window_id"],
        "doc": excerpt["doc_id"],
        "source": printable(excerpt["source"]),
        "start": excerpt["start_token"],
        "group": group,
        "class": excerpt["target_class"],
        "tokens": [printable(text) for text in excerpt["token_texts"]],
        "null_tokens": [printable(text) for text in excerpt["null_token_texts"]],
        "null_doc": excerpt["null_doc_id"],
        "target": printable(excerpt["target_text"]),
        **dict(zip(losses, _rounded(excerpt[name] for name in losses), strict=True)),
        "selections": selections,
    }


def class_data(measurement: Measurement, gate: str) -> list[dict[str, Any]]:
    """The classes as the page has them. Where the gate of all windows failed, no class has fractions either: of several
    classes one may pass by luck."""
    entries = []
    for entry in by_class(measurement):
        selections = [_slim(e) for e in entry["selections"]]
        if gate == "failed":
            selections = [{**e, "recovered_fraction": None, "excess_recovered_fraction": None} for e in selections]
        entries.append({**entry, "selections": selections, "effective_sparsity": None})
    return entries


def page_data(tables: Path, num_windows: int = NUM_WINDOWS, seed: int = SEED) -> dict[str, Any]:
    """All that the page shows, as JSON would hold it.

    Args:
        tables: a finished influence folder.
        num_windows: windows to show; all, where there are no more.
        seed: of the random sample, where there are more.
    """
    measurement = load(tables)
    summary = summarize(measurement)
    names = sorted(measurement.selectors, key=SELECTOR_ORDER.index)
    sample, largest = choose_windows(measurement, num_windows, NUM_LARGEST, seed)
    ids = sample + largest
    all_scores = len(ids) * 2 * len(names) * summary["num_long_range"] <= MAX_SCORES
    windows = [
        window_data(excerpt, "sample" if i < len(sample) else "largest", all_scores)
        for i, excerpt in enumerate(read_excerpts(tables, ids))
    ]
    first = shown_first(measurement)
    return {
        "summary": {**summary, "selections": [_slim(e) | {"figure4": e["figure4"]} for e in summary["selections"]]},
        "classes": class_data(measurement, summary["gate"]),
        "distances": by_distance(tables, measurement),
        "selectors": [
            {"name": name, **measurement.selectors[name], "control": name in CONTROLS, "words": SELECTOR_WORDS[name]}
            for name in names
        ],
        "main_selectors": list(MAIN_SELECTORS),
        "class_words": {name: CLASSES.get(name, "") for name in sorted(measurement.windows["target_class"].unique())},
        "ks": measurement.ks,
        "shown_first": first,
        "score_steps": SCORE_STEPS,
        "all_scores": all_scores,
        "sample": {
            "seed": seed,
            "num_sample": len(sample),
            "num_largest": len(largest),
            "all": len(sample) == summary["num_windows"],
        },
        "windows": windows,
    }


def _facts(summary: dict[str, Any], facts: dict[str, Any]) -> list[tuple[str, str]]:
    """What was measured, for the foot of the page."""
    found = [
        ("run", summary["run"]),
        ("text", f"{summary['source']}, {summary['split']}"),
        ("windows", f"{summary['num_windows']:,} of {summary['num_documents']:,} documents"),
        ("lengths", length_words(summary)),
    ]
    if "num_parameters" in facts:
        found.append(
            ("model", f"{facts['num_parameters'] / 1e6:.3g}M parameters, {facts['checkpoint']['step']:,} steps")
        )
    if "influence" in facts:
        found.append(("seed of the windows", str(facts["influence"]["seed"])))
    environment = facts.get("environment", {})
    if environment.get("commit"):
        found.append(
            ("measured by", f"olmo-sparsity {environment['olmo_sparsity']}, commit {environment['commit'][:12]}")
        )
    found.append(("tables", summary["run_id"]))
    found.append(("page made by", f"olmo-sparsity {__version__}"))
    return found


def render(data: dict[str, Any], facts: dict[str, Any]) -> str:
    """The page.

    Args:
        data: of ``page_data``.
        facts: the manifest of the tables.
    """
    summary = data["summary"]
    return pages.render(
        "report.html",
        STYLES,
        SCRIPTS,
        data=data,
        summary=summary,
        answer=answer(summary, data["shown_first"]),
        length_words=length_words(summary),
        facts=_facts(summary, facts),
    )


def default_out(tables: Path, run: Optional[Path] = None) -> Path:
    """Where the page goes where nothing else is said: beside the figures of the tables' run.

    Raises:
        UserError: the tables lie outside of any run, and none is named.
    """
    if run is None and tables.resolve().parent.name == "influence":
        run = tables.parent.parent
    if run is None:
        raise UserError(f"{tables}: these tables lie in no run; say with --out FILE where the page goes")
    return run / "figures" / tables.name / "report.html"


def write_report(
    tables: Path, out: Path, overwrite: bool = False, num_windows: int = NUM_WINDOWS, seed: int = SEED
) -> Path:
    """Writes the page of a measurement, and returns where it is.

    Raises:
        UserError: the tables are not usable, or something is there already and ``overwrite`` was not said.
    """
    if num_windows < 1:
        raise UserError(f"--windows {num_windows}: must be positive")
    pages.check_free(out, overwrite)
    pages.write_page(out, render(page_data(tables, num_windows, seed), read_facts(tables)))
    return out
