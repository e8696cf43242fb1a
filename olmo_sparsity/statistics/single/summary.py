"""The summary of one measurement: the two gates, gains with their controls, R(k), D(k), Figure 4's slopes.

Every number has a 95% interval over documents. All but shares of targets share the same resamples (``bootstrap``), so that
differences and ratios are paired. Every mean over windows is weighted (``Measurement.weights_W``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Optional, get_type_hints

import numpy as np

from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.intervals.bootstrap import IntervalMethod, estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.lines import LineFit
from olmo_sparsity.statistics.single.measurement import (
    Estimand,
    Lengths,
    Measurement,
    NullContext,
    SelectionKey,
    SelectorInfo,
)
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.statistics.single.shown_ks import quarter_ks, shown_ks
from olmo_sparsity.statistics.single.spectrum import TOLERANCE
from olmo_sparsity.statistics.single.sums import Key, SelectionNumber, quantities_of, sums_by_unit
from olmo_sparsity.text.overlap import NGRAM

Gate = Literal["passed", "failed", "not-assessed", "not-applicable"]
FRACTIONS = ("recovered_fraction",)  # what a gate that did not pass hides
ROBUST_RATIO = 3  # long gain over its standard error: below it R(k) is fragile


@dataclass(frozen=True)
class Quantity:
    """How one of the estimates is called and shown. It is declared at its field; ``statistics.single.sums`` has its formula.

    Attributes:
        title: its name in tables.
        unit: its unit; empty of a fraction.
        digits: decimal places in tables.
        is_compared: True if ``compare`` shows it, and its differences.
        is_loss: True if it belongs to the losses and gains that ``summary`` begins with.
        definition: what it is computed from, where a table of definitions has room; ``{row}`` is the length of a training row.
        least, most: no value lies below, and none above.
    """

    title: str
    unit: str = "nats"
    digits: int = 3
    is_compared: bool = True
    is_loss: bool = False
    definition: str = ""
    least: float = -math.inf
    most: float = math.inf

    @property
    def header(self) -> str:
        """The title and the unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


def _quantities(record: type) -> dict[str, Quantity]:
    """Return the estimates of a record by name, in the order of its fields."""
    hints = get_type_hints(record, include_extras=True)
    return {
        name: annotation
        for name, hint in hints.items()
        for annotation in getattr(hint, "__metadata__", ())
        if isinstance(annotation, Quantity)
    }


@dataclass(frozen=True)
class SelectionSummary:
    """The numbers of one selector, context and k. Missing numbers are None.

    Attributes:
        selector: name of the selector.
        context: ``real`` or ``null``.
        k: number of unmasked long-range tokens, or groups of them.
        info: whether the selector sees the target, and what it costs.
        mean_tokens: mean number of tokens of J_k; k where the unit is a token.
        all_visible_share: share of the windows that have no more than k groups, so that J_k is all long-range tokens.
        gain_sparse_nats: mean sparse gain.
        recovered_fraction: R(k), mean sparse gain over the mean long gain of the real context; real and null context. None
            where the gate did not pass. Of a selector that sees the target it includes optimism.
        gain_over_random_nats: sparse gain minus that of `random`, window by window; real and null context. Of a selector that
            does not see the target it shows whether the selector selects anything. None for `random` itself and where
            `random` was not measured.
        excess_gain_nats: sparse gain minus that of the null context, window by window; real context only.
        optimism_nats: how much the sparse gain of the choice for a target overstates its worth on another one, measured on
            resampled targets; real and null context, of selectors that see the target, and of `random`, where it must be 0. None
            where it was not measured, and of the other selectors that do not see the target: theirs is 0, and their gain
            needs no correction.
        corrected_gain_nats: sparse gain minus optimism, window by window; where ``optimism_nats`` is. Under the null context it
            is the placebo, which must not be above 0.
        prediction_recovered: D(k), 1 - mean KL(p_all, p_{J_k}) / mean KL(p_all, p_{}). No evidence that the context helps.
        sufficient_share: share of the targets that need at most k of the selector's choice (``spectrum``), within ``TOLERANCE``
            nats; real and null context. No evidence that the context helps.
        figure4: the long gain (y) against the sparse gain (x), both of this context, one point a window.
    """

    selector: str
    context: str
    k: int
    info: SelectorInfo
    mean_tokens: float
    all_visible_share: float
    gain_sparse_nats: Annotated[Optional[Estimate], Quantity("sparse gain")]
    recovered_fraction: Annotated[Optional[Estimate], Quantity("R(k)", unit="", digits=2)]
    gain_over_random_nats: Annotated[Optional[Estimate], Quantity("gain over random")]
    excess_gain_nats: Annotated[Optional[Estimate], Quantity("excess gain")]
    optimism_nats: Annotated[Optional[Estimate], Quantity("optimism", is_compared=False)]
    corrected_gain_nats: Annotated[Optional[Estimate], Quantity("corrected gain")]
    prediction_recovered: Annotated[
        Optional[Estimate], Quantity("D(k)", unit="", digits=2, is_compared=False, most=1.0)
    ]
    sufficient_share: Annotated[
        Optional[Estimate],
        Quantity(f"share of targets that need at most k ({TOLERANCE:g} nats)", unit="", digits=2, least=0.0, most=1.0),
    ]
    figure4: LineFit

    @property
    def key(self) -> SelectionKey:
        """Selector, context and k."""
        return SelectionKey(self.selector, self.context, self.k)

    def estimate(self, name: str) -> Optional[Estimate]:
        """Return one of ``SELECTION_QUANTITIES`` by its name."""
        assert name in SELECTION_QUANTITIES, name
        value: Optional[Estimate] = getattr(self, name)
        return value

    def without_recovered_fraction(self) -> SelectionSummary:
        """Return the same numbers without R(k), which a gate that did not pass hides."""
        return replace(self, recovered_fraction=None)


@dataclass(frozen=True)
class PredictionRecovered:
    """D(k) of one selector in the real context, with the numbers that it must not be shown without. Missing ones are None.

    Attributes:
        real: D(k).
        random: D(k) of as many random tokens, or groups.
        null: D(k) of the selector under the null context.
    """

    real: Optional[Estimate]
    random: Optional[Estimate]
    null: Optional[Estimate]


@dataclass(frozen=True)
class Summary:
    """The numbers of one measurement.

    Attributes:
        gate: ``passed`` where the 95% interval of ``gate_gain_nats`` lies above 0: the model uses the long context;
            ``not-assessed`` where too few documents give no interval. Where it did not pass, there are no recovered fractions.
        beyond_gate: ``passed`` where the 95% interval of the mean gain beyond the training row lies above 0: the model gains
            from more tokens than a training row has. ``not-applicable`` where no training row is known, or where it is as
            long as the full context. Where it failed or does not apply, the measurement shows selection, not length
            generalization.
        is_fragile: True where the gate passed with a long gain below ``ROBUST_RATIO`` standard errors. Given that the gate
            passed, the interval of R(k) then misses low too often.
        estimand: whose mean every number is.
        null_context: what the long-range tokens of the null context are.
        unit: what is unmasked, ranked and counted: ``token``, ``word``, ``sentence`` or ``block:N``.
        num_units: mean number of long-range tokens of a window, or of groups of them.
        num_windows, num_documents: number of windows, and of documents that they come from.
        overlap_percent: share of the windows, in percent, that hold a run of tokens that training saw; None where unknown.
        loss_short_nats: mean loss with the local tokens alone.
        loss_short_no_gap_nats: mean loss with the local tokens directly behind the anchor, where a training row begins.
        gap_cost_nats: ``loss_short_nats`` minus ``loss_short_no_gap_nats``: what the gap of position IDs in front of the local
            tokens costs.
        gate_gain_nats: the lower of these two losses minus ``loss_long_nats``: what the first gate judges. A long gain that is
            the cost of the gap does not pass.
        loss_train_len_nats: mean loss with as many recent tokens as a training row has, in place; None where no row is known, or
            where it is as long as the full context.
        loss_train_len_no_gap_nats: the same with these tokens directly behind the anchor.
        loss_long_nats: mean loss with all tokens.
        long_gain_nats: ``loss_short_nats`` minus ``loss_long_nats``.
        gain_beyond_nats: the lower of the two losses with a training row's tokens minus ``loss_long_nats``; None where
            they are.
        null_long_gain_nats: the long gain under the null context.
        content_gain_nats: long gain minus that under the null context.
        kl_short_nats: mean divergence of the short-context prediction from the full-context one, the denominator of D(k).
        null_kl_short_nats: the same under the null context.
        none_needed_share: share of the targets that need no long-range token (``spectrum``): the divergence of the short-context
            prediction from the full-context one is at most ``TOLERANCE`` nats.
        null_none_needed_share: the same under the null context.
        optimism_all_nats: optimism of showing all tokens, which selects nothing: it must be 0. None where no labels were drawn.
        corrected_gain_all_nats: ``long_gain_nats`` minus ``optimism_all_nats``.
        calibration_nats: mean entropy of the short-context prediction minus ``loss_short_nats``; 0 if it is calibrated, above 0
            if it is underconfident.
        lengths: lengths and positions of the experiment.
        setup: the model, the definition of visible and the first token.
        source, split: the text that was measured, and the part of it.
        run, run_id: name of the run, and fingerprint of the measurement.
        selections: one entry for every selector, context and k.
        looked_for_overlap: text of training was looked for in the windows; None: the manifest does not say.
    """

    gate: Gate
    beyond_gate: Gate
    is_fragile: bool
    estimand: Estimand
    null_context: NullContext
    unit: str
    num_units: float
    num_windows: int
    num_documents: int
    overlap_percent: Optional[float]
    loss_short_nats: Annotated[Estimate, Quantity("L_short", is_loss=True, least=0.0)]
    loss_short_no_gap_nats: Annotated[
        Estimate, Quantity("L_short without the gap", is_compared=False, is_loss=True, least=0.0)
    ]
    gap_cost_nats: Annotated[
        Estimate,
        Quantity("cost of the gap", is_compared=False, is_loss=True, definition="L_short - L_short without the gap"),
    ]
    loss_train_len_nats: Annotated[
        Optional[Estimate],
        Quantity(
            "loss with the last {row} tokens, as many as a training row has", is_compared=False, is_loss=True, least=0.0
        ),
    ]
    loss_train_len_no_gap_nats: Annotated[
        Optional[Estimate],
        Quantity("loss with the last {row} tokens without the gap", is_compared=False, is_loss=True, least=0.0),
    ]
    loss_long_nats: Annotated[Estimate, Quantity("L_long", is_loss=True, least=0.0)]
    long_gain_nats: Annotated[Estimate, Quantity("long gain", is_loss=True, definition="L_short - L_long")]
    gate_gain_nats: Annotated[
        Estimate,
        Quantity(
            "gain at the gate",
            is_compared=False,
            is_loss=True,
            definition="L_short with or without the gap, whichever is lower, - L_long",
        ),
    ]
    gain_beyond_nats: Annotated[
        Optional[Estimate],
        Quantity(
            "gain beyond the training row",
            is_loss=True,
            definition="loss with the last {row} tokens, with or without the gap, whichever is lower, - L_long",
        ),
    ]
    null_long_gain_nats: Annotated[Estimate, Quantity("long gain, null context", is_loss=True)]
    content_gain_nats: Annotated[
        Estimate, Quantity("value of the content", is_compared=False, is_loss=True, definition="real - null")
    ]
    kl_short_nats: Annotated[Estimate, Quantity("KL(p_all, p_short)", is_compared=False, least=0.0)]
    null_kl_short_nats: Annotated[Estimate, Quantity("KL(p_all, p_short), null context", is_compared=False, least=0.0)]
    none_needed_share: Annotated[
        Optional[Estimate],
        Quantity(f"share of targets that need none ({TOLERANCE:g} nats)", unit="", digits=2, least=0.0, most=1.0),
    ]
    null_none_needed_share: Annotated[
        Optional[Estimate],
        Quantity(
            f"share of targets that need none ({TOLERANCE:g} nats), null context",
            unit="",
            digits=2,
            is_compared=False,
            least=0.0,
            most=1.0,
        ),
    ]
    optimism_all_nats: Annotated[Optional[Estimate], Quantity("optimism of all tokens", is_compared=False)]
    corrected_gain_all_nats: Annotated[Optional[Estimate], Quantity("corrected gain of all tokens", is_compared=False)]
    calibration_nats: Annotated[
        Estimate, Quantity("calibration", is_compared=False, definition="entropy of p_short - L_short")
    ]
    lengths: Lengths
    setup: ModelSetup
    source: str
    split: str
    run: str
    run_id: str
    selections: tuple[SelectionSummary, ...]
    looked_for_overlap: Optional[bool] = None

    @cached_property
    def _by_key(self) -> dict[SelectionKey, SelectionSummary]:
        return {selection.key: selection for selection in self.selections}

    def at(self, selector: str, context: str, k: int) -> SelectionSummary:
        """Return the entry of one selector, context and k.

        Raises:
            KeyError: it was not measured.
        """
        return self._by_key[SelectionKey(selector, context, k)]

    def prediction_recovered(self, selector: str, k: int) -> PredictionRecovered:
        """Return D(k) of a measured selector in the real context, with the numbers that belong beside it."""

        def of(name: str, context: str) -> Optional[Estimate]:
            entry = self._by_key.get(SelectionKey(name, context, k))
            return None if entry is None else entry.prediction_recovered

        return PredictionRecovered(
            real=of(selector, "real"),
            random=of("random", "real"),
            null=of(selector, "null"),
        )

    def of_windows(self, name: str) -> Optional[Estimate]:
        """Return a mean over all windows, such as ``long_gain_nats``, by its name; one of ``WINDOW_QUANTITIES``."""
        value: Optional[Estimate] = getattr(self, name)
        return value

    def without_recovered_fractions(self) -> Summary:
        """Return the same numbers as where the gate did not pass: without R(k)."""
        return replace(
            self,
            is_fragile=False,
            selections=tuple(selection.without_recovered_fraction() for selection in self.selections),
        )

    @property
    def may_be_gap(self) -> bool:
        """True if the long gain lies above 0, but not the gain at the gate: the long gain may be the cost of the gap."""
        return self.gate == "failed" and self.long_gain_nats.is_above_zero

    @property
    def gate_passed(self) -> bool:
        """True if the model uses the long context."""
        return self.gate == "passed"

    @property
    def beyond_gate_passed(self) -> bool:
        """True if the model gains from more tokens than a training row has."""
        return self.beyond_gate == "passed"

    @property
    def selectors(self) -> list[str]:
        """The measured selectors, in the order of the tables."""
        return list(dict.fromkeys(selection.selector for selection in self.selections))

    @property
    def blind_selectors(self) -> list[str]:
        """The measured selectors that do not see the target, without `random`; the headline is theirs.

        Those that choose by a divergence from the full-context prediction come first.
        """
        blind = [name for name in self.selectors if name != "random" and not self.sees_target(name)]
        return sorted(blind, key=lambda name: not (name in SELECTORS and SELECTORS[name].by_divergence))

    @property
    def seeing_selectors(self) -> list[str]:
        """The measured selectors that see the target, in the order of ``SELECTORS``."""
        seeing = [name for name in self.selectors if self.sees_target(name)]
        return sorted(seeing, key=lambda name: [*SELECTORS, name].index(name))

    def sees_target(self, selector: str) -> bool:
        """Return True if a measured selector sees the target."""
        return next(entry for entry in self.selections if entry.selector == selector).info.sees_target

    @property
    def ks(self) -> list[int]:
        """The measured k, rising."""
        return sorted({selection.k for selection in self.selections})

    @property
    def shown_ks(self) -> list[int]:
        """The k of short tables (``shown_ks``), rising."""
        return shown_ks(self.ks, self.num_units)

    @property
    def end_ks(self) -> list[int]:
        """The smallest and the largest of ``shown_ks``, once if they are the same: the k of sentences and headlines."""
        return sorted({self.shown_ks[0], self.shown_ks[-1]})

    @property
    def ks_of_few(self) -> list[int]:
        """The smallest and the largest of ``shown_ks`` up to a quarter of all: the k of conclusions about few."""
        quarter = quarter_ks(self.shown_ks, self.num_units)
        return sorted({quarter[0], quarter[-1]})


WINDOW_QUANTITIES = _quantities(Summary)
SELECTION_QUANTITIES = _quantities(SelectionSummary)
QUANTITIES = {**WINDOW_QUANTITIES, **SELECTION_QUANTITIES}


def gate_of(gain: Estimate) -> Gate:
    """Return ``passed`` if the 95% interval of a mean gain lies above 0, ``not-assessed`` if it has none."""
    if not gain.has_interval:
        return "not-assessed"
    return "passed" if gain.is_above_zero else "failed"


def beyond_gate_of(gain: Optional[Estimate], lengths: Lengths) -> Gate:
    """Return the gate beyond the training row, which applies where tokens of the full context lie beyond a known row."""
    if lengths.train_len is None or lengths.is_ceiling:
        return "not-applicable"
    assert gain is not None  # a mean over one window or more
    return gate_of(gain)


def is_fragile(gain: Estimate) -> bool:
    """Return True if the interval of a gain lies above 0, but its mean is less than ``ROBUST_RATIO`` standard errors.

    Fractions of such a gain miss low: it is more often too large than too small, given that its interval lies above 0.
    """
    error = gain.standard_error
    return gain.is_above_zero and error is not None and gain.mean < ROBUST_RATIO * error


def _overlap_percent(measurement: Measurement) -> Optional[float]:
    windows = measurement.windows
    if "train_overlap" not in windows:
        return None
    return 100 * float(np.average(windows["train_overlap"].to_numpy(np.float64), weights=measurement.weights_W))


def _looked_for_overlap(measurement: Measurement) -> Optional[bool]:
    asked: Optional[bool] = measurement.manifest.get("influence", {}).get("train_overlap")
    return asked and measurement.lengths.full_len + 1 >= NGRAM


def summarize(measurement: Measurement, method: IntervalMethod = "percentile") -> Summary:
    """Return the numbers of one measurement, with intervals over documents.

    Args:
        measurement: the windows and their numbers.
        method: the kind of interval of what is no share of targets; ``bca`` for few documents.
    """
    sums = sums_by_unit(measurement)
    numbers = estimates(sums, lambda totals: quantities_of(totals, measurement.keys), method=method)
    return summary_of_numbers(measurement, numbers)


def summary_of_numbers(measurement: Measurement, numbers: Mapping[Key, Optional[Estimate]]) -> Summary:
    """Return the summary that holds these numbers, and the gates that follow from them.

    Args:
        measurement: the windows that the numbers are of.
        numbers: estimates of all that ``quantities_of`` returns.
    """

    long_gain, at_gate = numbers["long_gain_nats"], numbers["gate_gain_nats"]
    assert long_gain is not None and at_gate is not None  # means over one window or more
    gate = gate_of(at_gate)
    selections = [_selection_summary(key, measurement, numbers=numbers) for key in measurement.keys]
    if gate != "passed":
        selections = [selection.without_recovered_fraction() for selection in selections]
    manifest = measurement.manifest
    of_windows: dict[str, Any] = {name: numbers.get(name) for name in WINDOW_QUANTITIES}
    return Summary(
        gate=gate,
        beyond_gate=beyond_gate_of(numbers.get("gain_beyond_nats"), measurement.lengths),
        is_fragile=gate == "passed" and is_fragile(long_gain),
        estimand=measurement.estimand,
        null_context=measurement.null_context,
        unit=measurement.unit,
        num_units=measurement.num_units,
        num_windows=len(measurement.windows),
        num_documents=measurement.num_documents,
        overlap_percent=_overlap_percent(measurement),
        looked_for_overlap=_looked_for_overlap(measurement),
        **of_windows,
        lengths=measurement.lengths,
        setup=measurement.setup,
        source=manifest["source"],
        split=manifest["split"],
        run=manifest["run"],
        run_id=manifest["run_id"],
        selections=tuple(selections),
    )


def _selection_summary(
    key: SelectionKey, measurement: Measurement, *, numbers: Mapping[Key, Optional[Estimate]]
) -> SelectionSummary:
    def estimate(name: str) -> Optional[Estimate]:
        return numbers.get(SelectionNumber(key, name))

    return SelectionSummary(
        selector=key.selector,
        context=key.context,
        k=key.k,
        mean_tokens=measurement.mean_tokens(key),
        all_visible_share=measurement.all_visible_share(key),
        info=measurement.selectors[key.selector],
        **{name: estimate(name) for name in SELECTION_QUANTITIES},
        figure4=LineFit(estimate("ols_slope"), estimate("tls_slope"), estimate("correlation")),
    )
