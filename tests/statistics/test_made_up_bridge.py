"""The bridge and the accuracies of two seeds, from made-up tables: means over both, checks of what they were asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from made_up_sequences import SETTING, written_sequences

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.seeds import bounded
from olmo_sparsity.statistics.synthetic import cells_of_table, read_accuracies, read_bridge, setting_of

CELLS = [(8, 2), (16, 3)]
NUM = 70
Rows = list[dict[str, Any]]


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.mean


def rows_of_seed(seed: int, num: int = NUM) -> Rows:
    """Return rows in which all was found in short prompts, and the long gain of long prompts is above 0 in seed 1 alone."""
    asked, answered = np.random.default_rng(0), np.random.default_rng([seed, 1])
    rows = []
    for number, (length, k) in enumerate(CELLS):
        for w in range(num):
            planted = sorted(asked.choice(length, k, replace=False).tolist())
            for selector, share in (("kl", 0.8), ("random", 0.1)):
                short, gain = answered.uniform(1, 2), answered.normal(0.6, 0.2)
                gain -= 0.0 if length == 8 else 1.0 * seed
                rows.append(
                    {
                        "window_id": number * num + w, "length_tokens": length, "sparsity": k, "selector": selector,
                        "planted_positions": planted, "positions": planted,
                        "num_found": k if length == 8 and w else int(answered.integers(0, k + 1)),
                        "right": bool(answered.random() < (0.98 if length == 8 else 0.5 + 0.3 * seed)),
                        "loss_short_nats": short, "loss_long_nats": short - gain,
                        "loss_sparse_nats": short - share * gain - answered.normal(0, 0.05),
                        "loss_planted_nats": short - 0.9 * gain - answered.normal(0, 0.05),
                        "kl_short_nats": answered.gamma(2.0, 0.2), "kl_sparse_nats": answered.gamma(2.0, 0.2 * (1 - share)),
                    }
                )  # fmt: skip
    return rows


def folders_of(folder: Path, *seeds: Rows) -> list[Path]:
    return [
        written_sequences(folder / str(seed), "bridge", "parities", rows, seed=seed) for seed, rows in enumerate(seeds)
    ]


def test_the_bridge_is_of_the_sums_over_both_seeds(tmp_path: Path) -> None:
    points = read_bridge(folders_of(tmp_path, rows_of_seed(0), rows_of_seed(1)))
    frame = pd.DataFrame([*rows_of_seed(0), *rows_of_seed(1)])
    assert [(p.length, p.k, p.selector) for p in points] == [(*cell, s) for cell in CELLS for s in ("kl", "random")]
    for point in points:
        rows = frame[(frame.length_tokens == point.length) & (frame.selector == point.selector)]
        gains = {
            name: (rows.loss_short_nats - rows[f"loss_{name}_nats"]).sum() for name in ("long", "sparse", "planted")
        }
        assert value(point.right) == pytest.approx(rows.right.mean())
        assert value(point.found) == pytest.approx(rows.num_found.sum() / rows.sparsity.sum())
        assert value(point.found_all) == pytest.approx((rows.num_found == point.k).mean())
        recovered = 1 - rows.kl_sparse_nats.sum() / rows.kl_short_nats.sum()
        assert value(point.prediction_recovered) == pytest.approx(recovered)
        assert point.found_by_chance == point.k / point.length
        if point.length == 16:  # the seeds differ too much: the interval of the long gain holds 0
            assert gains["long"] > 0
            assert point.recovered_fraction is point.recovered_by_planted is None
        else:
            assert value(point.recovered_fraction) == pytest.approx(gains["sparse"] / gains["long"], rel=1e-5)
            assert value(point.recovered_by_planted) == pytest.approx(gains["planted"] / gains["long"], rel=1e-5)
        for share in (point.right, point.found, point.found_all):
            assert share.low is not None and share.high is not None and 0 <= share.low <= share.mean <= share.high <= 1
    assert points[0].found.high == 1.0 > points[0].found.mean


@pytest.mark.parametrize("num_seeds", [1, 3])
def test_what_all_50_sequences_show_is_no_certainty(tmp_path: Path, num_seeds: int) -> None:
    """Of 50 that are all right 0.93 are, at least; of seeds that agree, by Student's t."""
    row = rows_of_seed(0)[0]
    found = [{**row, "window_id": w, "num_found": row["sparsity"], "right": True} for w in range(50)]
    (point,) = read_bridge(folders_of(tmp_path, *[found] * num_seeds))
    right = [{**answered(w), "right": True, "tokens_right": True} for w in range(50)]
    (accuracy,) = read_accuracies(
        written_sequences(tmp_path / f"answers{s}", "synthetic", "answers", right, seed=s) for s in range(num_seeds)
    )
    wider = 1.0 if num_seeds == 1 else scipy.stats.t.ppf(0.975, 49) / scipy.stats.norm.ppf(0.975)
    lowest = 1 - wider * (1 - 0.025 ** (1 / 50))
    assert lowest == pytest.approx(0.927, abs=0.003)
    for share in (point.right, point.found, point.found_all, accuracy.right, accuracy.tokens_right):
        assert share.mean == 1.0 and share.bounds == pytest.approx((lowest, 1.0))


def test_the_interval_of_d_over_seeds_ends_at_1(tmp_path: Path) -> None:
    """In one seed the choice reproduces nearly all of the reaction, in the other hardly anything."""
    first = rows_of_seed(0)[0]

    def rows(whole: float, left: float) -> Rows:  # as many as an interval of D needs
        return [
            {**first, "window_id": w, "kl_short_nats": whole + w % 3 * whole / 50, "kl_sparse_nats": left}
            for w in range(320)
        ]

    (point,) = read_bridge(folders_of(tmp_path, rows(0.7, 0.02), rows(0.7, 0.55)))
    d = point.prediction_recovered
    assert d is not None and d.low is not None and d.low < -1 and d.high == 1.0 and 0.55 < d.mean < 0.65
    (without,) = read_bridge(folders_of(tmp_path / "none", rows(0.0, 0.0)))
    assert without.prediction_recovered is None


def spoilt(rows: Rows, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Rows:
    """Return the rows with the last one changed."""
    return [*rows[:-1], {**rows[-1], **change(rows[-1])}]


@pytest.mark.parametrize(
    "change",
    [
        lambda row: {"planted_positions": [*row["planted_positions"][:-1], (row["planted_positions"][-1] + 1) % 16]},
        lambda row: {"window_id": row["window_id"] + 1},
        lambda row: {"selector": "kl"},
        lambda row: {"length_tokens": 15},
        lambda row: {"sparsity": 2},
    ],
)
def test_seeds_that_were_asked_something_else_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    with pytest.raises(UserError, match="its seeds were measured on different sequences"):
        read_bridge(folders_of(tmp_path, rows_of_seed(0), rows_of_seed(0), spoilt(rows_of_seed(1), change)))


def test_a_seed_is_given_once(tmp_path: Path) -> None:
    folders = folders_of(tmp_path, rows_of_seed(0), rows_of_seed(1))
    with pytest.raises(UserError, match=r"1: the same setting and seed as .*1; give one of them"):
        read_bridge([*folders, folders[1]])


def test_fewer_rows_are_no_same_sequences(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="different sequences"):
        read_bridge(folders_of(tmp_path, rows_of_seed(0), rows_of_seed(1)[:-2]))


def answered(window_id: int) -> dict[str, Any]:
    """Return a row of ``answers``, but for whether it is right."""
    return {
        "window_id": window_id, "length_tokens": 8, "sparsity": 2, "response_ids": [3], "true_ids": [2],
        "response_positions": [1], "true_positions": [1], "positions_right": True,
    }  # fmt: skip


def test_accuracies_are_of_the_rows_of_their_cell(tmp_path: Path) -> None:
    rng, seeds = np.random.default_rng(4), []
    cells = [(16, 3), (8, 2), (8, 3)]  # prompts of each cell are answered better than those of the one before
    for seed in (0, 1):
        rows = [
            {
                **answered(number * NUM + w), "length_tokens": length, "sparsity": k,
                "tokens_right": bool(rng.random() < 0.4 + 0.2 * number),
                "right": bool(rng.random() < 0.2 + 0.2 * number + 0.1 * seed),
            }
            for number, (length, k) in enumerate(cells)
            for w in range(NUM)
        ]  # fmt: skip
        seeds.append(rows)
    folders = [
        written_sequences(tmp_path / str(s), "synthetic", "answers", rows, seed=s) for s, rows in enumerate(seeds)
    ]
    accuracies = read_accuracies(folders)
    assert [(one.length, one.k) for one in accuracies] == sorted(cells)
    for one in accuracies:
        frames = [pd.DataFrame(rows).query(f"length_tokens == {one.length} and sparsity == {one.k}") for rows in seeds]
        assert one.of_seeds == pytest.approx([frame.right.mean() for frame in frames])
        assert value(one.right) == pytest.approx(np.mean([frame.right.mean() for frame in frames]))
        assert value(one.tokens_right) == pytest.approx(np.mean([frame.tokens_right.mean() for frame in frames]))


def test_a_setting_is_all_but_the_seed(tmp_path: Path) -> None:
    setting = dataclasses.replace(SETTING, rope_scaling="yarn", rope_factor=2.5, locality=7, spread=2)
    manifest = {
        **dataclasses.asdict(setting), "kind": "bridge", "status": "complete", "run_id": "0", "run": "r",
        "training_seed": 3, "num_parts": 1, "num_windows": 2, "context": {"max_position": 99, "num_long_range": 16},
    }  # fmt: skip
    read = setting_of(manifest, where=tmp_path)
    assert read == dataclasses.replace(setting, max_position=99)
    assert (read.task, read.scratchpad, read.positions, read.max_sparsity, read.train_lengths) == (
        "parity", False, "pose", 3, (4, 9),
    )  # fmt: skip
    assert (read.hide_tokens, read.modulus, read.background, read.num_chunks) == (True, 4, "text", 3)


def test_a_share_does_not_leave_its_interval() -> None:
    assert bounded(Estimate(0.5, -0.2, 1.3, 0.4)) == Estimate(0.5, 0.0, 1.0, 0.4)
    assert bounded(Estimate(0.5, 0.2, 0.9, 0.2)) == Estimate(0.5, 0.2, 0.9, 0.2)
    assert bounded(Estimate(0.5, -2.5, 1.3, 0.4), least=-2, most=2) == Estimate(0.5, -2.0, 1.3, 0.4)
    assert bounded(Estimate(0.5)) == Estimate(0.5)


def test_cells_rise_and_those_inside_a_row_come_first() -> None:
    cells = [(9, 2, "beyond"), (9, 2, "inside"), (9, 1, "beyond"), (4, 3, "inside"), (9, 1, "inside"), (9, 2, "beyond")]
    table = {
        name: np.array([cell[i] for cell in cells], dtype=object)
        for i, name in enumerate(("length_tokens", "sparsity", "place"))
    }
    found = cells_of_table(table)
    assert [dataclasses.astuple(cell) for cell in found] == [
        (4, 3, "inside"), (9, 1, "inside"), (9, 1, "beyond"), (9, 2, "inside"), (9, 2, "beyond"),
    ]  # fmt: skip
    assert found[-1].rows(table).tolist() == [True, False, False, False, False, True]
    del table["place"]
    anywhere = cells_of_table(table)
    assert [dataclasses.astuple(cell) for cell in anywhere] == [(4, 3, None), (9, 1, None), (9, 2, None)]
    assert anywhere[1].rows(table).tolist() == [False, False, True, False, True, False]
