"""What commands print of several invented measurements: ``list``, ``compare``, ``hypothesis`` and ``synth summary``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest
from made_up import MODEL
from made_up_answers import Accuracies, made_up_answers
from made_up_runs import FULL, made_up_run, state_row
from planted_answers import ROWS, answers
from planted_measurements import Planted, write
from printed_text import Printed, json_lines
from syrupy.assertion import SnapshotAssertion

from olmo_sparsity.statistics.length_generalization import read_generalization
from olmo_sparsity.statistics.synthetic import Setting, read_accuracies
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.wording.synthetic_tasks import accuracy_lines, encoding_words, positions_words, setting_words


@pytest.mark.parametrize("line", ["list others", "list nowhere", "list seeds-of-none"])
def test_list(line: str, printed: Printed, siblings: None, work: Path, snapshot: SnapshotAssertion) -> None:
    (work / "seeds-of-none").mkdir(exist_ok=True)
    assert printed(line) == snapshot


def test_list_as_json(printed: Printed, siblings: None, snapshot: SnapshotAssertion) -> None:
    assert printed("list others --json", as_json=True) == snapshot


@pytest.mark.parametrize(
    "line",
    [
        "compare runs/run others/weaker/influence/measured-a",
        "compare runs/run:kl others/weaker/influence/measured-a:unmask-one --every",
        "compare runs/stated runs/words runs/gap",
        "compare runs/few runs/few:random runs/failed",
        "compare runs/run others/weaker",
        "summary --run others/weaker --tables measured-a",
        "summary --run others/weaker --tables a",
        "summary --run runs/few --tables others/weaker/influence/others-a",
        "summary --tables others/begun/influence/half",
        "summary --run others/begun",
        "summary --run others/broken",
    ],
)
def test_compare(line: str, printed: Printed, siblings: None, snapshot: SnapshotAssertion) -> None:
    text = printed(line)
    assert (text if line.startswith("compare") else "\n".join(text.splitlines()[:6])) == snapshot


def test_compare_as_json(printed: Printed, siblings: None, snapshot: SnapshotAssertion) -> None:
    assert printed("compare runs/stated runs/gap --json", as_json=True) == snapshot


@pytest.fixture(scope="module")
def hypotheses(work: Path) -> None:
    """Seeds of a model, a ceiling, a model whose row is stated, and one of other windows."""
    context = {"local_len": 8, "full_len": 24, "num_long_range": 16, "train_len": 8, "max_position": 32, "pose_method": "pose",
               "num_chunks": 2, "pose_contents": "contiguous"}  # fmt: skip
    of = Planted(
        201,
        {"kl": 0.3, "attention": 0.2, "nearest": 0.1, "random": 0.05},
        [1, 2, 4],
        context,
        long_gain=0.4,
        overlap=0.2,
        seed=8,
    )
    rows = {"pose-seed1": 8, "pose-seed2": 8, "pose-seed3": 8, "ceiling": FULL, "elsewhere": 8}
    for number, (name, row_len) in enumerate(rows.items()):
        run = made_up_run(work / "hyp" / name, seed=number + 1, row_len=row_len)
        manifest = {
            "run": name,
            "checkpoint": {"step": 90, "model_sha256": name},
            "windows_sha256": "other" if name == "elsewhere" else "w",
        }
        changes = {"reactions": number, "long_gain": 0.4 + 0.05 * number, "manifest": manifest}
        changes |= {"context": {**context, "train_len": row_len}, "seed": 9 if name == "elsewhere" else 8}
        changes |= {"num_documents": 40} if name == "elsewhere" else {}
        write(run / "influence" / "measured", replace(of, **changes))
    made_up_run(work / "hyp" / "unmeasured")
    stated = {**context, "train_len": None}
    folder = write(work / "hyp" / "model" / "influence" / "measured", replace(
        of, context=stated, manifest={"model": MODEL, "run": "model"}, reactions=7
    ))  # fmt: skip
    write_manifest(work / "hyp" / "model", {"kind": "pretrained", "status": "complete"})
    state_row(folder, 8)


@pytest.mark.parametrize(
    "line",
    [
        "--run hyp/pose-seed1 --run hyp/pose-seed2 --run hyp/pose-seed3 --run hyp/ceiling --every",
        "--run hyp/pose-seed1",
        "--run hyp/pose-seed2 --run hyp/ceiling --selector attention",
        "--run hyp/pose-seed2 --selector unmask-one",
        "--run hyp/pose-seed2 --selector greedy-kl",
        "--run hyp/ceiling",
        "--run hyp/elsewhere",
        "--run hyp/pose-seed1 --run hyp/elsewhere",
        "--run hyp/model --run hyp/ceiling",
        "--run hyp/unmeasured",
        "--run runs/few",
    ],
)
def test_hypothesis(line: str, printed: Printed, hypotheses: None, snapshot: SnapshotAssertion) -> None:
    assert printed(f"hypothesis {line}") == snapshot


def test_hypothesis_as_json(printed: Printed, hypotheses: None, snapshot: SnapshotAssertion) -> None:
    assert printed("hypothesis --run hyp/pose-seed1 --run hyp/ceiling --json", as_json=True) == snapshot


# Accuracies (inside the row, beyond it) by k; training has k up to 2.
HOLDS: Accuracies = {1: (1.0, 1.0), 2: (0.99, 0.98), 4: (0.5, 0.45)}
FAILS: Accuracies = {1: (1.0, 0.96), 2: (0.95, 0.5), 4: (0.55, 0.25)}
UNLEARNED: Accuracies = {1: (1.0, 0.9), 2: (0.5, 0.45), 4: (0.3, 0.25)}


@pytest.fixture(scope="module")
def twins(work: Path) -> None:
    for seed in (0, 1):
        made_up_answers(work / "twins" / f"pose{seed}", FAILS, seed=seed, num=240)
        made_up_answers(work / "twins" / f"good{seed}", HOLDS, seed=seed, num=240)
        made_up_answers(work / "twins" / f"ceiling{seed}", HOLDS, seed=seed, num_chunks=1, longest=12, num=240)
    made_up_answers(work / "twins" / "no-pose", UNLEARNED, num_chunks=1, num=240)


@pytest.mark.parametrize(
    "names", ["pose0 pose1 ceiling0 ceiling1 no-pose", "good0 good1", "good0 ceiling0 ceiling1", "no-pose"]
)
def test_synth_summary_of_twins(names: str, printed: Printed, twins: None, snapshot: SnapshotAssertion) -> None:
    assert printed(f"synth summary {' '.join(f'--run twins/{name}' for name in names.split())}") == snapshot


PARITY = Setting("parity", False, "pose", 2, (4, 8), 128)
STEPS = Setting("parity", True, "predicted", 3, (4, 8), 128)
# (setting, longest right length by k; None: none)
Evaluated = tuple[Setting, dict[int, Optional[int]]]
GENERALIZATIONS: dict[str, list[Evaluated]] = {
    "sparsity": [(PARITY, {1: 80, 2: 80, 3: 16, 4: 8}),
                 (dataclasses.replace(PARITY, modulus=3, background="text"), {1: 16, 2: 16, 3: 16})],
    "methods": [(STEPS, {3: 80}), (dataclasses.replace(STEPS, positions="shifted"), {3: 16}),
                (dataclasses.replace(STEPS, positions="pose"), {3: 8}),
                (dataclasses.replace(STEPS, positions="coupled", scratchpad=True), {3: None})],
    "unlearned": [(PARITY, {2: None, 3: None}), (STEPS, {3: 8}),
                  (dataclasses.replace(STEPS, positions="shifted"), {3: 80}),
                  (dataclasses.replace(STEPS, positions="pose"), {3: 80})],
    "encodings": [(dataclasses.replace(PARITY, position_embedding="none"), {2: 80}),
                  (dataclasses.replace(PARITY, positions="randpos"), {2: None}),
                  (dataclasses.replace(PARITY, rope_scaling="yarn", rope_factor=2.5), {2: 16}),
                  (dataclasses.replace(PARITY, rope_scaling="linear", num_chunks=1), {2: 8})],
    "planted": [(dataclasses.replace(PARITY, locality=4, spread=2), {2: 80}),
                (dataclasses.replace(PARITY, locality=8), {2: 16})],
}  # fmt: skip


WITHOUT_INTERVALS = ("unlearned", "planted")  # evaluated on too few sequences, of which the second seed misses one


def right_up_to(by_k: dict[int, Optional[int]], most: int) -> Callable[[int, int, Optional[str]], int]:
    def right(length: int, k: int, place: Optional[str]) -> int:
        return most if length <= (by_k[k] or 0) else 3 + k

    return right


def write_evaluations(work: Path, name: str) -> list[Path]:
    folders = []
    is_few = name in WITHOUT_INTERVALS
    num_rows = ROWS if is_few else 4 * ROWS
    for number, (setting, by_k) in enumerate(GENERALIZATIONS[name]):
        for seed in (0, 1):
            folders.append(
                answers(
                    work / "synth" / name / f"run{number}-seed{seed}" / "synthetic" / "tables",
                    right_up_to(by_k, num_rows - seed * is_few), setting=setting, ks=by_k, num_rows=num_rows,
                    training_seed=seed, training_seconds=61.0 + 100 * number, validation_loss_nats=0.0123 * (number + 1),
                    run=f"run{number}-seed{seed}", ended_by="stop_loss" if seed else None,
                )
            )  # fmt: skip
    return folders


@pytest.mark.parametrize("name", GENERALIZATIONS)
def test_synth_summary(name: str, work: Path, printed: Printed, snapshot: SnapshotAssertion) -> None:
    folders = write_evaluations(work, name)
    line = f"synth summary {' '.join(f'--run synth/{name}/{folder.parents[1].name}' for folder in folders)}"
    assert printed(line) == snapshot
    if name == "sparsity":
        assert printed(f"{line} --md") == snapshot
        assert printed(f"{line} --json", as_json=True) == snapshot
    words: list[Any] = accuracy_lines(read_accuracies(folders))
    settings = {setting.setting: None for setting in read_generalization(folders).furthest}
    words += [[setting_words(one), encoding_words(one), positions_words(one)] for one in settings]
    assert json_lines(words) == snapshot
