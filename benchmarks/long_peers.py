"""How fast and how faithful methods are that tell which tokens or sentences of a long context matter: ours and its peers.

    python -m benchmarks.long_peers --model MODEL --data TEXT --sizes 512 1024 2048 --windows 6 4 2 --out FOLDER

Every method scores the same windows with the same model, on one thread, in passes of the same number of tokens. Its scores are
compared with the exact ones of the same window. There are two quantities (``benchmarks.long_problems``): the gain of unmasking
one token, and AttriBoT's cost of leaving one sentence out. Prints tables, writes ``long_peers.json``, and draws a figure of each
quantity and one of the cost against recall. What a window gave for a method is kept in FOLDER, so that a run can be stopped and
continued. With ``--check`` nothing is scored: it only tells whether model, text and FOLDER are usable.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from benchmarks.long_fidelity import SetQuality, chosen, quality, rank_correlation, recall, screened
from benchmarks.long_methods import (
    BOTH,
    CAPTUM,
    EXACT,
    METHODS,
    Models,
    Outcome,
    run_captum,
    run_method,
    upper_half_left_out,
)
from benchmarks.long_problems import QUANTITIES, VISIBILITY, Part, Problem, long_windows, make_problem, parts_of
from benchmarks.long_report import draw, draw_recall, summarize, table
from benchmarks.results import check_same_setting, mistakes_in_one_line
from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.model.pretrained import PretrainedModel, open_pretrained
from olmo_sparsity.model.transformers_model import TransformersModel
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.storage.files import read_json, write_json

LOCAL_LEN, BATCH_TOKENS = 64, 1024
CANDIDATES = {"tokens": (16, 32, 64), "sentences": (8, 16)}  # N, groups that are scored exactly after a ranking
# A ranking whose keys and values in front of the local tokens are those that exact scores go on from.
SHARING_PREFIX = ("gradient", "patching", "attention", BOTH)


class KeptWindow:
    """What is known about one window, in a file that is written whenever something is added.

    Args:
        path: of the file.
        tokens_T: int64, the window, and its target behind it.

    Raises:
        UserError: the file is of other tokens, or does not tell of which.
    """

    def __init__(self, path: Path, tokens_T: np.ndarray) -> None:
        of_window = {"tokens_sha256": hashlib.sha256(tokens_T.tobytes()).hexdigest()}
        self._path = path
        self._known: dict[str, Any] = read_json(path) if path.exists() else {**of_window, "methods": {}, "sets": {}}
        if self._known.get("tokens_sha256") != of_window["tokens_sha256"]:
            raise UserError(
                f"{path}: these results are not of this text, or do not tell of which; choose another --out folder (make bench "
                "PEERS=DIR)"
            )

    def outcome(self, method: str) -> Outcome | None:
        """Return what a method found; None: it has not run."""
        found = self._known["methods"].get(method)
        if found is None:
            return None
        scores_I = np.array([np.nan if score is None else score for score in found["scores_I"]])
        return Outcome(scores_I, found["seconds"], found["tokens"], found["num_timed"])

    def add(self, method: str, outcome: Outcome) -> None:
        """Keep what a method found."""
        scores = [float(score) if np.isfinite(score) else None for score in outcome.scores_I]
        self._known["methods"][method] = {**dataclasses.asdict(outcome), "scores_I": scores}
        write_json(self._path, self._known)

    def quality(self, problem: Problem, groups: list[int]) -> SetQuality:
        """Return the quality of a set of groups; it is computed once."""
        name = " ".join(map(str, sorted(groups)))
        if name not in self._known["sets"]:
            self._known["sets"][name] = dataclasses.asdict(quality(problem, groups))
            write_json(self._path, self._known)
        return SetQuality(**self._known["sets"][name])


def with_screening(problem: Problem, outcomes: dict[str, Outcome]) -> dict[str, Outcome]:
    """Return the outcomes of all methods, and of rankings that exact scores of their best groups follow."""
    found = dict(outcomes)
    for name, method in METHODS[problem.quantity].items():
        if not method.is_ranking or name not in outcomes:
            continue
        for number in CANDIDATES[problem.quantity]:
            if number < problem.num_groups:
                found[f"{name}, best {number}"] = screened(
                    problem,
                    outcomes[name],
                    exact=outcomes[EXACT],
                    number=number,
                    shares_prefix=name in SHARING_PREFIX and problem.quantity == "tokens",
                )
    return found


def measure_window(problem: Problem, models: Models, kept: KeptWindow, *, without: set[str]) -> list[dict[str, Any]]:
    """Run what has not run on a window; return one row for each method.

    Args:
        problem: the window.
        models: the proxy.
        kept: what is known.
        without: methods that do not run; what is known of them counts.
    """
    nothing = kept.quality(problem, [])
    outcomes: dict[str, Outcome] = {}
    for name in [*METHODS[problem.quantity], CAPTUM]:
        if name != CAPTUM and METHODS[problem.quantity][name].needs_proxy and models.proxy is None:
            continue
        outcome = kept.outcome(name)
        if outcome is None and name in without:
            continue
        if outcome is None:
            methods = METHODS[problem.quantity]
            outcome = run_method(methods[name], problem, models) if name in methods else run_captum(problem)
            kept.add(name, outcome)
        outcomes[name] = outcome
    exact_I = outcomes[EXACT].scores_I
    best = kept.quality(problem, chosen(exact_I))
    rows = []
    for name, outcome in with_screening(problem, outcomes).items():
        is_exact = outcome.num_timed is not None  # the quantity itself, of which a part was timed
        scores_I = exact_I if is_exact else outcome.scores_I
        of_set = kept.quality(problem, chosen(scores_I))
        scored_I = np.isfinite(outcome.scores_I)
        rows.append(
            {
                "method": name,
                "groups": problem.num_groups,
                "seconds": float(np.median(outcome.seconds)),
                "tokens": outcome.tokens,
                "num_timed": outcome.num_timed,
                "recall": recall(scores_I, exact_I),
                "rank_correlation": rank_correlation(scores_I, exact_I),
                "gain_lost_nats": of_set.loss - best.loss,
                "gain_nats": nothing.loss - of_set.loss,
                "kl_nats": of_set.kl,
                "kl_short_nats": nothing.kl,
                "largest_difference_nats": _difference(outcome.scores_I, exact_I, scored_I, name=name),
            }
        )
    return rows


def _difference(scores_I: np.ndarray, exact_I: np.ndarray, scored_I: np.ndarray, *, name: str) -> float | None:
    """Return how far the scores of another exact method are from ours, the mean taken off; None for other methods."""
    if name not in (CAPTUM, "AttriBoT, key-value cache"):
        return None
    differences_i = (scores_I - exact_I)[scored_I]
    return float(np.abs(differences_i - differences_i.mean()).max())


def run(
    opened: PretrainedModel,
    parts: Sequence[Part],
    out: Path,
    *,
    sizes: list[int],
    windows: list[int],
    seed: int,
    without: dict[str, set[str]],
) -> list[dict[str, Any]]:
    """Measure all sizes, and return one row for each quantity, size, window and method.

    Args:
        opened: the model.
        parts: of the text.
        out: where what windows gave is kept.
        sizes: tokens of a window.
        windows: the number of windows of each size.
        seed: of the windows.
        without: for each quantity, methods that do not run.
    """
    assert isinstance(opened.model, TransformersModel)
    proxy, share = upper_half_left_out(opened.model)
    models = Models(proxy, share)
    rows = []
    with progress_bar("windows", " windows", total=len(QUANTITIES) * sum(windows)) as bar:
        for size, number in zip(sizes, windows, strict=True):
            of_size = islice(long_windows(parts, size, tokenizer=opened.tokenizer, seed=seed), number)
            for w, tokens_T in enumerate(of_size):
                for quantity in QUANTITIES:
                    evaluator = Evaluator(
                        opened.model,
                        LOCAL_LEN,
                        batch_tokens=BATCH_TOKENS,
                        visibility=VISIBILITY[quantity],
                        anchor_id=opened.bos_id,
                    )
                    problem = make_problem(evaluator, tokens_T, quantity=quantity, tokenizer=opened.tokenizer)
                    kept = KeptWindow(kept_path(out, quantity, size=size, window=w), tokens_T)
                    found = measure_window(problem, models, kept, without=without[quantity])
                    rows += [{"quantity": quantity, "size": size, "window": w, **row} for row in found]
                    bar.update()
    return rows


def kept_path(out: Path, quantity: str, *, size: int, window: int) -> Path:
    """Return the file in which what is known about a window is kept."""
    return out / f"{quantity}-{size}-{window}.json"


def _has_captum() -> bool:
    try:
        import captum  # noqa: F401
    except ImportError:
        return False
    return True


def check_setting(out: Path, setting: dict[str, Any], *, writes: bool = True) -> None:
    """Check that what a folder holds was measured in the same setting; write down the setting of a new one.

    Args:
        out: the folder.
        setting: what is asked for.
        writes: False: a new folder is left as it is.

    Raises:
        UserError: it was measured in another, or is something else.
    """
    path = out / "setting.json"
    if not path.exists():
        if out.is_dir() and any(out.iterdir()):
            raise UserError(f"--out {out}: this folder holds something else than results; choose another")
        if writes:
            out.mkdir(parents=True, exist_ok=True)
            write_json(path, setting)
        return
    check_same_setting(
        read_json(path), setting, where=f"--out {out}", advice="choose another folder (make bench PEERS=DIR)"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model of transformers, in the form of pretrained.model")
    parser.add_argument(
        "--data", nargs="+", default=["builtin"], help="long documents: builtin, c4, or files, folders or globs"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[512, 1024, 2048], help="tokens of a window")
    parser.add_argument("--windows", type=int, nargs="+", default=[6, 4, 2], help="windows of each size")
    parser.add_argument("--seed", type=int, default=0, help="of the windows")
    parser.add_argument(
        "--without",
        nargs="*",
        default=[],
        metavar="QUANTITY:METHOD",
        help="methods that do not run, as tables name them",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/long_peers"))
    parser.add_argument("--check", action="store_true", help="only check that model, text and --out are usable")
    return parser.parse_args()


def _check(given: argparse.Namespace) -> None:
    if len(given.sizes) != len(given.windows):
        raise UserError(f"--windows: {len(given.windows)} numbers for {len(given.sizes)} sizes; give one for each size")
    if min(given.sizes) <= LOCAL_LEN or min(given.windows) < 1:
        raise UserError(f"--sizes, --windows: a window has more than {LOCAL_LEN} tokens, and there is at least one")


def _open(given: argparse.Namespace) -> PretrainedModel:
    opened = open_pretrained(PretrainedConfig(given.model), device=torch.device("cpu"), precision="fp32")
    if not isinstance(opened.model, TransformersModel):
        raise UserError(f"--model {given.model}: choose a model of transformers, of which layers can be left out")
    longest = max(given.sizes) + 1
    if longest > opened.record.max_position:
        raise UserError(f"--sizes: the model has {opened.record.max_position} positions, and {longest} are needed")
    return opened


def left_out(asked: list[str]) -> dict[str, set[str]]:
    """Return the methods of each quantity that do not run, given as QUANTITY:METHOD; captum, where it is not installed.

    Raises:
        UserError: there is no such method, or exact scores are left out.
    """
    without: dict[str, set[str]] = {quantity: set() if _has_captum() else {CAPTUM} for quantity in QUANTITIES}
    for entry in asked:
        quantity, _, name = entry.partition(":")
        if quantity not in METHODS or name == EXACT or name not in (*METHODS[quantity], CAPTUM):
            raise UserError(
                f"--without {entry}: choose {' or '.join(QUANTITIES)}, a colon, and a method other than {EXACT!r}"
            )
        without[quantity].add(name)
    return without


def main() -> None:
    """Measure, print the table and draw the figures."""
    given = _arguments()
    torch.set_num_threads(1)
    with mistakes_in_one_line():
        _check(given)
        without = left_out(given.without)
        parts = parts_of(given.data)
        opened = _open(given)
        setting = {
            "weights_sha256": opened.record.weights_sha256,
            "data": [part if isinstance(part, str) else part.name for part in parts],
            "seed": given.seed,
            "local_len": LOCAL_LEN,
            "batch_tokens": BATCH_TOKENS,
            "torch": torch.__version__,
        }
        check_setting(given.out, setting, writes=not given.check)
        if given.check:
            for size in given.sizes:
                tokens_T = next(long_windows(parts, size, tokenizer=opened.tokenizer, seed=given.seed))
                for quantity in QUANTITIES:
                    KeptWindow(kept_path(given.out, quantity, size=size, window=0), tokens_T)
            return
        rows = run(opened, parts, given.out, sizes=given.sizes, windows=given.windows, seed=given.seed, without=without)
    summary = summarize(rows)
    write_json(given.out / "long_peers.json", {"setting": setting, "summary": summary, "windows": rows})
    console = Console(width=150)
    for quantity in QUANTITIES:
        for size in given.sizes:
            console.print(table(summary, quantity=quantity, size=size))
        draw(rows, quantity, given.out / f"long_peers_{quantity}")
    draw_recall(rows, given.out / "long_peers")
    if not _has_captum():
        console.print("captum is not installed, and was left out; `make bench` installs it")


if __name__ == "__main__":
    main()
