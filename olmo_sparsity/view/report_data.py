"""The data that the report page shows. Imports no torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Optional

from olmo_sparsity import __version__
from olmo_sparsity.statistics.breakdowns import by_class, by_distance
from olmo_sparsity.statistics.measurement import Measurement, load
from olmo_sparsity.statistics.summary import ESTIMATES, MAIN_SELECTORS, summarize
from olmo_sparsity.statistics.wording import length_words
from olmo_sparsity.text.target_classes import CLASSES
from olmo_sparsity.view.excerpts import CONTROLS, choose_windows, printable, read_excerpts, shown_first

NUM_WINDOWS = 200
NUM_LARGEST = 10
SEED = 0
MAX_SCORES = 1_000_000  # numbers; beyond them only the scores of the chosen positions go into the page
SCORE_STEPS = 99
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
