"""Words about planted tokens: the suites, their gates, and how many of the tokens the selectors find."""

from __future__ import annotations

from olmo_sparsity.statistics.detection import Detection, Suite
from olmo_sparsity.wording.numbers import interval

SUITES = {
    "needle-name": "needle: name",
    "needle-number": "needle: number",
}


def suite_words(suite: Suite) -> str:
    """Return the suite and its number of planted tokens."""
    return f"{SUITES[suite.suite]}, {suite.num_planted} {'copy' if suite.num_planted == 1 else 'copies'}"


def suite_gate_words(suite: Suite) -> str:
    """Return that the gate of a suite failed, or is not assessed, and why; empty where it passed."""
    if suite.gate == "passed":
        return ""
    if suite.gate == "not-assessed":
        return "gate not assessed: too few windows"
    return f"gate failed: {'perhaps the cost of the gap' if suite.long_gain_nats.is_above_zero else 'no gain is shown'}"


def detection_finding(numbers: Detection) -> str:
    """Return the highest and the lowest precision of each suite with their selectors, and which gates did not pass."""
    clauses = []
    for suite in numbers.suites:
        known = [(of.precision_at_truth, of.selector) for of in suite.selectors if of.precision_at_truth is not None]
        if known:
            known.sort(key=lambda entry: entry[0].mean)
            (low, worst), (high, best) = known[0], known[-1]
            found = f"{suite_words(suite)}: {best} {interval(high)}"
            if len(known) > 1:
                found += f" at best, {worst} {interval(low)} at worst"
            gate = suite_gate_words(suite)
            clauses.append(f"{found} ({gate})" if gate else found)
    return f"Share of the planted tokens that the selectors find, {'; '.join(clauses)}."
