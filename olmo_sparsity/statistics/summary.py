"""The summary of one measurement: R(k), excess over the null context, gain over random, Figure 4's slopes, the gate.

Every number has a 95% interval by bootstrap over documents. All share the same resamples (``bootstrap``), so that differences
and ratios are paired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Optional

from olmo_sparsity.statistics.bootstrap import estimates
from olmo_sparsity.statistics.effective_sparsity import EffectiveSparsity, effective_sparsity
from olmo_sparsity.statistics.estimate import Estimate
from olmo_sparsity.statistics.lines import LineFit
from olmo_sparsity.statistics.measurement import Lengths, Measurement, SelectionKey, SelectorInfo
from olmo_sparsity.statistics.sums import Key, SelectionNumber, quantities_of, sums_by_unit

Gate = Literal["passed", "failed"]
MAIN_SELECTORS = ("unmask-one", "kl", "attention", "random")  # shown where there is no room for all nine
# The estimates of a selection, in the order in which they are listed.
ESTIMATES = (
    "gain_sparse_nats",
    "recovered_fraction",
    "gain_over_random_nats",
    "excess_gain_nats",
    "excess_recovered_fraction",
    "excess_over_random_nats",
)
FRACTIONS = ("recovered_fraction", "excess_recovered_fraction")  # those that a failed gate hides


@dataclass(frozen=True)
class SelectionSummary:
    """The numbers of one selector, context and k. Missing numbers are None.

    Attributes:
        selector: name of the selector.
        context: ``real`` or ``null``.
        k: number of unmasked long-range tokens.
        info: whether the selector sees the target, and what it costs.
        gain_sparse_nats: mean sparse gain.
        recovered_fraction: R(k), mean sparse gain over the mean long gain of the real context (in both contexts). None where
            the gate failed.
        gain_over_random_nats: sparse gain minus that of `random`, window by window. In the real context, and of a selector
            that does not see the target, it shows whether the selector selects anything. None for `random` itself and
            where `random` was not measured.
        excess_gain_nats: sparse gain minus that of the null context, window by window; real context only.
        excess_recovered_fraction: excess gain over the mean long gain; real context only, None where the gate failed.
        excess_over_random_nats: excess gain minus that of `random`. Foreign tokens mislead a model, so that `random` has an
            excess as well.
        figure4: the long gain (y) against the sparse gain (x), both of this context, one point a window.
    """

    selector: str
    context: str
    k: int
    info: SelectorInfo
    gain_sparse_nats: Optional[Estimate]
    recovered_fraction: Optional[Estimate]
    gain_over_random_nats: Optional[Estimate]
    excess_gain_nats: Optional[Estimate]
    excess_recovered_fraction: Optional[Estimate]
    excess_over_random_nats: Optional[Estimate]
    figure4: LineFit

    @property
    def key(self) -> SelectionKey:
        """Selector, context and k."""
        return SelectionKey(self.selector, self.context, self.k)

    def estimate(self, name: str) -> Optional[Estimate]:
        """Return one of the numbers ``ESTIMATES`` by its name."""
        assert name in ESTIMATES, name
        value: Optional[Estimate] = getattr(self, name)
        return value

    def without_fractions(self) -> SelectionSummary:
        """Return the same numbers without those that a failed gate hides."""
        return replace(self, recovered_fraction=None, excess_recovered_fraction=None)


@dataclass(frozen=True)
class Summary:
    """The numbers of one measurement.

    Attributes:
        gate: ``passed`` where the 95% interval of the mean long gain lies above 0: the model uses the long context. Where it
            failed, there are no recovered fractions and no effective sparsity.
        num_windows: number of windows.
        num_documents: number of documents that they come from.
        loss_short_nats: mean loss with the local tokens alone.
        loss_long_nats: mean loss with all tokens.
        long_gain_nats: mean of the first minus the second.
        null_long_gain_nats: the same under the null context.
        content_gain_nats: long gain minus that under the null context.
        lengths: lengths and positions of the experiment.
        source: the text that was measured.
        split: the part of it.
        run: name of the run.
        run_id: fingerprint of the measurement.
        selections: one entry for every selector, context and k.
        effective_sparsity: one entry for every selector and fraction.
    """

    gate: Gate
    num_windows: int
    num_documents: int
    loss_short_nats: Estimate
    loss_long_nats: Estimate
    long_gain_nats: Estimate
    null_long_gain_nats: Estimate
    content_gain_nats: Estimate
    lengths: Lengths
    source: str
    split: str
    run: str
    run_id: str
    selections: tuple[SelectionSummary, ...]
    effective_sparsity: tuple[EffectiveSparsity, ...]

    @cached_property
    def _by_key(self) -> dict[SelectionKey, SelectionSummary]:
        return {selection.key: selection for selection in self.selections}

    def at(self, selector: str, context: str, k: int) -> SelectionSummary:
        """Return the entry of one selector, context and k.

        Raises:
            KeyError: it was not measured.
        """
        return self._by_key[SelectionKey(selector, context, k)]

    def of_windows(self, name: str) -> Estimate:
        """Return a mean over all windows, such as ``long_gain_nats``, by its name."""
        value: Estimate = getattr(self, name)
        return value

    def sparsity_at(self, selector: str, fraction: float) -> EffectiveSparsity:
        """Return the effective sparsity of one selector at one of the fractions ``RECOVERED``."""
        return next(e for e in self.effective_sparsity if (e.selector, e.fraction) == (selector, fraction))

    @property
    def gate_passed(self) -> bool:
        """True if the model uses the long context."""
        return self.gate == "passed"

    @property
    def selectors(self) -> list[str]:
        """The measured selectors, in the order of the tables."""
        return list(dict.fromkeys(selection.selector for selection in self.selections))

    @property
    def ks(self) -> list[int]:
        """The measured k, rising."""
        return sorted({selection.k for selection in self.selections})


def gate_of(long_gain: Estimate) -> Gate:
    """Return ``passed`` if the 95% interval of the mean long gain lies above 0: the model uses the long context."""
    return "passed" if long_gain.is_above_zero else "failed"


def summarize(measurement: Measurement) -> Summary:
    """Return the numbers of one measurement, with intervals by bootstrap over documents."""
    sums = sums_by_unit(measurement)
    numbers = estimates(sums, lambda totals: quantities_of(totals, measurement.keys))

    def of_windows(name: str) -> Estimate:
        estimate = numbers[name]
        assert estimate is not None, name  # a mean over one window or more
        return estimate

    long_gain = of_windows("long_gain_nats")
    gate = gate_of(long_gain)
    selections = [
        _selection_summary(key, measurement.selectors[key.selector], numbers=numbers) for key in measurement.keys
    ]
    if gate == "failed":
        selections = [selection.without_fractions() for selection in selections]
    manifest = measurement.manifest
    return Summary(
        gate=gate,
        num_windows=len(measurement.windows),
        num_documents=measurement.num_documents,
        loss_short_nats=of_windows("loss_short_nats"),
        loss_long_nats=of_windows("loss_long_nats"),
        long_gain_nats=long_gain,
        null_long_gain_nats=of_windows("null_long_gain_nats"),
        content_gain_nats=of_windows("content_gain_nats"),
        lengths=measurement.lengths,
        source=manifest["source"],
        split=manifest["split"],
        run=manifest["run"],
        run_id=manifest["run_id"],
        selections=tuple(selections),
        effective_sparsity=effective_sparsity(measurement, sums, gate_passed=gate == "passed"),
    )


def _selection_summary(
    key: SelectionKey, info: SelectorInfo, *, numbers: Mapping[Key, Optional[Estimate]]
) -> SelectionSummary:
    def estimate(name: str) -> Optional[Estimate]:
        return numbers.get(SelectionNumber(key, name))

    return SelectionSummary(
        selector=key.selector,
        context=key.context,
        k=key.k,
        info=info,
        gain_sparse_nats=estimate("gain_sparse_nats"),
        recovered_fraction=estimate("recovered_fraction"),
        gain_over_random_nats=estimate("gain_over_random_nats"),
        excess_gain_nats=estimate("excess_gain_nats"),
        excess_recovered_fraction=estimate("excess_recovered_fraction"),
        excess_over_random_nats=estimate("excess_over_random_nats"),
        figure4=LineFit(estimate("ols_slope"), estimate("tls_slope"), estimate("correlation")),
    )
