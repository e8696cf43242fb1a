"""Whether sparsity predicts the gain: planted answers, and the thirds and means by plain loops."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.hypothesis import (
    MAIN,
    THIRDS,
    Analysis,
    Model,
    SparsityAndGain,
    sparsity_and_gain,
    thirds_of,
)
from olmo_sparsity.statistics.several.reactions import Choice, Reactions
from olmo_sparsity.statistics.single.measurement import Lengths

LENGTHS = Lengths(local_len=8, full_len=16, num_long_range=8, train_len=8)
NUM_DOCUMENTS, PER_DOCUMENT = 300, 8
NUM_TARGETS = NUM_DOCUMENTS * PER_DOCUMENT
UNMATCHED = Analysis("not matched", matched=())
SHARED = np.random.default_rng(77)
# What all models share of each target: how sparse, how large, how far, under both contexts.
TRUE_SPARSITY_CW = SHARED.uniform(0, 1, (2, NUM_TARGETS))
TRUE_SIZE_CW = SHARED.gamma(2.0, 0.1, (2, NUM_TARGETS))
DISTANCE_CW = SHARED.integers(9, 17, (2, NUM_TARGETS))
ENTROPY_W = SHARED.uniform(1, 6, NUM_TARGETS)
WINDOWS = pd.DataFrame(
    {
        "window_id": np.arange(NUM_TARGETS),
        "doc_id": [f"{w // PER_DOCUMENT:016x}" for w in range(NUM_TARGETS)],
        "weight": np.where(np.arange(NUM_TARGETS) % 16 < 8, 1.0, 1.5),
    }
)


def a_run(seed: int, *, gain_CW: np.ndarray, noise: float = 0.3) -> Reactions:
    """Return the reactions of a run: the shared truth and noise of its own, which is in its gain, too."""
    rng = np.random.default_rng(seed)
    own_CW = rng.normal(0, 0.1, (2, NUM_TARGETS))
    best_CW = TRUE_SPARSITY_CW + own_CW
    return Reactions(
        WINDOWS,
        TRUE_SIZE_CW * np.exp(rng.normal(0, 0.1, (2, NUM_TARGETS))),
        gain_CW + own_CW + rng.normal(0, noise, (2, NUM_TARGETS)),
        ENTROPY_W,
        {name: Choice(best_CW, DISTANCE_CW) for name in ("kl", "random")},
    )


def a_model(label: str, seeds: range, *, gain_CW: np.ndarray, noise: float = 0.3) -> Model:
    reactions = tuple(a_run(seed, gain_CW=gain_CW, noise=noise) for seed in seeds)
    return Model(label, tuple(Path(f"{label}{seed}") for seed in seeds), reactions, LENGTHS)


def slope(real: float, null: float) -> np.ndarray:
    """Return gains that rise with sparsity."""
    return np.array([[real], [null]]) * (TRUE_SPARSITY_CW - 0.5)


def mean_by_loop(
    sparsity: Model,
    gain: Model,
    third_of: dict[tuple[int, int], np.ndarray],
    *,
    context: int,
    third: int,
    name: str = "gain_CW",
) -> float:
    """Return the mean gain, or reaction, of a third over pairs of different runs, one target at a time."""
    total = weight = 0.0
    for a in range(len(sparsity.runs)):
        for w in range(NUM_TARGETS):
            if third_of[a, context][w] != third:
                continue
            others = [b for b in range(len(gain.runs)) if gain is not sparsity or b != a]
            value = sum(getattr(gain.reactions[b], name)[context, w] for b in others) / len(others)
            total += WINDOWS["weight"][w] * value
            weight += WINDOWS["weight"][w]
    return total / weight


def plain_thirds(reactions: Reactions, context: int) -> np.ndarray:
    """Return the thirds of all targets, not matched, by counting the weight of the sparser and denser ones."""
    sparsity_W, weight_W = reactions.choices["kl"].best_CW[context], WINDOWS["weight"].to_numpy()
    below_W = np.array([weight_W[sparsity_W < value].sum() for value in sparsity_W])
    return np.array(((below_W + weight_W / 2) / weight_W.sum() * 3).astype(int))


def of_truth(gain_W: np.ndarray, reactions: Reactions) -> np.ndarray:
    """Return the mean of a gain without noise in the thirds of a run, not matched."""
    thirds_W, weight_W = plain_thirds(reactions, 0), WINDOWS["weight"].to_numpy()
    return np.array([np.average(gain_W[thirds_W == t], weights=weight_W[thirds_W == t]) for t in range(3)])


Numbers = dict[tuple[str, ...], np.ndarray]  # of every resample, and first of all documents


def numbers_by_hand(
    roles: tuple[Model, Model, Model],
    third_of: dict[tuple[int, int], np.ndarray],
    counts_XU: np.ndarray,
    *,
    without: tuple[Optional[Model], int] = (None, 0),
) -> Numbers:
    """Return all numbers of models that rank, gain, and are the ceiling, where each document counts so many times."""

    def total(values_W: np.ndarray) -> np.ndarray:
        return np.asarray(counts_XU @ values_W.reshape(NUM_DOCUMENTS, PER_DOCUMENT).sum(axis=1))

    seeds_of = [[s for s in range(len(m.runs)) if m is not without[0] or s != without[1]] for m in roles]
    weight_W = WINDOWS["weight"].to_numpy()
    found: Numbers = {}
    for c, context in enumerate(("real", "null")):
        for t, third in enumerate(THIRDS):
            below: Any = 0.0
            above: dict[str, Any] = dict.fromkeys(("gain", "reaction", "ceiling", "sparsity"), 0.0)
            for a in seeds_of[0]:
                in_third_W = weight_W * (third_of[a, c] == t)

                def others(role: int, name: str, a: int = a, c: int = c) -> np.ndarray:
                    own = a if roles[role] is roles[0] else None
                    runs = [s for s in seeds_of[role] if s != own] or seeds_of[role]
                    return np.mean([getattr(roles[role].reactions[s], name)[c] for s in runs], axis=0)

                below = below + total(in_third_W)
                for name, values_W in (
                    ("gain", others(1, "gain_CW")),
                    ("reaction", others(1, "reaction_CW")),
                    ("ceiling", others(2, "gain_CW")),
                    ("sparsity", roles[0].reactions[a].choices["kl"].best_CW[c]),
                ):
                    above[name] = above[name] + total(in_third_W * values_W)
            found |= {(name, context, third): of / below for name, of in above.items()}
    for third in THIRDS:
        found["share", "real", third] = found["gain", "real", third] / found["ceiling", "real", third]
    for name, context in (("gain", "real"), ("gain", "null"), ("ceiling", "real"), ("share", "real")):
        found[name, context] = found[name, context, "sparse"] - found[name, context, "dense"]
    return found | {("gain", "real minus null"): found["gain", "real"] - found["gain", "null"]}


def shown_numbers(found: SparsityAndGain) -> dict[tuple[str, ...], Optional[Estimate]]:
    of = found.contrasts
    shown: dict[tuple[str, ...], Optional[Estimate]] = {
        ("gain", "real"): of.gain_nats, ("gain", "null"): of.null_gain_nats, ("ceiling", "real"): of.ceiling_gain_nats,
        ("share", "real"): of.share_of_ceiling, ("gain", "real minus null"): of.real_minus_null_nats,
    }  # fmt: skip
    for third in found.thirds:
        shown |= {
            ("sparsity", "real", third.third): third.sparsity, ("reaction", "real", third.third): third.reaction_nats,
            ("gain", "real", third.third): third.gain_nats, ("gain", "null", third.third): third.null_gain_nats,
            ("ceiling", "real", third.third): third.ceiling_gain_nats,
            ("share", "real", third.third): third.share_of_ceiling,
        }  # fmt: skip
    return shown


@pytest.mark.parametrize(
    ("ranks", "gains", "is_ceiling", "num_seeds"),
    [
        (0, 1, 2, (3, 4, 2)),
        (0, 0, 1, (3, 4)),
        (0, 1, 0, (4, 2)),
        (0, 1, 1, (1, 3)),
        (0, 0, 1, (1, 3)),
        (0, 1, 0, (1, 2)),
    ],
    ids=[
        "three models",
        "its own gain",
        "by the ceiling's",
        "a ceiling that gains",
        "one run",
        "one run of the ceiling",
    ],
)
def test_every_number_and_interval_by_definition(
    ranks: int, gains: int, is_ceiling: int, num_seeds: tuple[int, ...]
) -> None:
    """Documents are drawn one resample at a time, and seeds are left out one after the other, in every role."""
    models = [
        a_model(f"{i}", range(40 + 10 * i, 40 + 10 * i + num), gain_CW=0.5 + i + slope(0.4 + 0.2 * i, -0.3), noise=3.0)
        for i, num in enumerate(num_seeds)
    ]
    roles = models[ranks], models[gains], models[is_ceiling]
    result = sparsity_and_gain(*roles, UNMATCHED)
    draws = np.random.default_rng(0).integers(0, NUM_DOCUMENTS, (2000, NUM_DOCUMENTS))
    counts_XU = np.stack([np.bincount(drawn, minlength=NUM_DOCUMENTS) for drawn in draws])
    third_of = {(a, c): plain_thirds(run, c) for a, run in enumerate(roles[0].reactions) for c in (0, 1)}
    once = np.ones((1, NUM_DOCUMENTS))
    everything, resampled = (numbers_by_hand(roles, third_of, of) for of in (once, counts_XU))
    several = [model for i, model in enumerate(models) if num_seeds[i] >= 3]
    left_out = [
        [numbers_by_hand(roles, third_of, once, without=(model, s)) for s in range(len(model.runs))]
        for model in several
    ]
    for key, found in shown_numbers(result).items():
        parts = [(np.var(resampled[key], ddof=1), NUM_DOCUMENTS - 1)]
        for without in left_out:
            values = np.array([numbers[key].item() for numbers in without])
            num = len(values)
            parts.append(((num - 1) / num * ((values - values.mean()) ** 2).sum(), num - 1))
        variance = sum(part for part, _ in parts)
        freedom = variance**2 / sum(part**2 / own for part, own in parts) if variance else 1
        half = scipy.stats.t.ppf(0.975, freedom) * np.sqrt(variance)
        assert found is not None and found.mean == pytest.approx(everything[key].item()), key
        assert found.standard_error == pytest.approx(np.sqrt(variance)), key
        if several:
            assert found.bounds == pytest.approx((found.mean - half, found.mean + half)), key
    assert result.is_same_run == (num_seeds[0] == 1 and ranks in (gains, is_ceiling))
    assert result.num_targets == NUM_TARGETS


def cells_by_hand(
    values: dict[str, np.ndarray], rows: list[int], matched: list[tuple[str, int]], distances: tuple[int, int]
) -> dict[int, tuple[int, ...]]:
    """Return the cell of each row: in each respect equal shares of the weight, or equally wide parts of the distances."""
    weight_W, cells = WINDOWS["weight"].to_numpy(), {w: () for w in rows}  # type: dict[int, tuple[int, ...]]
    for name, bins in matched:
        below = 0.0
        for w in sorted(rows, key=lambda w: (values[name][w], w)):
            if name == "distance":
                bin_of = int((values[name][w] - distances[0]) * bins / (distances[1] - distances[0] + 1))
            else:
                bin_of = int((below + weight_W[w] / 2) / weight_W[rows].sum() * bins)
            cells[w] = (*cells[w], bin_of)
            below += weight_W[w]
    return cells


@pytest.mark.parametrize(
    ("every", "matched"),
    [
        (1, [("entropy", 5)]),
        (1, [("reaction", 20), ("distance", 4), ("entropy", 2)]),  # 2,400 targets have room for 200 cells of 12
        (7, [("reaction", 20), ("entropy", 1)]),  # 343: for 28
        (40, [("entropy", 5), ("reaction", 1)]),  # 60: for 5
        (55, [("reaction", 3), ("distance", 1)]),  # 44: for 3
        (100, [("distance", 2), ("entropy", 1)]),  # 24: for 2
        (3, [("entropy", 5), ("distance", 4), ("reaction", 3)]),  # 800: for 66
    ],
)
@pytest.mark.parametrize("context", [0, 1])
def test_thirds_of_cells_by_definition(every: int, matched: list[tuple[str, int]], context: int) -> None:
    """Most targets are far, so that some cells hold fewer than three targets, which are in no third."""
    rng = np.random.default_rng(every)
    distance_CW = 16 - np.minimum(rng.geometric(0.6, (2, NUM_TARGETS)) - 1, 7)
    run = a_run(every, gain_CW=slope(0, 0))
    keep_W = np.arange(NUM_TARGETS) % every == 0
    choices = {
        name: Choice(np.where(keep_W, rng.uniform(0, 1, (2, NUM_TARGETS)), np.nan), distance_CW)
        for name in ("kl", "random")
    }
    for selector in choices:
        found_W = thirds_of(
            dataclasses.replace(run, choices=choices),
            Analysis("x", selector, tuple(name for name, _ in matched)),  # type: ignore[arg-type]
            context=context, distances=(9, 16),
        )  # fmt: skip
        values = {"reaction": run.reaction_CW[context], "entropy": ENTROPY_W, "distance": distance_CW[context]}
        rows = np.flatnonzero(keep_W).tolist()
        sparsity_W = choices[selector].best_CW[context]
        expected_W, weight_W = np.full(NUM_TARGETS, -1), WINDOWS["weight"].to_numpy()
        cells = cells_by_hand(values, rows, matched, (9, 16))
        for cell in set(cells.values()):
            inside = sorted((w for w in rows if cells[w] == cell), key=lambda w: sparsity_W[w])
            below = 0.0
            for w in inside if len(inside) >= 3 else []:
                expected_W[w] = int((below + weight_W[w] / 2) / weight_W[inside].sum() * 3)
                below += weight_W[w]
        np.testing.assert_array_equal(found_W, expected_W)


def test_means_of_thirds_are_those_of_a_loop() -> None:
    pose = a_model("pose", range(3), gain_CW=slope(0.3, 0.0))
    found = sparsity_and_gain(pose, pose, None, UNMATCHED)
    third_of = {(a, c): plain_thirds(pose.reactions[a], c) for a in range(3) for c in range(2)}
    for t, entry in enumerate(found.thirds):
        assert entry.gain_nats.mean == pytest.approx(mean_by_loop(pose, pose, third_of, context=0, third=t), abs=1e-9)
        assert entry.null_gain_nats.mean == pytest.approx(
            mean_by_loop(pose, pose, third_of, context=1, third=t), abs=1e-9
        )
        reaction = mean_by_loop(pose, pose, third_of, context=0, third=t, name="reaction_CW")
        assert entry.reaction_nats.mean == pytest.approx(reaction, abs=1e-9)
    contrasts = found.contrasts
    assert contrasts.real_minus_null_nats.mean == pytest.approx(
        contrasts.gain_nats.mean - contrasts.null_gain_nats.mean
    )


def test_the_intervals_of_size_and_sparsity_over_seeds_end_at_0_and_1() -> None:
    """In one of three seeds reactions are large and dense, in the others small and sparse."""
    runs = []
    for seed, (size, share) in enumerate(((0.02, 0.97), (0.03, 0.95), (2.9, -3.0))):
        best_CW = share + 0.01 * TRUE_SPARSITY_CW
        runs.append(
            dataclasses.replace(
                a_run(seed, gain_CW=slope(0.1, 0.02)),
                reaction_CW=size * (1 + 0.1 * TRUE_SIZE_CW),
                choices={"kl": Choice(best_CW, DISTANCE_CW)},
            )
        )
    model = Model("pose", tuple(map(Path, "abc")), tuple(runs), LENGTHS)
    for third in sparsity_and_gain(model, model, None, UNMATCHED).thirds:
        assert third.reaction_nats.low == 0.0 < third.reaction_nats.mean < 1.1
        assert third.reaction_nats.high is not None and third.reaction_nats.high > 2
        assert third.sparsity is not None and third.sparsity.high == 1.0 and -0.5 < third.sparsity.mean < 0
        assert third.sparsity.low is not None and third.sparsity.low < -2


def test_the_error_of_a_mean_over_seeds_has_the_variance_of_that_mean() -> None:
    """The seeds that gain rank nothing here, so a third's gain is a plain mean over them, and the jackknife is exact."""
    ranking = a_model("ranking", range(1), gain_CW=slope(0.3, 0.0))
    gaining = a_model("gaining", range(10, 14), gain_CW=slope(0.3, 0.0))

    def gains_of(*reactions: Reactions) -> list[Estimate]:
        model = Model("gaining", gaining.runs[: len(reactions)], reactions, LENGTHS)
        return [third.gain_nats for third in sparsity_and_gain(ranking, model, None, UNMATCHED).thirds]

    gain_CW = np.mean([run.gain_CW for run in gaining.reactions], axis=0)
    of_documents = gains_of(dataclasses.replace(gaining.reactions[0], gain_CW=gain_CW))
    of_both, of_seeds = gains_of(*gaining.reactions), [gains_of(run) for run in gaining.reactions]
    for t, (both, documents) in enumerate(zip(of_both, of_documents, strict=True)):
        assert both.standard_error is not None and documents.standard_error is not None
        of_mean = np.var([seed[t].mean for seed in of_seeds], ddof=1) / len(of_seeds)
        assert both.standard_error**2 == pytest.approx(documents.standard_error**2 + of_mean)


def test_a_planted_slope_is_found_and_none_is_not() -> None:
    """Sparse targets are higher on the planted slope than dense ones, by what the ranking runs' noise leaves of it."""
    planted = a_model("planted", range(8), gain_CW=slope(0.3, 0.0))
    found = sparsity_and_gain(planted, planted, None, UNMATCHED).contrasts
    assert found.real_minus_null_nats.is_above_zero
    expected = np.mean([of_truth(slope(0.3, 0.0)[0], reactions) @ [-1, 0, 1] for reactions in planted.reactions])
    assert found.gain_nats.mean == pytest.approx(expected, abs=0.015)
    without = a_model("without", range(8), gain_CW=slope(0.0, 0.0))
    nothing = sparsity_and_gain(without, without, None).contrasts
    assert not nothing.real_minus_null_nats.is_above_zero and not nothing.real_minus_null_nats.is_below_zero


def test_noise_of_one_run_enters_both_sides_only_where_there_is_no_other_run() -> None:
    """In ``a_run`` a reaction that seems sparse by chance seems to gain by the same chance."""
    alone = a_model("alone", range(1), gain_CW=slope(0.0, 0.0), noise=0.0)
    several = a_model("several", range(4), gain_CW=slope(0.0, 0.0), noise=0.0)
    biased = sparsity_and_gain(alone, alone, None)
    assert biased.is_same_run and biased.contrasts.gain_nats.is_above_zero
    clean = sparsity_and_gain(several, several, None)
    assert not clean.is_same_run
    assert abs(clean.contrasts.gain_nats.mean) < biased.contrasts.gain_nats.mean / 5


def test_the_share_tells_a_constant_share_from_one_that_grows() -> None:
    """The ceiling gains more from sparse reactions in both cases; the share is one half, or rises from 0.2 to 0.8."""
    of_ceiling = 0.4 + slope(0.4, 0.0)
    ceiling = a_model("ceiling", range(10, 18), gain_CW=of_ceiling)
    half = a_model("half", range(20, 28), gain_CW=of_ceiling / 2)
    constant = sparsity_and_gain(ceiling, half, ceiling)
    assert constant.contrasts.gain_nats.is_above_zero
    share = constant.contrasts.share_of_ceiling
    assert share is not None and not share.is_above_zero and not share.is_below_zero
    rising = a_model("rising", range(30, 38), gain_CW=of_ceiling * (0.2 + 0.6 * TRUE_SPARSITY_CW))
    grows = sparsity_and_gain(ceiling, rising, ceiling, UNMATCHED)
    assert grows.contrasts.share_of_ceiling is not None and grows.contrasts.share_of_ceiling.is_above_zero
    expected = np.mean(
        [of_truth(of_ceiling[0] * (0.2 + 0.6 * TRUE_SPARSITY_CW[0]), run) for run in ceiling.reactions], axis=0
    ) / np.mean([of_truth(of_ceiling[0], run) for run in ceiling.reactions], axis=0)
    shares = [third.share_of_ceiling.mean for third in grows.thirds if third.share_of_ceiling is not None]
    np.testing.assert_allclose(shares, expected, atol=0.03)


def test_of_a_ceiling_that_loses_there_is_no_share() -> None:
    """Where both lose, the ratio is positive, and rises with sparsity: 0.2 to 0.8 of the ceiling's loss."""
    loss = np.full((2, NUM_TARGETS), -0.4)
    model = a_model("model", range(30, 38), gain_CW=loss * (0.2 + 0.6 * TRUE_SPARSITY_CW))
    found = sparsity_and_gain(model, model, a_model("ceiling", range(10, 18), gain_CW=loss), UNMATCHED)
    assert [third.share_of_ceiling for third in found.thirds] == [None] * 3
    assert found.contrasts.share_of_ceiling is None and found.contrasts.ceiling_gain_nats is not None
    dense_loses = a_model("ceiling", range(10, 18), gain_CW=slope(2.0, 2.0) + 0.1)
    found = sparsity_and_gain(model, model, dense_loses, UNMATCHED)
    assert [third.share_of_ceiling is None for third in found.thirds] == [True, False, False]
    assert found.contrasts.share_of_ceiling is None


def test_matching_takes_away_what_the_size_alone_explains() -> None:
    """Gain that follows the size of the reaction, which is larger where the reaction is sparse: nothing is left in cells."""
    size_CW = np.exp(2 * TRUE_SPARSITY_CW) * SHARED.gamma(4.0, 0.05, (2, NUM_TARGETS))

    def of_size(seed: int) -> Reactions:
        rng = np.random.default_rng(seed)
        best_CW = TRUE_SPARSITY_CW + rng.normal(0, 0.1, (2, NUM_TARGETS))
        gain_CW = np.stack([0.1 * np.log(size_CW[0]), np.zeros(NUM_TARGETS)]) + rng.normal(0, 0.1, (2, NUM_TARGETS))
        choices = {"kl": Choice(best_CW, DISTANCE_CW)}
        return Reactions(WINDOWS, size_CW, gain_CW, ENTROPY_W, choices)

    model = Model("size", tuple(map(Path, "abcd")), tuple(map(of_size, range(4))), LENGTHS)
    unmatched = sparsity_and_gain(model, model, None, UNMATCHED).contrasts.gain_nats
    matched = sparsity_and_gain(model, model, None, Analysis("matched", matched=("reaction",))).contrasts.gain_nats
    assert unmatched.is_above_zero
    assert abs(matched.mean) < 0.1 * unmatched.mean


def test_thirds_of_a_cell_have_the_same_weight_and_rise_in_sparsity() -> None:
    reactions = a_run(5, gain_CW=slope(0, 0))
    thirds_W = thirds_of(reactions, MAIN, context=0, distances=(9, 16))
    weight_W, sparsity_W = WINDOWS["weight"].to_numpy(), reactions.choices["kl"].best_CW[0]
    weights = [weight_W[thirds_W == t].sum() for t in range(len(THIRDS))]
    assert max(weights) / min(weights) < 1.25
    means = [sparsity_W[thirds_W == t].mean() for t in range(len(THIRDS))]
    assert means == sorted(means)
    # Matched on distance, entropy and size: the thirds hardly differ in them.
    for values_W in (DISTANCE_CW[0], ENTROPY_W, np.log(reactions.reaction_CW[0])):
        of_thirds = [values_W[thirds_W == t].mean() for t in range(len(THIRDS))]
        assert max(of_thirds) - min(of_thirds) < 0.15 * values_W.std()


def test_targets_are_counted_and_matched_under_their_own_context() -> None:
    """Some targets have no reaction under one context alone."""
    ranking, gaining = a_run(0, gain_CW=slope(0.3, 0.1)), a_run(1, gain_CW=slope(0.3, 0.1))
    best_CW = ranking.choices["kl"].best_CW.copy()
    best_CW[0, 1::3], best_CW[1, :7] = np.nan, np.nan
    ranking = dataclasses.replace(ranking, choices={"kl": Choice(best_CW, DISTANCE_CW)})
    analysis = Analysis("x", matched=("reaction",))
    one, other = Model("one", (Path("a"),), (ranking,), LENGTHS), Model("other", (Path("b"),), (gaining,), LENGTHS)
    found = sparsity_and_gain(one, other, None, analysis)
    third_of = {(0, c): thirds_of(ranking, analysis, context=c, distances=(9, 16)) for c in range(2)}
    assert found.num_targets == (third_of[0, 0] >= 0).sum() < (~np.isnan(best_CW[1])).sum() / 1.4
    for t, entry in enumerate(found.thirds):
        in_third_W = third_of[0, 0] == t
        assert entry.sparsity is not None and entry.sparsity.mean == pytest.approx(
            np.average(best_CW[0, in_third_W], weights=WINDOWS["weight"][in_third_W])
        )
        for context, estimate in enumerate((entry.gain_nats, entry.null_gain_nats)):
            assert estimate.mean == pytest.approx(mean_by_loop(one, other, third_of, context=context, third=t))


def test_two_targets_are_too_few_for_thirds() -> None:
    run, few = a_run(0, gain_CW=slope(0.3, 0.1)), slice(2)
    choice = Choice(*(values_CW[:, few] for values_CW in run.choices["kl"]))
    two = Reactions(WINDOWS[few], run.reaction_CW[:, few], run.gain_CW[:, few], ENTROPY_W[few], {"kl": choice})
    model = Model("model", (Path("a"),), (two,), LENGTHS)
    with pytest.raises(
        UserError, match=r"^too few targets to compare dense and sparse reactions; measure more with --num-w"
    ):
        sparsity_and_gain(model, model, None)


@pytest.mark.parametrize(("num_documents", "has_intervals"), [(49, False), (50, True)])
def test_there_are_intervals_where_enough_documents_are_compared(num_documents: int, has_intervals: bool) -> None:
    doc_ids = [f"{w % num_documents:016x}" for w in range(NUM_TARGETS)]
    run = dataclasses.replace(a_run(0, gain_CW=slope(0.3, 0.0)), windows=WINDOWS.assign(doc_id=doc_ids))
    model = Model("model", (Path("a"),), (run,), LENGTHS)
    found = sparsity_and_gain(model, model, None, UNMATCHED)
    numbers = [found.contrasts.real_minus_null_nats, *(third.gain_nats for third in found.thirds)]
    assert [number.has_interval for number in numbers] == [has_intervals] * 4


@pytest.mark.parametrize(("num_dense", "has_interval"), [(49, False), (50, True)])
def test_a_third_of_few_documents_has_no_interval_and_no_contrast(num_dense: int, has_interval: bool) -> None:
    """The dense reactions to the real text are those of 49 documents of 300; of foreign text all thirds are of many."""
    run = a_run(0, gain_CW=0.4 + slope(0.3, 0.0))
    doc_ids = np.array([f"{w // PER_DOCUMENT:016x}" for w in range(NUM_TARGETS)])
    is_dense = plain_thirds(run, 0) == THIRDS.index("dense")
    doc_ids[is_dense] = [f"{w % num_dense:016x}" for w in range(is_dense.sum())]
    run = dataclasses.replace(run, windows=WINDOWS.assign(doc_id=doc_ids))
    model = Model("model", (Path("a"),), (run,), LENGTHS)
    found = sparsity_and_gain(model, model, model, UNMATCHED)
    dense, *others = found.thirds
    contrasts = found.contrasts
    of_dense = [dense.sparsity, dense.reaction_nats, dense.gain_nats, dense.ceiling_gain_nats, dense.share_of_ceiling]
    of_dense += [contrasts.gain_nats, contrasts.real_minus_null_nats, contrasts.ceiling_gain_nats]
    assert [number is not None and number.has_interval for number in of_dense] == [has_interval] * 8
    of_others = [third.gain_nats for third in others] + [third.null_gain_nats for third in found.thirds]
    assert all(number.has_interval for number in [*of_others, contrasts.null_gain_nats])


@pytest.mark.parametrize(("number", "together"), [(8, 2), (3, 1)])
def test_thirds_are_taken_at_each_distance(number: int, together: int) -> None:
    """Four cells of two distances each, or a cell for each of three: the third of a target is that in its cell, by weight."""
    reactions, distance_CW = a_run(5, gain_CW=slope(0, 0)), 9 + DISTANCE_CW % number
    choice = reactions.choices["kl"]._replace(distance_CW=distance_CW)
    found_W = thirds_of(
        dataclasses.replace(reactions, choices={"kl": choice}), Analysis("x", matched=("distance",)), context=0,
        distances=(9, 8 + number),
    )  # fmt: skip
    weight_W, in_order = WINDOWS["weight"].to_numpy(), np.argsort(choice.best_CW[0], kind="stable")
    for cell in range(number // together):
        rows = [w for w in in_order if (distance_CW[0, w] - 9) // together == cell]
        whole, below = sum(weight_W[w] for w in rows), 0.0
        for w in rows:
            assert found_W[w] == int(3 * (below + weight_W[w] / 2) / whole)
            below += weight_W[w]


def test_distances_are_matched_from_the_first_long_range_token_to_the_last() -> None:
    """Four cells of five distances are not the same as four of six."""
    choice = Choice(TRUE_SPARSITY_CW, 9 + DISTANCE_CW % 5)
    runs = tuple(dataclasses.replace(a_run(seed, gain_CW=slope(0.3, 0.0)), choices={"kl": choice}) for seed in range(2))
    lengths = Lengths(local_len=8, full_len=13, num_long_range=5, train_len=8)
    model, analysis = Model("model", (Path("a"), Path("b")), runs, lengths), Analysis("x", matched=("distance",))
    third_of = {(a, c): thirds_of(runs[a], analysis, context=c, distances=(9, 13)) for a in range(2) for c in range(2)}
    for t, entry in enumerate(sparsity_and_gain(model, model, None, analysis).thirds):
        expected = mean_by_loop(model, model, third_of, context=0, third=t)
        assert entry.gain_nats.mean == pytest.approx(expected, abs=1e-9)


def test_a_target_without_a_reaction_is_in_no_third() -> None:
    reactions = a_run(5, gain_CW=slope(0, 0))
    best_CW = reactions.choices["kl"].best_CW.copy()
    best_CW[0, 3] = np.nan
    of_one = Reactions(*(getattr(reactions, name) for name in ("windows", "reaction_CW", "gain_CW", "entropy_W")),
                       {"kl": Choice(best_CW, DISTANCE_CW)})  # fmt: skip
    thirds_W = thirds_of(of_one, MAIN, context=0, distances=(9, 16))
    assert thirds_W[3] == -1


def covered(real: float, *, num_seeds: int, repeats: int) -> float:
    """Return how often the interval of the first planned number holds the truth, which is computed without noise."""
    hits = 0
    for repeat in range(repeats):
        seeds = range(1000 + repeat * num_seeds, 1000 + (repeat + 1) * num_seeds)
        rng = np.random.default_rng(repeat)
        # Targets are drawn anew: what they share is permuted between them, document by document.
        of_documents = rng.normal(0, 0.1, (2, NUM_DOCUMENTS)).repeat(PER_DOCUMENT, axis=1)
        model = a_model("model", seeds, gain_CW=slope(real, 0.0) + of_documents)
        truth = sparsity_and_gain(model, a_truth(real), None).contrasts.real_minus_null_nats.mean
        bounds: Optional[tuple[float, float]] = sparsity_and_gain(
            model, model, None
        ).contrasts.real_minus_null_nats.bounds
        assert bounds is not None
        hits += bounds[0] <= truth <= bounds[1]
    return hits / repeats


def a_truth(real: float) -> Any:
    """Return a model of one run whose gain has no noise."""
    zeros = np.zeros((2, NUM_TARGETS))
    choices = {"kl": Choice(TRUE_SPARSITY_CW, DISTANCE_CW)}
    reactions = Reactions(WINDOWS, TRUE_SIZE_CW, slope(real, 0.0) + zeros, ENTROPY_W, choices)
    return Model("truth", (Path("truth"),), (reactions,), LENGTHS)


def test_intervals_hold_the_truth() -> None:
    """Nominally 95%; with 40 repeats, fewer than 34 hits have a chance below 0.5%."""
    assert covered(0.1, num_seeds=4, repeats=40) >= 34 / 40
