"""Accuracies inside the row and beyond it, from made-up answers: by loops over rows, and every verdict."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from statistics import mean, variance
from typing import NamedTuple, Optional

import numpy as np
import pytest
from drawn_documents import expected_share
from made_up_answers import LENGTH, NUM, ROW, made_up_answers
from scipy.stats import binomtest, norm
from scipy.stats import t as student_t

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.inside_and_beyond import (
    InsideAndBeyond,
    Twin,
    prediction_holds,
    read_inside_and_beyond,
    verdict,
)
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.synthetic import Setting, read_accuracies
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.reading import newest_finished, read_table

# By k; training has k up to 2. The third seed has not learned k = 2, the fourth neither.
POSE = [
    {1: (1.0, 1.0), 2: (0.95, 0.9), 4: (0.5, 0.3)},
    {1: (1.0, 0.95), 2: (0.925, 0.925), 4: (0.4, 0.3)},
    {1: (0.9, 0.95), 2: (0.6, 0.2), 4: (0.5, 0.25)},
    {1: (0.95, 0.9), 2: (0.25, 0.2), 4: (0.25, 0.25)},
]
CEILING = [{1: (1.0, 1.0), 2: (0.975, 0.95), 4: (0.4, 0.4)}, {1: (1.0, 1.0), 2: (1.0, 1.0), 4: (0.45, 0.5)}]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    folder = tmp_path_factory.mktemp("answers")
    return {
        "pose": [made_up_answers(folder / f"pose{s}", of, seed=s) for s, of in enumerate(POSE)],
        "ceiling": [
            made_up_answers(folder / f"ceiling{s}", of, seed=s, num_chunks=1, longest=LENGTH)
            for s, of in enumerate(CEILING)
        ],
        "no-pose": [made_up_answers(folder / "no-pose", POSE[3], num_chunks=1)],
    }


def read(*groups: list[Path]) -> Twin:
    return read_inside_and_beyond(of_run(run) for group in groups for run in group)


def of_run(run: Path) -> Path:
    """Return the folder of its answers."""
    return newest_finished(run, "synthetic")


def right_of(run: Path, *, k: int, place: str, length: int = LENGTH) -> list[bool]:
    rows = read_table(of_run(run), "answers").to_pylist()
    return [row["right"] for row in rows if (row["length_tokens"], row["sparsity"], row["place"]) == (length, k, place)]


class OverSequences(NamedTuple):
    """A number with the ends of its interval over sequences, and what each sequence adds to it."""

    ends: list[float]
    added: np.ndarray

    def minus(self, other: OverSequences) -> OverSequences:
        """Return the difference as Newcombe does."""
        (p, low, high), (q, other_low, other_high) = self.ends, other.ends
        correlation = np.corrcoef(self.added, other.added)[0, 1] if self.added.any() and other.added.any() else 0.0
        ends = [
            (away**2 - 2 * correlation * away * other_away + other_away**2) ** 0.5
            for away, other_away in ((p - low, other_high - q), (high - p, q - other_low))
        ]
        return OverSequences([p - q, p - q - ends[0], p - q + ends[1]], self.added - other.added)


def share_of(runs: list[Path], k: int, place: str) -> OverSequences:
    """Return the accuracy over all seeds with its exact interval."""
    right = np.mean([right_of(run, k=k, place=place) for run in runs], axis=0)
    if np.ptp(right) == 0:  # all are right, or all wrong: the rule of Clopper and Pearson
        ends = binomtest(round(right.sum()), len(right)).proportion_ci(0.95, method="exact")
        return OverSequences([right[0], ends.low, ends.high], np.zeros(len(right)))
    ends = expected_share(right, np.ones(len(right)), doc_ids=list(map(str, range(len(right)))))
    return OverSequences(ends, right - right.mean())


def beyond_minus_inside(runs: list[Path], k: int) -> OverSequences:
    return share_of(runs, k, "beyond").minus(share_of(runs, k, "inside"))


def accuracies(runs: list[Path], k: int, place: str) -> list[float]:
    return [mean(map(float, right_of(run, k=k, place=place))) for run in runs]


def differences(runs: list[Path], k: int) -> list[float]:
    return [p - q for p, q in zip(accuracies(runs, k, "beyond"), accuracies(runs, k, "inside"), strict=True)]


def assert_estimate(
    estimate: Optional[Estimate], over_sequences: OverSequences, *models: list[float], bound: float = 1.0
) -> None:
    """Compare with the definition: each side of the interval over sequences has the variance of a normal interval as wide.

    Each model with several seeds adds that between its seeds.
    """
    assert estimate is not None and estimate.low is not None and estimate.high is not None
    middle, *ends = over_sequences.ends
    of_seeds = [(variance(seeds) / len(seeds), len(seeds) - 1) for seeds in models if len(seeds) > 1]
    for sign, end, found in ((-1, ends[0], estimate.low), (1, ends[1], estimate.high)):
        parts = [((end - middle) ** 2 / norm.ppf(0.975) ** 2, NUM - 1), *of_seeds]
        total = sum(part for part, _ in parts)
        degrees = total**2 / sum(part**2 / freedom for part, freedom in parts) if total else 1
        away = student_t.ppf(0.975, degrees) * total**0.5 if of_seeds else abs(end - middle)
        assert found == pytest.approx(np.clip(middle + sign * away, -bound, bound), abs=1e-9)
    assert estimate.mean == pytest.approx(middle, abs=1e-12)


def test_accuracies_and_differences_are_those_of_loops_over_the_rows(runs: dict[str, list[Path]]) -> None:
    twin = read(runs["pose"], runs["ceiling"])
    assert (twin.row_len, twin.num_sequences, len(twin.cells)) == (ROW, NUM, 6)
    learned = {1: (0, 1, 2, 3), 2: (0, 1), 4: ()}
    for cell in twin.cells[:3]:
        assert (cell.length, cell.seeds) == (LENGTH, (0, 1, 2, 3))
        for place, of_seeds, over_seeds in (
            ("inside", cell.inside_of_seeds, cell.inside),
            ("beyond", cell.beyond_of_seeds, cell.beyond),
        ):
            shares = [mean(map(float, right_of(run, k=cell.k, place=place))) for run in runs["pose"]]
            assert of_seeds == pytest.approx(shares, abs=1e-12)
            assert over_seeds.mean == pytest.approx(mean(shares), abs=1e-12)
        assert cell.learned == learned[cell.k]
        assert cell.compared == ((0, 1, 2, 3) if cell.k == 4 else learned[cell.k])
        compared = [runs["pose"][seed] for seed in cell.compared]
        assert_estimate(cell.difference, beyond_minus_inside(compared, cell.k), differences(compared, cell.k))
    larger, trained = (share_of(runs["pose"], k, "beyond") for k in (4, 2))
    of_seeds = zip(*(accuracies(runs["pose"], k, "beyond") for k in (4, 2)), strict=True)
    assert_estimate(twin.cells[2].beyond_minus_trained, larger.minus(trained), [p - q for p, q in of_seeds])
    assert [cell.beyond_minus_trained for cell in twin.cells[:2]] == [None, None]


def test_without_the_largest_k_of_training_there_is_nothing_to_compare_larger_ones_with(tmp_path: Path) -> None:
    shares = [{1: (1.0, 0.0), 4: (0.99, 0.01)}, {1: (0.95, 0.05), 4: (0.6, 0.9)}]
    run_of = [made_up_answers(tmp_path / f"{s}", of, seed=s) for s, of in enumerate(shares)]
    twin = read(run_of)
    one, four = twin.cells
    assert (one.k, one.is_trained, four.k, four.is_trained) == (1, True, 4, False)
    assert four.beyond_minus_trained is None and four.learned == (0,) and four.compared == (0, 1)
    shown = [one.inside, one.beyond, four.inside, four.beyond, *(of.right for of in twin.in_a_row)]
    for share in shown:
        assert share.low is not None and share.high is not None and 0 <= share.low <= share.mean <= share.high <= 1
    assert one.inside.high == 1 and one.beyond.low == 0 and four.inside.high == 1
    assert one.difference is not None and (one.difference.mean, one.difference.low) == (pytest.approx(-0.95), -1)


def test_accuracies_in_one_row(runs: dict[str, list[Path]]) -> None:
    found = {(one.setting.num_chunks, one.k): one.right.mean for one in read(runs["pose"], runs["ceiling"]).in_a_row}
    for (num_chunks, k), share in found.items():
        of = runs["pose" if num_chunks == 2 else "ceiling"]
        assert share == pytest.approx(mean(mean(right_of(run, k=k, place="inside", length=ROW)) for run in of))
    assert len(found) == 6


def test_shorter_prompts_are_not_in_one_row(tmp_path: Path) -> None:
    run = made_up_answers(tmp_path / "run", POSE[0], lengths=(ROW - 2, ROW, LENGTH))
    assert [(one.k, one.right.mean) for one in read([run]).in_a_row] == [
        (k, pytest.approx(mean(right_of(run, k=k, place="inside", length=ROW)))) for k in POSE[0]
    ]


def test_the_reference_has_the_longest_rows(runs: dict[str, list[Path]]) -> None:
    twin = read(runs["no-pose"], runs["pose"], runs["ceiling"])
    assert {one.reference.train_lengths[1] for one in twin.minus_reference} == {LENGTH}
    of_pose = {one.k: one for one in twin.minus_reference if one.setting.num_chunks == 2}
    learned = {1: (0, 1, 2, 3), 2: (0, 1), 4: (0, 1, 2, 3)}
    for k, one in of_pose.items():
        pose = [runs["pose"][seed] for seed in learned[k]]
        both = (pose, runs["ceiling"])
        of_pose_k, of_ceiling = (share_of(of, k, "beyond") for of in both)
        assert_estimate(one.beyond, of_pose_k.minus(of_ceiling), *(accuracies(of, k, "beyond") for of in both))
        of_pose_k, of_ceiling = (beyond_minus_inside(of, k) for of in both)
        assert_estimate(one.difference, of_pose_k.minus(of_ceiling), *(differences(of, k) for of in both), bound=2.0)
    # The only seed without PoSE has not learned k = 2, so there is nothing to compare.
    alone = {one.k: one for one in twin.minus_reference if one.setting.num_chunks == 1}
    assert alone[2].beyond is None and alone[2].difference is None and alone[1].beyond is not None
    assert not read(runs["pose"]).minus_reference and not read(runs["pose"], runs["no-pose"]).minus_reference


def test_a_difference_of_differences_reaches_beyond_1(tmp_path: Path) -> None:
    """One model loses nearly all that it has learned, where the other gains."""
    pose = [made_up_answers(tmp_path / f"pose{s}", {1: (1.0, 0.0)}, seed=s) for s in range(2)]
    shares = ((0.9, 1.0), (0.95, 1.0))
    ceiling = [
        made_up_answers(tmp_path / f"ceiling{s}", {1: of}, seed=s, num_chunks=1, longest=LENGTH)
        for s, of in enumerate(shares)
    ]
    (one,) = read(pose, ceiling).minus_reference
    of_pose, of_ceiling = (beyond_minus_inside(of, 1) for of in (pose, ceiling))
    both = (differences(of, 1) for of in (pose, ceiling))
    assert_estimate(one.difference, of_pose.minus(of_ceiling), *both, bound=2.0)
    assert one.difference is not None and one.difference.mean == pytest.approx(-1.075)


def test_accuracies_and_differences_of_sequences_that_are_all_right_have_a_length(tmp_path: Path) -> None:
    """Of 80 that are all right 0.955 are, at least, inside and beyond: the accuracies differ by 0.045 at most."""
    pose = made_up_answers(tmp_path / "pose", {1: (1.0, 1.0)})
    ceiling = made_up_answers(tmp_path / "ceiling", {1: (1.0, 1.0)}, num_chunks=1, longest=LENGTH)
    twin = read([pose], [ceiling])
    lowest = 0.025 ** (1 / NUM)
    far = 1 - lowest
    for cell in twin.cells:
        assert cell.inside.bounds == cell.beyond.bounds == pytest.approx((lowest, 1.0))
        assert cell.difference is not None and cell.difference.bounds == pytest.approx((-far, far))
    assert [one.right.bounds for one in twin.in_a_row] == [pytest.approx((lowest, 1.0))] * 2
    (one,) = twin.minus_reference
    assert one.beyond is not None and one.beyond.bounds == pytest.approx((-far, far))
    assert one.difference is not None and one.difference.bounds == pytest.approx((-(2**0.5) * far, 2**0.5 * far))


def test_with_fewer_than_two_seeds_that_have_learned_there_is_no_difference(tmp_path: Path) -> None:
    one_of_two = [made_up_answers(tmp_path / f"{seed}", POSE[seed], seed=seed) for seed in (1, 2)]
    cells = {cell.k: cell for cell in read(one_of_two).cells}
    assert cells[2].learned == (1,) and cells[2].difference is None and cells[1].difference is not None
    only = {cell.k: cell for cell in read(one_of_two[:1]).cells}
    assert only[2].difference is not None


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.04, 0.04, "equal"),
        (-0.04, -0.01, "equal"),
        (-0.05, 0.01, "not shown"),
        (-0.2, -0.06, "much lower"),
        (-0.2, -0.05, "lower"),
        (-0.2, 0.0, "not shown"),
        (0.01, 0.05, "higher"),
        (0.0, 0.05, "not shown"),
    ],
)
def test_the_verdict_says_no_more_than_the_interval(low: float, high: float, expected: str) -> None:
    assert verdict(Estimate((low + high) / 2, low, high, 0.01)) == expected


def test_there_is_no_verdict_without_an_interval() -> None:
    assert verdict(None) == "not learned" and verdict(Estimate(0.0)) == "no interval"


INTERVALS = {
    "equal": Estimate(0.0, -0.01, 0.01, 0.005),
    "much lower": Estimate(-0.5, -0.6, -0.4, 0.05),
    "lower": Estimate(-0.05, -0.09, -0.01, 0.02),
    "higher": Estimate(0.05, 0.01, 0.09, 0.02),
    "not shown": Estimate(0.0, -0.1, 0.1, 0.05),
    "not learned": None,
}


@pytest.mark.parametrize(("trained", "larger"), product(INTERVALS, INTERVALS))
def test_the_prediction_needs_every_k_and_one_refutes_it(trained: str, larger: str) -> None:
    setting = Setting("parity", False, "pose", max_sparsity=2, train_lengths=(3, ROW), max_position=14, modulus=4)

    def cell(k: int, difference: Optional[Estimate], minus_trained: Optional[Estimate]) -> InsideAndBeyond:
        share = Estimate(0.5)
        return InsideAndBeyond(
            setting, LENGTH, k, (0,), (0.5,), (0.5,), (0,), (0,), share, share, difference, minus_trained
        )

    cells = [cell(1, INTERVALS["equal"], None), cell(2, INTERVALS[trained], None), cell(4, None, INTERVALS[larger])]
    refuted = trained == "much lower" or (larger == "equal" and trained != "not learned")
    shown = trained == "equal" and larger == "much lower"
    assert prediction_holds(cells) == (False if refuted else True if shown else None)
    assert prediction_holds(cells[:2]) == (False if trained == "much lower" else None)


def test_what_cannot_be_compared_is_one_line(tmp_path: Path, runs: dict[str, list[Path]]) -> None:
    anywhere = made_up_answers(tmp_path / "anywhere", POSE[0], seed=7, test_row_len=None)
    other_row = made_up_answers(tmp_path / "other-row", POSE[0], seed=8, test_row_len=5)
    asked_else = made_up_answers(tmp_path / "else", POSE[0], seed=9, truth_seed=1)
    in_one_row = made_up_answers(tmp_path / "in-one-row", POSE[0], seed=7, num_chunks=1, lengths=(ROW,))
    other_setting = made_up_answers(tmp_path / "other-setting", POSE[0], num_chunks=1, truth_seed=1)
    manifest = read_json(of_run(other_setting) / "manifest.json")
    write_manifest(of_run(other_setting), {**manifest, "positions": "randpos"})
    also_anywhere = made_up_answers(tmp_path / "also-anywhere", POSE[0], seed=10, test_row_len=None)
    also_in_one_row = made_up_answers(tmp_path / "also-in-one-row", POSE[0], seed=10, num_chunks=1, lengths=(ROW,))
    first = runs["pose"][:1]
    different = "its seeds were measured on different sequences; measure them with the same "
    for of, run, message in (
        (
            first,
            anywhere,
            f"{of_run(anywhere)}: the planted tokens of these sequences lie anywhere, not inside a row or ",
        ),
        (first, other_row, f"{of_run(other_row)}: evaluated with another synthetic.test_row_len than {of_run(*first)}"),
        ([anywhere], also_anywhere, f"{of_run(anywhere)}: the planted tokens"),  # the first is named
        ([in_one_row], also_in_one_row, f"{of_run(in_one_row)}: no prompt is longer than the row of {ROW} tokens"),
        ([], in_one_row, f"{of_run(in_one_row)}: no prompt is longer than the row of {ROW} tokens"),
        (first, asked_else, f"parity, pose: {different}"),
        (first, other_setting, f"parity, randpos: {different}"),
    ):
        with pytest.raises(UserError) as error:
            read(of, [run])
        assert str(error.value).startswith(message) and "\n" not in str(error.value)
    with pytest.raises(UserError, match="measured on different sequences"):  # nor are their seeds put together
        read_accuracies([run / "synthetic" / "made-up" for run in (*runs["pose"], asked_else)])
    with pytest.raises(UserError, match=r"the same training\.seed"):
        read(runs["pose"][:1], runs["pose"][:1])
