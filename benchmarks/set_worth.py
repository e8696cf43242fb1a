"""What a cheap choice of k tokens is worth, and at what cost: its D(k) and its gain as shares of those of the best set.

    python -m benchmarks.set_worth --run runs/demo --num-windows 400 --k 2 4 --out FOLDER
    python -m benchmarks.set_worth --model MODEL --out FOLDER influence.data=TEXT context.local_len=64 context.full_len=128

The choices are those of ``benchmarks.set_choices``, under contextual visibility. The best set of a window at k is, of all that
were found, the one whose prediction is nearest to the full-context one; the target is not asked. A share is a ratio of sums over
windows: for D of KL(p_all, p_{}) - KL(p_all, p_S), for the gain of loss({}) - loss(S). Intervals are percentiles of a bootstrap
over documents. Cost is the tokens that the model runs, as a share of those of captum's last-logits variant, which scores each
token by itself.

Prints a table for each k, writes ``set_worth.json`` and draws ``set_worth.png``. With ``--against CHOICE`` the table compares the
others with that choice, window by window. What a window gave is kept in FOLDER, so that a run can be stopped and continued, or
divided among processes (``--shard 0/2`` and ``--shard 1/2``); with ``--num-windows 0`` it only shows what is there.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.long_methods import WHOSE, Models, upper_half_left_out
from benchmarks.long_problems import Problem, make_problem
from benchmarks.long_report import COLORS
from benchmarks.results import mistakes_in_one_line
from benchmarks.set_choices import BLIND, POLICIES, SEES_TARGET, ChoicesOfWindow, captum_tokens
from olmo_sparsity.config.files import load_config, pretrained_config_path
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.setup.opened_model import OpenedModel, open_model
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.work import share_of_process
from olmo_sparsity.model.transformers_model import TransformersModel
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.statistics.intervals.bootstrap import document_units, estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.storage.files import read_json, write_json
from olmo_sparsity.wording.numbers import interval

AIM_WORTH = 0.95  # of the best set's D(k)
FEW = 12  # choices, all of which are named
NAMED_FROM = 0.01  # how much more a choice is worth than those that are named
SHOWN = {
    "prediction": "D({k}) of the set, as a share of the best set's",
    "gain": "gain of the set, as a share of the best set's\n(without choices that see the target)",
}
Row = dict[str, Any]  # of a window: what was chosen, at what cost, and what it is worth


def measure_window(problem: Problem, models: Models, *, ks: list[int], number: int, without: set[str]) -> Row:
    """Return the choices of a window, by k and name, and the numbers without a choice.

    Of a choice: [loss, KL, tokens, share of J_k of `kl`], the last None where `kl` is left out.

    Args:
        problem: the window.
        models: the proxy.
        ks: the sizes of sets.
        number: of the window.
        without: names of choices that are not made.
    """
    begin = time.process_time()
    of_window = ChoicesOfWindow(problem, models, ks=ks, number=number)
    found, scores = list(of_window.all(without)), of_window.scores
    of_kl = {k: set(choice.groups) for k, name, choice in found if name == "kl"}
    choices: dict[str, dict[str, list[Optional[float]]]] = {}
    for k in ks:
        of_size = {name: choice for other, name, choice in found if other == k}
        sets = sorted({tuple(sorted(choice.groups)) for choice in of_size.values()})
        rows = [(np.zeros(len(sets), dtype=np.int64), np.array(sets, dtype=np.int64))]
        ((losses_R, kl_R),) = scores.evaluate_groups(rows, with_kl=True)
        worth = {groups: [float(loss), float(kl)] for groups, loss, kl in zip(sets, losses_R, kl_R, strict=True)}
        choices[str(k)] = {
            name: [
                *worth[tuple(sorted(choice.groups))],
                choice.tokens,
                len(of_kl[k] & set(choice.groups)) / k if k in of_kl else None,
            ]
            for name, choice in of_size.items()
        }
    return {
        "loss_short": float(scores.loss_short_W[0]),
        "loss_long": float(scores.loss_long_W[0]),
        "kl_short": float(scores.kl_short_W[0]),
        "captum_tokens": captum_tokens(problem),
        "seconds": time.process_time() - begin,
        "choices": choices,
    }


@dataclasses.dataclass(frozen=True)
class Beside:
    """What a choice is worth beside another one, on the same windows.

    Attributes:
        difference: how much more of the best sets' D(k) it reaches.
        num_nearer: windows in which its prediction is nearer to the full-context one.
        num_equal: windows in which both are as near.
        num_windows: all windows.
    """

    difference: Estimate
    num_nearer: int
    num_equal: int
    num_windows: int


@dataclasses.dataclass(frozen=True)
class Worth:
    """What a way to choose k tokens is worth over all windows.

    Attributes:
        name: of the choice.
        prediction: its D(k) as a share of the best sets' D(k).
        gain: its gain as a share of the best sets' gain; that of a choice that sees the target holds luck.
        tokens: that the model runs for a window, mean.
        cost: the same as a share of captum's.
        recall: share of J_k of `kl`; None: it was left out.
        sees_target: whether it sees the target.
        beside: the same beside the choice that is asked for; None: none is, or it is this one.
    """

    name: str
    prediction: Estimate
    gain: Estimate
    tokens: float
    cost: float
    recall: Optional[float]
    sees_target: bool
    beside: Optional[Beside] = None

    @property
    def is_enough(self) -> bool:
        """Whether its D(k) is shown to reach the aim, by the lower end of its interval; without one nothing is shown."""
        return self.prediction.low is not None and self.prediction.low >= AIM_WORTH


def check_compared(against: Optional[str], names: Collection[str]) -> None:
    """Check that the choice that the others are compared with is among those that were measured.

    Raises:
        UserError: it is not.
    """
    if against is not None and against not in names:
        raise UserError(f"--against {against}: not among the choices of every window; choose of: {'; '.join(names)}")


def worths(rows: list[Row], k: int, *, against: Optional[str] = None) -> list[Worth]:
    """Return what all choices of k tokens that every window has are worth, the cheapest first.

    Raises:
        UserError: the choice that the others are compared with is not among them.
    """
    units = document_units(pd.Series([row["doc"] for row in rows]))
    of_k = [row["choices"][str(k)] for row in rows]
    names = [name for name in of_k[0] if all(name in choices for choices in of_k)]
    check_compared(against, names)
    values = {name: np.array([choices[name] for choices in of_k], dtype=np.float64) for name in names}
    short_W = np.array([[row["loss_short"], row["kl_short"]] for row in rows])
    best_W2 = np.array([min(choices.values(), key=lambda value: value[1])[:2] for choices in of_k])
    sums = {(name, at): units.sums(short_W[:, at] - values[name][:, at]) for name in names for at in (0, 1)}
    wholes = {at: units.sums(short_W[:, at] - best_W2[:, at]) for at in (0, 1)}

    def shares(totals: Mapping[tuple[str, int], np.ndarray]) -> dict[tuple[str, Any], np.ndarray]:
        of_best: dict[tuple[str, Any], np.ndarray] = {
            (name, at): totals[name, at] / totals["", at] for name, at in sums
        }
        if against is not None:
            of_best |= {(name, "beside"): of_best[name, 1] - of_best[against, 1] for name in names}
        return of_best

    found = estimates({**sums, **{("", at): whole_U for at, whole_U in wholes.items()}}, shares)
    captum = float(np.mean([row["captum_tokens"] for row in rows]))
    shown = []
    for name in names:
        gain, prediction = found[name, 0], found[name, 1]
        assert gain is not None and prediction is not None
        tokens, recall = (float(values[name][:, at].mean()) for at in (2, 3))
        of_kl = None if np.isnan(recall) else recall
        beside = None
        if against is not None and name != against:
            difference, kl_W, other_W = found[name, "beside"], values[name][:, 1], values[against][:, 1]
            assert difference is not None
            beside = Beside(difference, int((kl_W < other_W).sum()), int((kl_W == other_W).sum()), len(rows))
        shown.append(Worth(name, prediction, gain, tokens, tokens / captum, of_kl, name in SEES_TARGET, beside))
    return sorted(shown, key=lambda worth: (worth.tokens, worth.name))


def sentence(found: list[Worth], k: int, *, num_windows: int, times: float) -> str:
    """Return what the table says: the cheapest choice that reaches the aim, and the best one within a share of captum's cost."""
    blind = [worth for worth in found if not worth.sees_target]
    enough = next((worth for worth in blind if worth.is_enough), None)
    within = [worth for worth in blind if worth.cost <= 1 / times]
    words = f"{num_windows} windows, k = {k}: "
    if enough is None:
        words += f"of no choice is D({k}) shown to be {AIM_WORTH:g} of the best set's"
    else:
        words += (
            f"the cheapest choice whose D({k}) is shown to be {AIM_WORTH:g} of the best set's is {enough.name}, at "
        )
        words += f"{_cost(enough)} of captum's tokens, with {interval(enough.gain)} of its gain"
    if within:
        best = max(within, key=lambda worth: worth.prediction.mean)
        words += (
            f"; within 1/{times:g} of these tokens {best.name} has the highest D({k}), {interval(best.prediction)} "
        )
        words += f"of the best set's, and {interval(best.gain)} of its gain"
    return f"{words}."


def _cost(worth: Worth) -> str:
    return "none" if worth.cost == 0 else f"1/{1 / worth.cost:.3g}" if worth.cost < 1 else f"{worth.cost:.2f} times"


def table(found: list[Worth], k: int, *, against: Optional[str] = None) -> Table:
    """Return the table of one k; the share of J_k of ``kl`` only where this was measured."""
    of_kl = any(worth.recall is not None for worth in found)
    columns = ["tokens", "of captum's", f"share of the best D({k})", "share of its gain"]
    columns += ["share of J_k of kl"] if of_kl else []
    columns += ["share, minus X's", "nearer than X, windows"] if against is not None else []
    notes = ["* sees the target, so its gain holds luck"] if any(worth.sees_target for worth in found) else []
    notes += [f"X: {against}"] if against is not None else []
    shown = Table(title=f"k = {k}", caption="; ".join(notes) or None)
    shown.add_column("choice", no_wrap=True)
    for column in columns:
        shown.add_column(column, justify="right")
    for worth in found:
        recall = ["-" if worth.recall is None else f"{worth.recall:.2f}"] if of_kl else []
        shown.add_row(
            worth.name + (" *" if worth.sees_target else ""),
            f"{worth.tokens:,.0f}",
            _cost(worth),
            interval(worth.prediction),
            interval(worth.gain),
            *recall,
            *([] if against is None else _beside(worth.beside)),
        )
    return shown


def _beside(beside: Optional[Beside]) -> list[str]:
    if beside is None:
        return ["", ""]
    equal = f" ({beside.num_equal:,} equal)" if beside.num_equal else ""
    return [interval(beside.difference), f"{beside.num_nearer:,} of {beside.num_windows:,}{equal}"]


def draw(found: dict[int, list[Worth]], path: Path, *, title: str, times: float) -> None:
    """Draw worth against cost: a column of panels each k, a row each for D(k) and the gain.

    Colours tell whose method ranks: this package's, a cache policy's, AttriBoT's, ContextCite's. Of many choices those are named
    that are worth more than each cheaper one. A choice that costs nothing is a line. Those that see the target are left out of
    the gain, since theirs holds luck.
    """
    ks = list(found)
    figure, axes = plt.subplots(
        2, len(ks), figsize=(6.2 * len(ks), 7.6), squeeze=False, sharex=True, layout="constrained"
    )
    for column, k in enumerate(ks):
        for axis, (measure, label) in zip(axes[:, column], SHOWN.items(), strict=True):
            most, before = -np.inf, None
            for worth in sorted(found[k], key=lambda worth: (worth.cost, -getattr(worth, measure).mean)):
                value: Estimate = getattr(worth, measure)
                if worth.name in BLIND:
                    axis.axhline(value.mean, color="#999999", linestyle=":", linewidth=1)
                    at = (0.995, value.mean)
                    axis.annotate(
                        worth.name, at, xycoords=("axes fraction", "data"), fontsize=7, ha="right", va="bottom"
                    )
                    continue
                if worth.sees_target and measure == "gain":
                    continue
                error = None
                if value.bounds is not None:
                    error = [[value.mean - value.bounds[0]], [value.bounds[1] - value.mean]]
                is_policy = worth.name.split(",")[0] in POLICIES
                color = COLORS["cache policy" if is_policy else WHOSE.get(worth.name, "ours")]
                axis.errorbar(worth.cost, value.mean, error, fmt="o", color=color, markersize=4, elinewidth=0.7)
                if len(found[k]) <= FEW or worth.sees_target or value.mean > most + NAMED_FROM:
                    at, below = (worth.cost, value.mean), -10 if worth.cost == before else 4
                    axis.annotate(worth.name, at, xytext=(4, below), textcoords="offset points", fontsize=7)
                    most = most if worth.sees_target else value.mean
                before = worth.cost
            axis.axhline(AIM_WORTH, color="#444444", linewidth=0.8)
            axis.axvline(1 / times, color="#444444", linewidth=0.8)
            axis.set_xscale("log", base=4)
            axis.xaxis.set_major_formatter(lambda cost, _: f"{cost:g}" if cost >= 1 else f"1/{1 / cost:g}")
            axis.margins(x=0.18)
            axis.set_ylabel(label.format(k=k))
            axis.set_xlabel("tokens run, as a share of captum's")
    figure.suptitle(title, fontsize=8, wrap=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def problems(opened: OpenedModel, evaluator: Evaluator, config: Any) -> Iterator[tuple[str, Problem]]:
    """Yield the windows in random order, with the documents that they are of."""
    windows = opened.windows(config.influence)
    for number in np.random.default_rng(config.influence.seed).permutation(len(windows)):
        (tokens_T,) = windows.tokens(np.array([number]))
        yield (
            windows.doc_ids(np.array([number]))[0],
            make_problem(evaluator, tokens_T, quantity="tokens", tokenizer=opened.tokenizer),
        )


def open_problems(
    given: argparse.Namespace, *, ks: list[int], setting: dict[str, Any]
) -> tuple[Evaluator, Callable[[], Iterator[tuple[str, Problem]]]]:
    """Return the model, and ``problems`` of its windows; check what the folder holds.

    Args:
        given: of ``add_options``.
        ks: the sizes of sets.
        setting: what else a window's numbers depend on.

    Raises:
        UserError: model or text are not usable, or the folder holds what was measured in another setting.
    """
    overrides = ["influence.visibility=contextual", "influence.max_windows_per_document=1", *given.overrides]
    overrides += [f"influence.num_windows={given.num_windows}", f"influence.k=[{','.join(map(str, ks))}]"]
    if given.model is not None:
        overrides.append(f"pretrained.model={given.model}")
    config = load_config(pretrained_config_path() if given.run is None else given.run / "config.yaml", overrides)
    config.check_k()
    opened = open_model(config, given.out / "model" if given.run is None else given.run)
    setting = {
        "weights_sha256": opened.weights_sha256,
        "windows": opened.windows(config.influence).sha256,
        "k": ks,
        "overrides": given.overrides,
        **setting,
    }
    known = given.out / "setting.json"
    if known.exists() and read_json(known) != setting:
        raise UserError(f"--out {given.out}: what it holds was measured in another setting; choose another folder")
    (given.out / "windows").mkdir(parents=True, exist_ok=True)
    write_json(known, setting)
    evaluator = opened.evaluator(config.influence)
    return evaluator, functools.partial(problems, opened, evaluator, config)


def run(given: argparse.Namespace) -> list[Row]:
    """Measure the windows that have not been measured; return all that have.

    Raises:
        UserError: model, text or folder are not usable.
    """
    folder = given.out / "windows"
    share = share_of_process(given.shard, overwrite=False)
    if given.num_windows:
        evaluator, of_documents = open_problems(given, ks=given.k, setting={"without": sorted(given.without)})
        models = Models(None, 1.0)
        if isinstance(evaluator.model, TransformersModel):
            models = Models(*upper_half_left_out(evaluator.model))
        with progress_bar("windows", " windows", total=given.num_windows) as bar:
            for number, (doc, problem) in enumerate(of_documents()):
                path = folder / f"{number:05d}.json"
                if number % share.count == share.index and not path.exists():
                    row = measure_window(problem, models, ks=given.k, number=number, without=set(given.without))
                    check_compared(given.against, row["choices"][str(given.k[0])])  # not at the end of a long run
                    write_json(path, {"doc": doc, **row})
                bar.update()
    rows = [read_json(path) for path in sorted(folder.glob("*.json"))]
    measured = sorted({int(k) for row in rows for k in row["choices"]})
    if rows and (missing := [k for k in given.k if k not in measured]):
        raise UserError(f"--k {missing[0]}: {given.out} holds --k {' '.join(map(str, measured))}; choose of these")
    return rows


def add_options(parser: argparse.ArgumentParser, *, num_windows: int, out: Path) -> None:
    """Add the options that say what is measured: --run, --model, --num-windows, --out, and keys of the configuration."""
    of_what = parser.add_mutually_exclusive_group(required=True)
    of_what.add_argument("--run", type=Path, help="a trained run")
    of_what.add_argument("--model", help="a pretrained model, in the form of pretrained.model")
    parser.add_argument("--num-windows", type=int, default=num_windows, help="one of each document")
    parser.add_argument("--out", type=Path, default=out)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="keys of the configuration")


def main() -> None:
    """Measure, print the tables and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, num_windows=400, out=Path("runs/set_worth"))
    parser.add_argument("--k", type=int, nargs="+", default=[8, 16], help="sizes of sets")
    parser.add_argument("--times", type=float, default=8, help="the aim: so many times fewer tokens than captum")
    parser.add_argument("--against", metavar="CHOICE", help="compare the others with this choice, by name")
    parser.add_argument(
        "--without",
        nargs="*",
        default=[],
        metavar="CHOICE",
        help="choices that are not made: names, or what they begin with",
    )
    parser.add_argument("--shard", metavar="I/N", help="measure only share I of N equal shares, I from 0 to N - 1")
    given = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    with mistakes_in_one_line():
        rows = run(given)
        if not rows:
            sys.exit(f"--out {given.out}: it holds no windows")
        found = {k: worths(rows, k, against=given.against) for k in given.k}
    says = [sentence(found[k], k, num_windows=len(rows), times=given.times) for k in given.k]
    console = Console(width=150)
    for k, words in zip(given.k, says, strict=True):
        console.print(words)
        console.print(table(found[k], k, against=given.against))
    of_k = {str(k): [dataclasses.asdict(worth) for worth in found[k]] for k in given.k}
    write_json(given.out / "set_worth.json", {"says": says, "num_windows": len(rows), "k": of_k})
    draw(found, given.out / "set_worth.png", title="\n".join(says), times=given.times)


if __name__ == "__main__":
    main()
