"""Every figure of whole runs as a reader sees it, of invented numbers of which no two are alike."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figure_text import figure_text
from made_up import CONTEXTUAL
from made_up_runs import FULL, four_way_runs, made_up_measurement, made_up_run, pretrained_curve
from planted_lengths import LineKey, planted_needs
from syrupy.assertion import SnapshotAssertion
from varied_tables import react_otherwise

from analysis import (
    compare,
    context_curve,
    hypothesis,
    inside_and_beyond,
    spectrum_by_length,
    synthetic,
    training,
)
from analysis.output import Drawn
from olmo_sparsity.config import TrainingConfig
from olmo_sparsity.statistics.inside_and_beyond import InARow, InsideAndBeyond, Twin
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.spectrum_by_length import spectrum_by_length as spectra_by_length
from olmo_sparsity.statistics.synthetic import Accuracy, Setting


def texts(drawn: Iterator[Drawn]) -> str:
    return "\n".join(map(figure_text, drawn))


# Training


def metrics(run: Path, *, steps: int, every: int, speed: bool = True, seed: int = 3, **config: Any) -> Path:
    """Write a run and what it has logged so far, with an evaluation every so many lines; 0: none."""
    made_up_run(run, seed=seed, training=TrainingConfig(seed=seed, steps=900), **config)
    lines = []
    for step in range(1, steps + 1):
        line: dict[str, Any] = {"step": 10 * step, "tokens": 3200 * step, "loss_nats": 3 + 4 / step + 0.1 * (step % 3)}
        if speed:
            line |= {"learning_rate": 0.001 * min(1, step / 8), "grad_norm": 0.3 + 1 / step + 0.05 * (step % 4)}
            line |= {"tokens_per_second": 41_000 + 700 * (step % 5), "share_of_peak": 0.31 + 0.01 * (step % 2)}
        if every and step % every == 0:
            line |= {"validation_loss_nats": 3.1 + 3 / step, "loss_within_train_len_nats": 3.2 + 2 / step}
            line |= {"loss_beyond_train_len_nats": 3.5 + 1 / step}
            line |= {"loss_by_position_nats": [3 + 2 / (1 + place) + 1 / step for place in range(FULL)]}
        lines.append(line)
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return run


@pytest.mark.parametrize("which", ["one", "several", "begun"])
def test_training(tmp_path: Path, text_snapshot: SnapshotAssertion, which: str) -> None:
    begun = metrics(tmp_path / "begun", steps=3, every=0, speed=False)
    one = metrics(tmp_path / "one", steps=60, every=2)
    runs = {"one": [one], "begun": [begun]}.get(which) or [
        one, metrics(tmp_path / "longer", steps=26, every=13, row_len=16), begun,
    ]  # fmt: skip
    assert texts(training.draw(runs)) == text_snapshot


# Context curves


def test_context_curves(tmp_path: Path, text_snapshot: SnapshotAssertion) -> None:
    runs = [run for of_kind in four_way_runs(tmp_path, (0, 1)).values() for run in of_kind]
    assert texts(context_curve.draw(runs)) == text_snapshot


def test_context_curve_of_one_run(tmp_path: Path, text_snapshot: SnapshotAssertion) -> None:
    assert texts(context_curve.draw(four_way_runs(tmp_path)["pose"])) == text_snapshot


@pytest.mark.parametrize("which", ["models", "stated-row"])
def test_context_curves_of_models(tmp_path: Path, text_snapshot: SnapshotAssertion, which: str) -> None:
    if which == "models":
        models = [
            pretrained_curve(tmp_path / "plain", gain=0.2, name="someone/Plain"),
            pretrained_curve(tmp_path / "warned", gain=-0.1, of_model=CONTEXTUAL),
        ]
    else:
        models = [pretrained_curve(tmp_path / "stated", gain=0.15, row_len=12)]
    assert texts(context_curve.draw(models)) == text_snapshot


# Comparison


@pytest.mark.parametrize(
    "which",
    [["own:kl", "own:attention"], ["own", "failed", "row"], ["stranger", "words"], ["row:mask-one", "own:unmask-one"]],
    ids=lambda which: "-and-".join(which).replace(":", "-by-"),
)
def test_compare(varied: dict[str, Path], text_snapshot: SnapshotAssertion, which: list[str]) -> None:
    paths = [Path(str(varied[name.split(":")[0]]) + name[len(name.split(":")[0]) :]) for name in which]
    assert texts(compare.draw(paths)) == text_snapshot


# The hypothesis


@pytest.mark.parametrize("which", ["seeds-and-ceiling", "seeds", "one"])
def test_hypothesis(tmp_path: Path, text_snapshot: SnapshotAssertion, which: str) -> None:
    number = 1 if which == "one" else 2
    runs = [made_up_run(tmp_path / f"pose-seed{seed}", seed=seed) for seed in range(number)]
    if which == "seeds-and-ceiling":
        runs.append(made_up_run(tmp_path / "ceiling", row_len=FULL))
    for i, run in enumerate(runs):
        react_otherwise(made_up_measurement(run, 0.4 + 0.05 * i, num_documents=160), seed=i)
    assert texts(hypothesis.draw(runs)) == text_snapshot


# The causal twin

SUM = Setting("parity", False, "pose", max_sparsity=2, train_lengths=(3, 6), max_position=14, modulus=4)


def twin_cell(
    setting: Setting, k: int, inside: float, beyond: float, *, length: int = 12, **values: Any
) -> InsideAndBeyond:
    one = InsideAndBeyond(
        setting, length, k, (0, 1), (inside + 0.02, inside - 0.03), (beyond + 0.04, beyond - 0.05), (0, 1), (0, 1),
        Estimate(inside, inside - 0.06, inside + 0.07, 0.03), Estimate(beyond, beyond - 0.08, beyond + 0.09, 0.04),
        Estimate(beyond - inside, beyond - inside - 0.1, beyond - inside + 0.1, 0.05), None,
    )  # fmt: skip
    return replace(one, **values)


@pytest.mark.parametrize("lengths", [(12,), (12, 17)], ids=["length", "lengths"])
def test_inside_and_beyond(text_snapshot: SnapshotAssertion, lengths: tuple[int, ...]) -> None:
    ceiling = replace(SUM, num_chunks=1, train_lengths=(3, 12))
    cells = [
        twin_cell(setting, k, inside - shift, beyond - shift, length=length)
        for setting, shift in ((SUM, 0.0), (ceiling, 0.02))
        for length in lengths
        for k, inside, beyond in ((1, 0.97, 0.91), (2, 0.93, 0.58), (5, 0.45, 0.31))
    ]
    cells[2] = replace(cells[2], difference=None, learned=(), compared=(), inside=Estimate(0.45), beyond=Estimate(0.31))
    in_a_row = tuple(InARow(one.setting, one.k, one.inside) for one in cells[:3])
    twin = Twin(6, 40, tuple(cells), in_a_row, ())
    assert figure_text(inside_and_beyond.draw_inside_and_beyond(twin)) == text_snapshot


# Several lengths

SMALLER = {"name": "someone/Smaller", "weights_sha256": "e" * 64}


@pytest.mark.parametrize("which", ["models", "few-documents"])
def test_spectrum_by_length(text_snapshot: SnapshotAssertion, which: str) -> None:
    chosen = [0, 0, 0, 0, 1, 1, 1, 2, 4, 8]
    needs = {
        128: [0, 0, 0, 1, 2, 2, 2, 4, 8, 16], 256: [0, 0, 1, 2, 4, 4, 8, 8, 16, math.inf],
        512: [0, 1, 2, 4, 8, 8, 16, 16, math.inf, math.inf],
    }  # fmt: skip
    num = 300 if which == "models" else 40

    def measured(length: int, **changes: Any) -> Any:
        of_lines = {LineKey("attention", "real"): chosen, LineKey("nearest", "real"): needs[length]}
        of_lines[LineKey("random", "real")] = [2 * k + (length > 128) for k in chosen]
        of_lines |= {LineKey(line.selector, "null"): [k / 2 for k in of] for line, of in of_lines.items()}
        repeated = {line: of * (num // 10) for line, of in of_lines.items()}
        return planted_needs(length, repeated, ks=(1, 2, 4, 8, 16), document_W=np.arange(num), **changes)

    found = [measured(length) for length in needs]
    if which == "models":
        found += [measured(length, model=SMALLER) for length in (128, 256)]
    assert figure_text(spectrum_by_length.draw_found(spectra_by_length(found, selector="attention"))) == text_snapshot


# Synthetic tasks

PARITY = Setting("parity", False, "pose", max_sparsity=2, train_lengths=(4, 8), max_position=32)
VARIABLES = replace(PARITY, task="variables", scratchpad=True)


class Shares:
    """Gives another share at each call, with an interval that is not symmetric."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> Estimate:
        self.number += 1
        value = 0.2 + (self.number * 0.37) % 0.7
        return Estimate(value, value - 0.05 - self.number / 1e4, value + 0.1, 0.04)


def accuracies(
    setting: Setting, ks: tuple[int, ...], share: Shares, *, seeds: int, longest: int = 24
) -> list[Accuracy]:
    return [
        Accuracy(setting, length, k, share(), share(), tuple(share().mean for _ in range(seeds)))
        for k in ks for length in (6, 12, longest)
    ]  # fmt: skip


@pytest.fixture
def drawn_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Draws accuracies in place of those of tables, as ``synthetic.draw`` does."""

    def draw(made: list[Accuracy], learned: dict[Setting, tuple[int, int]]) -> str:
        (tmp_path / "run" / "synthetic").mkdir(parents=True)
        counts = {one.setting: (len(one.of_seeds),) * 2 for one in made} | learned
        monkeypatch.setattr(synthetic, "newest_finished", lambda run, kind: run / kind)
        monkeypatch.setattr(synthetic, "read_accuracies", lambda folders: made)
        monkeypatch.setattr(synthetic, "task_runs", lambda folders: [])
        monkeypatch.setattr(synthetic, "num_learned", lambda runs: counts)
        return texts(synthetic.draw([tmp_path / "run"]))

    return draw


def test_tasks(drawn_tasks: Any, text_snapshot: SnapshotAssertion) -> None:
    """Figures 1 to 3 and encodings: several seeds and one, learned or not, with a scratchpad and without."""
    share, steps = Shares(), replace(PARITY, scratchpad=True)
    settings = [
        (PARITY, (1, 2, 4), 3, 24), (replace(PARITY, max_sparsity=4), (1, 4, 8, 9), 1, 24),
        (replace(PARITY, num_chunks=1), (1, 2, 3), 2, 24),
        (replace(PARITY, num_chunks=1, position_embedding="none"), (1, 2), 2, 24),
        (replace(PARITY, num_chunks=1, rope_scaling="yarn", rope_factor=4.0), (2,), 2, 24),
        (replace(PARITY, positions="randpos"), (1, 2), 1, 24),
        (steps, (1, 2), 2, 24), (replace(steps, positions="predicted"), (1, 2), 2, 24),
        (replace(steps, positions="coupled"), (2,), 3, 24), (replace(steps, positions="shifted"), (1, 2), 1, 24),
        (VARIABLES, (1, 2), 2, 90), (replace(VARIABLES, scratchpad=False), (1, 2), 1, 90),
    ]  # fmt: skip
    made = [
        one for of, ks, seeds, longest in settings for one in accuracies(of, ks, share, seeds=seeds, longest=longest)
    ]
    assert drawn_tasks(made, {steps: (1, 2), PARITY: (0, 3), VARIABLES: (1, 2)}) == text_snapshot


def test_tasks_in_text(drawn_tasks: Any, text_snapshot: SnapshotAssertion) -> None:
    """Sums in text beside their twins without background; one K_train, one seed."""
    share = Shares()
    made = accuracies(replace(PARITY, background="text", modulus=4), (1, 3), share, seeds=1)
    made += accuracies(replace(PARITY, max_sparsity=3), (1, 3), share, seeds=1)
    assert drawn_tasks(made, {}) == text_snapshot


def test_tasks_with_a_scratchpad_alone(drawn_tasks: Any, text_snapshot: SnapshotAssertion) -> None:
    """Without answers at random there is no chance; with no length of training there is no theory."""
    share, steps = Shares(), replace(PARITY, scratchpad=True)
    made = accuracies(steps, (1, 2), share, seeds=2) + accuracies(
        replace(steps, positions="coupled"), (2,), share, seeds=2
    )
    made += [
        replace(one, length=one.length + 40)
        for one in accuracies(replace(PARITY, background="text"), (1,), share, seeds=1)
    ]
    assert drawn_tasks(made, {}) == text_snapshot
