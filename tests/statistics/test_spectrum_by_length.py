"""The spectrum against the length: needs that are known by construction, and brute force by the definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planted_lengths import LineKey, planted_needs

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.shares import Share, ShareDifference, paired_difference
from olmo_sparsity.statistics.several.same_targets import MeasuredLength
from olmo_sparsity.statistics.several.spectrum_by_length import (
    LongerKey,
    SpectrumOfModel,
    shown_to_need_more,
    spectrum_by_length,
)
from olmo_sparsity.statistics.single.spectrum import TOLERANCE, Curve, sufficient_k

LENGTHS = (128, 256, 1024)
FAMILIES = ("attention", "nearest", "random")


def difference_of(first_U: np.ndarray, second_U: np.ndarray, *, weight_U: np.ndarray) -> ShareDifference:
    return ShareDifference(Share(first_U, weight_U), Share(second_U, weight_U))


def grid(full_len: int) -> list[int]:
    """Return 1, 2, 4, ... and all long-range tokens."""
    num_long_range = full_len - 64
    return [*(2**i for i in range(12) if 2**i < num_long_range), num_long_range]


def measured_need(need: float, ks: Sequence[int]) -> float:
    return next((k for k in (0, *ks) if k >= need), math.inf)


def drawn_needs(num: int, *, seed: int = 0) -> dict[int, dict[LineKey, np.ndarray]]:
    """Return needs at every length: suffixes grow for most targets, choices for some, random and foreign ones for none."""
    rng = np.random.default_rng(seed)
    chosen, near, random = (rng.choice([0, 1, 3, 20, 60], num) for _ in range(3))
    grows_near, grows_chosen = rng.random(num) < 0.7, rng.random(num) < 0.3
    found = {}
    for length in LENGTHS:
        needs = {
            LineKey("attention", "real"): np.where(grows_chosen, np.minimum(5 * chosen, length - 64), chosen)
            if length > 128
            else chosen,
            LineKey("nearest", "real"): np.where(grows_near, near * (length // 128), near),
            LineKey("random", "real"): random,
        }
        # What predicts without a token does so for every family.
        needs = {line: np.where(chosen == 0, 0, np.maximum(of, 1)) for line, of in needs.items()}
        found[length] = needs | {LineKey(line.selector, "null"): np.minimum(of, 1) for line, of in needs.items()}
    return found


def of_needs(needs: dict[int, dict[LineKey, np.ndarray]]) -> tuple[SpectrumOfModel, list[MeasuredLength]]:
    document_W = np.repeat(np.arange(100), 2)
    measured = [planted_needs(n, needs[n], ks=grid(n), document_W=document_W) for n in reversed(LENGTHS)]
    (model,) = spectrum_by_length(measured, selector="attention").models
    return model, measured


def test_planted_needs_give_their_quantiles_and_their_growth() -> None:
    needs = drawn_needs(200)
    model, measured = of_needs(needs)
    assert model.lengths == list(LENGTHS)
    weights = measured[0].targets["weight"].to_numpy()
    for family in FAMILIES:
        for context in ("real", "null"):
            line = LineKey(family, context)
            known = {n: np.array([measured_need(k, grid(n)) for k in needs[n][line]]) for n in LENGTHS}
            for length, known_W in known.items():
                spectrum = model.spectra[length].of(family, context)
                assert spectrum is not None
                for share in (0.5, 0.8, 0.9):
                    k = min(k for k in (0, *grid(length)) if weights[known_W <= k].sum() >= share * weights.sum())
                    needed = spectrum.reaching(share)
                    assert needed.value == k and needed.low is not None and needed.low <= k
            for length in LENGTHS[1:]:
                growth = model.growth[LongerKey(Curve(family, context, TOLERANCE), length)]
                # These needs are at most 60 at the shortest length, and no grid rounds two of them to one.
                more_W, fewer_W = known[length] > known[128], known[length] < known[128]
                assert growth.more.mean == pytest.approx(weights[more_W].sum() / weights.sum())
                assert growth.fewer.mean == pytest.approx(weights[fewer_W].sum() / weights.sum())
                if family == "random" or context == "null":
                    assert growth.more.mean == growth.fewer.mean == 0 and growth.more.low == 0
                    assert growth.more.high is not None and 0 < growth.more.high < 0.1
    chosen, near = model.growth_of("attention"), model.growth_of("nearest")
    assert chosen is model.growth[LongerKey(Curve("attention", "real", TOLERANCE), LENGTHS[-1])]
    assert 0.05 < chosen.more.mean < near.more.mean
    assert near.suffix_minus_this is None and chosen.suffix_minus_this is not None
    assert chosen.suffix_minus_this.mean == pytest.approx(near.more.mean - chosen.more.mean)
    assert chosen.suffix_minus_this.is_above_zero


def test_needs_that_only_the_grids_make_different_do_not_grow() -> None:
    """150 tokens are 192 on the grid of 256 tokens, and 256 on that of 1,024."""
    for need, other, grows in ((150, 150, False), (150, 250, False), (150, 257, True), (300, 150, False)):
        known = [measured_need(k, grid(n)) for k, n in ((need, 256), (other, 1024))]
        shorter_W, longer_W = (np.array([k]) for k in known)
        assert shown_to_need_more(longer_W, shorter_W, ks=grid(1024)).tolist() == [grows]
    assert not shown_to_need_more(np.array([192.0]), np.array([256.0]), ks=grid(256)).any()  # nor fall


delta = st.lists(st.sampled_from([0.0, 1.0]), min_size=5, max_size=5)


@settings(deadline=None)
@given(delta, delta)
def test_more_is_shown_by_a_measured_k_that_is_not_enough(shorter: list[float], longer: list[float]) -> None:
    """By definition: some k that is measured at the longer context, at least the need at the shorter one, is too few."""
    grids = [1, 2, 4, 6], [1, 2, 3, 8]
    needs = [
        sufficient_k(np.array([of[1:]]), np.array(of[:1]), ks=ks, tolerance=0.5)
        for of, ks in zip((shorter, longer), grids, strict=True)
    ]
    at = dict(zip((0, *grids[1]), longer, strict=True))
    too_few = {k for k in at if all(at[other] for other in at if other <= k)}
    assert shown_to_need_more(needs[1], needs[0], ks=grids[1]).item() == any(k >= needs[0].item() for k in too_few)


def test_more_than_every_measured_k_is_a_need() -> None:
    """It is more than what was enough before; where it was not enough before either, nothing is shown."""
    needs = {n: {LineKey(f, c): [2, math.inf, 0] * 20 for f in FAMILIES for c in ("real", "null")} for n in (128, 256)}
    needs[256] = {line: [math.inf, math.inf, 0] * 20 for line in needs[256]}
    measured = [planted_needs(n, needs[n], ks=[1, 2, 4]) for n in (128, 256)]
    (model,) = spectrum_by_length(measured, selector="attention").models
    weights = measured[0].targets["weight"].to_numpy()
    assert model.growth_of("attention").more.mean == pytest.approx(weights[::3].sum() / weights.sum())
    spectrum = model.spectra[256].of("attention")
    assert spectrum is not None and spectrum.reaching(0.8).value is None
    assert spectrum.shares[-1].mean == pytest.approx(weights[2::3].sum() / weights.sum())


def test_growth_on_other_grids_by_definition() -> None:
    """Needs rise and fall; what is shown depends on the next smaller k of the grid of the longer need, by weight."""
    rng, grids = np.random.default_rng(16), {128: [1, 2, 4, 8, 64], 256: [1, 3, 6, 12, 192]}
    document_W = np.sort(rng.integers(0, 70, 200))
    lines = [LineKey(family, context) for family in FAMILIES for context in ("real", "null")]
    needs = {n: {line: rng.choice([*ks, math.inf], 200) for line in lines} for n, ks in grids.items()}
    (model,) = spectrum_by_length(
        [planted_needs(n, needs[n], ks=ks, document_W=document_W) for n, ks in grids.items()], selector="attention"
    ).models
    weights = 1.0 + document_W % 3
    for line in lines:
        found = {"more": 0.0, "fewer": 0.0}
        for w in range(200):
            shorter, longer = (needs[n][line][w] for n in grids)
            found["more"] += weights[w] * (max(k for k in (0, *grids[256]) if k < longer) >= shorter)
            found["fewer"] += weights[w] * (max(k for k in (0, *grids[128]) if k < shorter) >= longer)
        growth = model.growth_of(line.selector, line.context)
        assert growth.more.mean == pytest.approx(found["more"] / weights.sum())
        assert growth.fewer.mean == pytest.approx(found["fewer"] / weights.sum())
        assert 0.1 < growth.fewer.mean < 0.9 and 0.1 < growth.more.mean < 0.9
    units, more = np.unique(document_W, return_inverse=True)[1], {}
    for family in ("attention", "nearest"):
        shorter_W, longer_W = (needs[n][LineKey(family, "null")] for n in grids)
        more_W = shown_to_need_more(longer_W, shorter_W, ks=grids[256])
        more[family] = np.bincount(units, weights=weights * more_W)
    growth, near = model.growth_of("attention", "null"), model.growth_of("nearest", "null")
    assert growth.suffix_minus_this == paired_difference(
        near.more,
        growth.more,
        of_units=difference_of(more["nearest"], more["attention"], weight_U=np.bincount(units, weights=weights)),
    )


def test_the_growth_of_suffixes_is_compared_on_the_same_curve() -> None:
    """Under each context and tolerance, which here are all different."""
    rng, lines = np.random.default_rng(17), [LineKey(family, c) for family in FAMILIES for c in ("real", "null")]
    measured = []
    for length in (128, 256):
        one = planted_needs(length, {line: rng.choice([0, 2, 8], 150) for line in lines}, ks=[1, 2, 4, 8])
        divergences = one.measurement.divergences * rng.choice(
            [0.03, 0.07, 0.3, 1.0], one.measurement.divergences.shape
        )
        measured.append(replace(one, measurement=replace(one.measurement, divergences=divergences)))
    found = spectrum_by_length(measured, selector="attention")
    growth = found.models[0].growth
    assert {key.curve for key in growth} == set(found.curves)
    assert {curve.family for curve in found.curves} == set(FAMILIES) and len(list(found.curves)) == len(growth) == 24
    of_near = {}
    for key, of_key in growth.items():
        near = growth[key._replace(curve=key.curve._replace(family="nearest"))]
        of_near[key.curve[1:]] = near.more.mean
        if of_key is near:
            assert of_key.suffix_minus_this is None
        else:
            assert of_key.suffix_minus_this is not None
            assert of_key.suffix_minus_this.mean == pytest.approx(near.more.mean - of_key.more.mean)
    assert len(set(of_near.values())) == 8


def test_few_documents_have_no_intervals() -> None:
    needs = {n: {LineKey(f, c): [n // 64] * 49 for f in FAMILIES for c in ("real", "null")} for n in (128, 256)}
    (model,) = spectrum_by_length([planted_needs(n, needs[n], ks=grid(n)) for n in needs], selector="attention").models
    growth = model.growth_of("attention")
    assert growth.more == Estimate(1.0) and growth.fewer == Estimate(0.0) and growth.suffix_minus_this == Estimate(0.0)


def test_suffixes_must_be_measured() -> None:
    needs = {LineKey(f, c): [1] * 60 for f in ("attention", "random") for c in ("real", "null")}
    measured = [planted_needs(n, needs, ks=[1, 2]) for n in (128, 256)]
    with pytest.raises(
        UserError, match="nearest not measured; measure it with --selector attention --selector nearest"
    ):
        spectrum_by_length(measured, selector="attention")


def test_all_selectors_that_a_length_lacks_are_named_with_it() -> None:
    line = {LineKey(f, c): [1] * 60 for f in FAMILIES for c in ("real", "null")}
    few = {key: needs for key, needs in line.items() if key.selector == "attention"}
    measured = [planted_needs(128, line, ks=[1, 2]), planted_needs(256, few, ks=[1, 2])]
    options = " ".join(f"--selector {name}" for name in ("attention", "nearest"))
    with pytest.raises(UserError, match=f"at full_len 256: nearest not measured; measure it with {options}$"):
        spectrum_by_length(measured, selector="attention")


def test_random_tokens_are_a_family_only_where_every_length_has_them() -> None:
    needs = drawn_needs(200)
    without = {n: {line: of for line, of in lines.items() if line.selector != "random"} for n, lines in needs.items()}
    document_W = np.repeat(np.arange(100), 2)
    measured = {
        n: [planted_needs(n, of[n], ks=grid(n), document_W=document_W) for of in (needs, without)] for n in LENGTHS
    }
    whole = spectrum_by_length([measured[n][0] for n in LENGTHS], selector="attention")
    mixed = spectrum_by_length([measured[n][n > 256] for n in LENGTHS], selector="attention")
    assert (whole.families, mixed.families) == (FAMILIES, FAMILIES[:2]) and mixed.selector == "attention"
    for family in mixed.families:
        assert mixed.models[0].growth_of(family) == whole.models[0].growth_of(family)


def test_the_interval_of_a_difference_knows_how_shares_go_together() -> None:
    """One reaches as far as both together where they are independent, less where they rise together, more where they do not."""
    first, second = Estimate(0.5, 0.4, 0.6, 0.05), Estimate(0.3, 0.2, 0.4, 0.05)
    weight_U = np.ones(400)
    independent = (np.tile([1.0, 0.0], 200), np.repeat([1.0, 0.0], [120, 280]))
    found = paired_difference(first, second, of_units=difference_of(*independent, weight_U=weight_U))
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, 0.2 - 0.1 * 2**0.5, 0.2 + 0.1 * 2**0.5))
    together = (np.repeat([1.0, 0.0], [200, 200]), independent[1])
    apart = (np.repeat([0.0, 1.0], [200, 200]), independent[1])
    lows = [
        paired_difference(first, second, of_units=difference_of(*parts, weight_U=weight_U)).low
        for parts in (together, apart)
    ]
    assert lows[0] > found.low > lows[1]  # type: ignore[operator]
    nothing = Estimate(0.0, 0.0, 0.05, 0.01)
    none = paired_difference(nothing, nothing, of_units=difference_of(np.zeros(9), np.zeros(9), weight_U=np.ones(9)))
    assert (none.mean, none.low, none.high) == pytest.approx((0.0, -0.05, 0.05))
    assert paired_difference(
        Estimate(0.5), second, of_units=difference_of(*independent, weight_U=weight_U)
    ) == Estimate(0.2)
