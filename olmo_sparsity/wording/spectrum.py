"""Sentences about the dependency spectrum: how many targets need long-range tokens, and whether those are few or near."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from olmo_sparsity.statistics.intervals.estimate import SmallestK
from olmo_sparsity.statistics.single.measurement import CONTEXTS
from olmo_sparsity.statistics.single.shown_ks import FEW
from olmo_sparsity.statistics.single.spectrum import (
    NEAREST,
    RANDOM,
    TOLERANCE,
    Spectra,
    Spectrum,
    chosen_family,
)
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.wording.numbers import (
    NO_R_BESIDE,
    TOO_FEW_TO_TELL,
    number_words,
    percent,
    recovered_words,
    smallest_k_words,
)
from olmo_sparsity.wording.selection import BLIND
from olmo_sparsity.wording.units import counted_of, units_of

MOST = 0.9  # the share of the targets that the sentences are about


def families_shown(spectra: Spectra, summary: Summary) -> list[str]:
    """Return the families of short tables: choices that do not see the target, suffixes and random ones; else all."""
    chosen = [name for name in summary.blind_selectors if name not in (NEAREST, RANDOM)]
    return [name for name in (*chosen, NEAREST, RANDOM) if spectra.of(name) is not None] or spectra.families


def needed_words(spectrum: Spectrum, share: float, max_k: int) -> str:
    """Return the k that a share of the targets needs, with its interval, such as ``2 [1, > 8]``; without where there is none."""
    needed = spectrum.reaching(share)
    return smallest_k_words(needed, max_k) if spectrum.has_intervals else number_words(needed.value, max_k)


def spectrum_sentences(spectra: Spectra, summary: Summary) -> list[str]:
    """Return what the spectrum says, in three sentences or entries, whose words follow the intervals.

    They are the targets that need no long-range token, and where a training row is known those that need tokens beyond it; how
    many tokens most targets need, chosen, nearest and at random, and whether these are few or near; and what is no evidence here:
    the spectrum of foreign text, and R(k).
    """
    return [_none_words(spectra, summary), _needed_words(spectra, summary), _reaction_words(spectra, summary)]


def spectrum_finding(spectra: Spectra, summary: Summary) -> str:
    """Return how many targets need no long-range token, and how many tokens most of them need, also under the null context."""
    real, null = _none_shares(spectra, summary)
    needed = _needed_words(spectra, summary)
    return (
        f"Within {TOLERANCE:g} nats {real} of the targets need no long-range {units_of(summary, 1)} (null context: {null}); "
        f"{needed[0].lower()}{needed[1:]}"
    )


def _none_shares(spectra: Spectra, summary: Summary) -> list[str]:
    """Return the shares of the targets that need no long-range token, in the real and in the null context."""
    family = families_shown(spectra, summary)[0]
    of_contexts = [spectra.of(family, context) for context in CONTEXTS]
    return [percent(None if spectrum is None else spectrum.none_needed) for spectrum in of_contexts]


def _none_words(spectra: Spectra, summary: Summary) -> str:
    real, null = _none_shares(spectra, summary)
    words = (
        f"{real} of the targets need no long-range {units_of(summary, 1)}: the local tokens alone predict within "
        f"{TOLERANCE:g} nats of the full context (null context: {null})."
    )
    beyond = spectra.beyond_row()
    if beyond is None:
        return words
    row, of_null = summary.lengths.train_len, percent(spectra.beyond_row("null"))
    return (
        f"{words} {percent(beyond)} need tokens beyond the training row, more than the last {row} (null context: {of_null}). "
        "That these tokens change the prediction is no gain."
    )


def _needed_words(spectra: Spectra, summary: Summary) -> str:
    """Return how many tokens most targets need of each kind, and whether that is sparse, near, or neither."""
    names = _names(spectra, summary)
    if not names:
        return f"No selector {BLIND} was measured, so it is not said how many {units_of(summary)} most targets need."
    listed = _listed(spectra, names, "real")
    number = summary.num_units
    of_all = f"{number:g} long-range {units_of(summary)}"
    if number != round(number):
        of_all = f"{number:.1f} long-range {units_of(summary)} on average"
    words = f"For {MOST:.0%} of the targets it takes {listed}, of {of_all}"
    chosen, near = spectra.of(next(iter(names))), spectra.of(NEAREST)
    if chosen is None or near is None or chosen.curve.family in (NEAREST, RANDOM):
        return f"{words}."
    near_words = "these targets are near, a short suffix suffices"
    if summary.setup.visibility == "contextual":  # what is far may reach them by way of near entries
        near_words = "few of the nearest suffice"
    return f"{words}: {_verdict(chosen, near, few=FEW * summary.num_units, near_words=near_words)}."


def _names(spectra: Spectra, summary: Summary) -> dict[str, str]:
    """Return what the tokens of a choice, the nearest and random ones are called, by family, as far as they were measured."""
    chosen = spectra.chosen(summary.blind_selectors)
    names = {} if chosen is None else {chosen: f"chosen by {chosen}"}
    controls = {NEAREST: "nearest ones", RANDOM: "random ones"}
    return names | {family: words for family, words in controls.items() if family in spectra.families}


def _listed(spectra: Spectra, names: Mapping[str, str], context: str) -> str:
    """Return the k that is enough for most targets, of each kind: ``2 [2, 3] chosen by kl, more than 8 [8, > 8] nearest ones``.

    It is not said that most targets need more than 8: 8 are too few for most, and may be enough for nearly as many.
    """
    words = []
    for family, name in names.items():
        spectrum = spectra.of(family, context)
        assert spectrum is not None, family
        needed = needed_words(spectrum, MOST, spectra.max_k)
        words.append(f"{f'more than {needed[2:]}' if needed.startswith('> ') else needed} {name}")
    return ", ".join(words)


def _verdict(chosen: Spectrum, near: Spectrum, *, few: float, near_words: str) -> str:
    """Return what the intervals of the chosen and of the nearest tokens show; ``few``: the most that are few."""
    if not chosen.has_intervals:
        return TOO_FEW_TO_TELL
    of_chosen, of_near = chosen.reaching(MOST), near.reaching(MOST)
    if _at_most(of_chosen, 0) or _at_most(of_near, 0):
        return "these targets need none of them"
    if _at_most(of_near, few):
        return near_words
    if not _at_most(of_chosen, few):
        return "few are not shown to suffice"
    if _is_above(near, few):
        return "sparse, few chosen ones suffice where the suffix is long"
    return "few chosen ones suffice; whether a short suffix does, too, is not clear"


def _at_most(needed: SmallestK, few: float) -> bool:
    return needed.high is not None and needed.high <= few


def _is_above(spectrum: Spectrum, few: float) -> bool:
    """Return True if most targets are shown to need more than ``few``: at a measured k that is no smaller, too few have enough.

    That more than the largest measured k is needed shows nothing where that k is smaller than ``few``.
    """
    measured = zip(spectrum.ks, spectrum.shares, strict=True)
    return any(k >= few and share.high is not None and share.high < MOST for k, share in measured)


def _reaction_words(spectra: Spectra, summary: Summary) -> str:
    """Return that a spectrum is of the reaction, useful or not: that under foreign text, and R(k) of the chosen tokens."""
    words, names = ["This is the model's reaction, useful or not"], _names(spectra, summary)
    if names:
        words.append(f": under the null context, for {MOST:.0%} it takes {_listed(spectra, names, 'null')}")
    worth = _worth_words(spectra, summary)
    return "".join([*words, ".", *([" ", worth] if worth else [])])


def _worth_words(spectra: Spectra, summary: Summary) -> str:
    """Return R(k) of the chosen tokens at the k that most targets need, where it was measured."""
    family = chosen_family(summary.blind_selectors)
    spectrum = None if family is None else spectra.of(family)
    k: Optional[int] = None if spectrum is None else spectrum.reaching(MOST).value
    if family is None or not k:
        return ""
    if not summary.gate_passed:
        return NO_R_BESIDE
    worth = recovered_words(summary, summary.at(family, "real", k).recovered_fraction)
    verb = "gives" if k == 1 else "give"
    return f"In the real context {counted_of(summary, k)} chosen by {family} {verb} back R({k}) = {worth} of the long gain."


def spectrum_caption(spectra: Spectra, summary: Summary, *, every: bool = False) -> str:
    """Return what a reader of a table of spectra must know; ``every``: of all tolerances."""
    units = units_of(summary)
    within = "the tolerance" if every else f"{TOLERANCE:g} nats"
    reach = "how far a target reaches"
    if summary.setup.visibility == "contextual":
        reach = "how far back a target's attention must go; what stands further back may reach it by way of them"
    return (
        f"k is enough where KL(p_all, p_{{J_k}}) is at most {within}. 0: the local tokens are enough. > {spectra.max_k}: more "
        f"than the largest measured k. {NEAREST}: the last k long-range {units}, so {reach}. Of a selector's "
        f"choice: how many {units} a target needs at most. "
        "Brackets: all k at which the simultaneous 95% band holds the share. No label enters, and foreign text "
        "has a spectrum, too: it is no evidence that the context helps."
        f"{rounding_words(spectra)}"
    )


def rounding_words(spectra: Spectra) -> str:
    """Return, behind other sentences, that rounding distorts the spectrum; empty where it does not."""
    if not spectra.is_rounded:
        return ""
    return (
        " Measured in bf16, whose rounding is of the size of small tolerances: too few targets count as within them; measure "
        "with --precision fp32."
    )
