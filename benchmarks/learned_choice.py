"""Whether a choice that was learned from what sets are worth beats attention: ridge regression on what one pass gives.

    python -m benchmarks.learned_choice --model MODEL --out FOLDER influence.data=TEXT context.local_len=64 context.full_len=128
    python -m benchmarks.learned_choice --run runs/demo --k 4 --out FOLDER

Of each window, under contextual visibility, random sets of k long-range tokens are run. What a set S is worth, KL(p_all, p_{}) -
KL(p_all, p_S), is regressed on the sum of the features of its tokens: the attention of the last token, of the last 32 local
tokens and of all tokens, head by head, the attention times the norms of the values, the norms of the keys, how far each layer
moves the state, and the two first-order estimates. The target is not among them. The regression is fitted on the documents of
four folds and chooses the k tokens of highest score in the windows of the fifth; what these sets are worth is measured beside
those of other choices. Intervals are percentiles of a bootstrap over documents.

What a window gave is kept in FOLDER, so that a run can be stopped and continued. Prints a table, and D(k) of each choice minus
that of ``attention``; writes ``learned_choice.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.long_fidelity import chosen
from benchmarks.long_problems import Problem
from benchmarks.results import mistakes_in_one_line
from benchmarks.set_choices import scores_of
from benchmarks.set_worth import add_options, open_problems
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.attribution import Attribution
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.records.policies import for_queries
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.records.window_input import WindowInput
from olmo_sparsity.statistics.intervals.bootstrap import document_units, estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.storage.files import write_json
from olmo_sparsity.wording.numbers import interval

NUM_FOLDS = 5
PENALTIES = 10.0 ** np.arange(0, 8)  # of standardised features
NEEDS = ("attention", "accumulated_attention", "observed_attention", "keys", "values", "hidden_states")
RANKINGS: tuple[Attribution, ...] = ("patching", "gradient")  # first-order estimates, as features and as choices
CHOICES = ("attention", "h2o", "snapkv", "greedy-patching", "kl", "random")
LEARNED = "learned"


def features(window: WindowInput, estimates_FM: np.ndarray) -> np.ndarray:
    """Return the features of each long-range token, fp32 [M, F]."""
    norms = for_queries(np.linalg.norm(window.values, axis=-1), window.attention)
    moved = np.linalg.norm(np.diff(window.hidden_states, axis=0), axis=-1)
    parts = (
        window.attention,
        window.observed_attention,
        window.accumulated_attention,
        window.attention * norms,
        np.linalg.norm(window.keys, axis=-1),
        moved,
        estimates_FM,
    )
    return np.concatenate([part.reshape(-1, part.shape[-1]) for part in parts]).T.astype(np.float32)


def sample_window(problem: Problem, *, k: int, number: int, num_sets: int) -> dict[str, np.ndarray]:
    """Return of a window the features [M, F], random sets [N, k], their KL(p_all, p_S) [N], that of no token, and of CHOICES.

    Args:
        problem: the window.
        k: tokens of a set.
        number: of the window; it seeds the sets.
        num_sets: N.
    """
    scores = scores_of(problem, max_k=k, number=number)
    first_order = [scores.estimates("kl", attribution=name)[0] for name in RANKINGS]
    (window,) = scores.inputs(NEEDS)
    sets = {name: chosen(SELECTORS[name].score(scores)[0], k) for name in CHOICES}
    sets |= {name: chosen(-values_M, k) for name, values_M in zip(RANKINGS, first_order, strict=True)}
    generator = np.random.default_rng([problem.num_groups, number])
    drawn_NK = np.array([generator.permutation(problem.num_groups)[:k] for _ in range(num_sets)])
    return {
        "features_MF": features(window, np.stack(first_order)),
        "sets_NK": drawn_NK,
        "kl_N": _divergences(scores, drawn_NK),
        "kl_short": scores.kl_short_W,
        **{f"kl of {name}": _divergences(scores, np.array([groups])) for name, groups in sets.items()},
    }


def _divergences(scores: Any, sets_NK: np.ndarray) -> np.ndarray:
    ((_, kl_N),) = scores.evaluate_groups([(np.zeros(len(sets_NK), dtype=np.int64), sets_NK)], with_kl=True)
    return np.asarray(kl_N, dtype=np.float64)


def learned_sets(windows: list[dict[str, np.ndarray]], docs: list[str], *, k: int) -> np.ndarray:
    """Return the k tokens that a regression on the other folds chooses in each window, int64 [W, k]."""
    summed = [of["features_MF"][of["sets_NK"]].sum(axis=1) for of in windows]
    worth = [of["kl_short"] - of["kl_N"] for of in windows]
    found = np.empty((len(windows), k), dtype=np.int64)
    for train, test in GroupKFold(NUM_FOLDS).split(docs, groups=docs):
        fitted = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
        fitted.fit(np.concatenate([summed[w] for w in train]), np.concatenate([worth[w] for w in train]))
        scaler, ridge = fitted[0], fitted[1]
        for w in test:
            found[w] = chosen(windows[w]["features_MF"] @ (ridge.coef_ / scaler.scale_), k)
    return found


def shares(kl_short_W: np.ndarray, kl_of: dict[str, np.ndarray], docs: list[str]) -> dict[tuple[str, str], Estimate]:
    """Return D(k) of each choice, ("D", name), and minus that of ``attention``, ("difference", name)."""
    units = document_units(pd.Series(docs))
    sums = {name: units.sums(kl_short_W - kl_W) for name, kl_W in kl_of.items()}
    sums[""] = units.sums(kl_short_W)

    def quantities(totals: Mapping[str, np.ndarray]) -> dict[tuple[str, str], np.ndarray]:
        of = {name: totals[name] / totals[""] for name in kl_of}
        return {("D", name): of[name] for name in kl_of} | {
            ("difference", name): of[name] - of["attention"] for name in kl_of
        }

    return {key: value for key, value in estimates(sums, quantities).items() if value is not None}


def run(given: argparse.Namespace) -> tuple[dict[tuple[str, str], Estimate], int]:
    """Measure what has not been measured, fit, and return what the choices are worth, and the number of windows.

    Raises:
        UserError: model, text or folder are not usable, there are no sets, or the text has fewer documents than there are folds.
    """
    k: int = given.k
    if given.num_sets < 1:
        raise UserError(f"--num-sets {given.num_sets}: the choice is learned from random sets; ask for at least one")
    _, problems = open_problems(given, ks=[k], setting={"num_sets": given.num_sets})
    folder, docs, windows = given.out / "windows", [], []
    with progress_bar("windows", " windows", total=given.num_windows) as bar:
        for number, (doc, problem) in enumerate(problems()):
            path = folder / f"{number:05d}.npz"
            if not path.exists():
                sampled = sample_window(problem, k=k, number=number, num_sets=given.num_sets)
                partial = path.with_suffix(".part.npz")
                np.savez(partial, **sampled)
                partial.rename(path)
            with np.load(path) as kept:
                windows.append(dict(kept))
            docs.append(doc)
            bar.update()
    if len(docs) < NUM_FOLDS:
        raise UserError(
            f"--num-windows {given.num_windows}: {len(docs)} windows of as many documents were found, and the choice is learned "
            f"in {NUM_FOLDS} folds of them; ask for more, or give longer text"
        )
    learned_WK = learned_sets(windows, docs, k=k)
    kl_of = {name: np.concatenate([of[f"kl of {name}"] for of in windows]) for name in (*CHOICES, *RANKINGS)}
    of_learned = [
        _divergences(scores_of(problem, max_k=k, number=number), learned_WK[number : number + 1])
        for number, (_, problem) in enumerate(problems())
    ]
    kl_of[LEARNED] = np.concatenate(of_learned)
    return shares(np.concatenate([of["kl_short"] for of in windows]), kl_of, docs), len(windows)


def main() -> None:
    """Measure, fit, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, num_windows=200, out=Path("runs/learned_choice"))
    parser.add_argument("--k", type=int, default=8, help="tokens of a set")
    parser.add_argument(
        "--num-sets", type=int, default=32, help="random sets of a window that the regression learns from"
    )
    given = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    with mistakes_in_one_line():
        found, num_windows = run(given)
    names = [name for kind, name in found if kind == "D"]
    shown = Table("choice", f"D({given.k})", "minus that of attention", title=f"{num_windows} windows")
    for name in sorted(names, key=lambda name: -found["D", name].mean):
        shown.add_row(name, interval(found["D", name]), interval(found["difference", name]))
    difference = found["difference", LEARNED]
    is_better = difference.low is not None and difference.low > 0
    console = Console(width=120)
    console.print(
        f"D({given.k}) of the learned choice is {interval(difference)} above that of attention: "
        f"{'it earns its place' if is_better else 'that it is higher is not shown'}."
    )
    console.print(shown)
    of_names = {name: {kind: found[kind, name].mean for kind in ("D", "difference")} for name in names}
    write_json(given.out / "learned_choice.json", {"num_windows": num_windows, "k": given.k, "choices": of_names})


if __name__ == "__main__":
    main()
