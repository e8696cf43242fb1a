"""Sentences about the dependency spectrum against the length: how the need of the same targets changes with it."""

from __future__ import annotations

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.spectrum_by_length import SpectrumByLength, SpectrumOfModel
from olmo_sparsity.statistics.single.spectrum import NEAREST, RANDOM, TOLERANCE
from olmo_sparsity.wording.numbers import TOO_FEW_TO_TELL, interval, percent
from olmo_sparsity.wording.spectrum import MOST, needed_words


def family_words(family: str) -> str:
    """Return what the tokens of a family are called."""
    return {NEAREST: "nearest", RANDOM: "at random"}.get(family, f"chosen by {family}")


def length_sentences(found: SpectrumByLength, model: SpectrumOfModel) -> list[str]:
    """Return what is enough for most targets at both ends, how many need more at the longest, and the same of foreign text."""
    shortest, *_, longest = model.lengths
    growths = [f"{percent(model.growth_of(family).more)} {family_words(family)}" for family in found.families]
    chosen = model.growth_of(found.selector)
    difference = chosen.suffix_minus_this
    assert difference is not None, found.selector
    needs = (
        f"{_needs_words(model, family, 'real')} {family_words(family)} (null context {_needs_words(model, family, 'null')})"
        for family in found.families
    )
    of_null = (
        f"{percent(model.growth_of(family, 'null').more)} {family_words(family)}"
        for family in (found.selector, NEAREST)
    )
    return [
        f"{model.name}: within {TOLERANCE:g} nats, for {MOST:.0%} of the targets it takes at {shortest:,} and {longest:,} tokens "
        f"{'; '.join(needs)}.",
        f"From {shortest:,} to {longest:,} tokens these targets need more: {', '.join(growths)}; fewer: "
        f"{percent(chosen.fewer)} {family_words(found.selector)}, {percent(model.growth_of(NEAREST).fewer)} nearest.",
        f"Suffix minus choice: {_points_words(difference)}: {_verdict(difference)}.",
        f"Under the null context these need more: {', '.join(of_null)}.",
    ]


def _needs_words(model: SpectrumOfModel, family: str, context: str) -> str:
    ends = [model.spectra[length] for length in (model.lengths[0], model.lengths[-1])]
    needs = [(spectra.of(family, context), spectra.max_k) for spectra in ends]
    return " and ".join(needed_words(spectrum, MOST, max_k) for spectrum, max_k in needs if spectrum is not None)


def _points_words(share: Estimate) -> str:
    """Return a difference of shares in percentage points."""
    return f"{interval(share.times(100), 0)} percentage points"


def _verdict(difference: Estimate) -> str:
    """Return what the interval shows of the share whose suffix grows, minus the share whose choice grows."""
    if not difference.has_interval:
        return TOO_FEW_TO_TELL
    if difference.is_above_zero:
        return "suffixes grow for more targets than choices do"
    return "choices grow for more targets than suffixes do" if difference.is_below_zero else "no clear difference"
