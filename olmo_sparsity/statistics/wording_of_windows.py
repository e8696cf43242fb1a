"""Sentences about the numbers of one window, which is no sample."""

from __future__ import annotations

from olmo_sparsity.statistics.wording_of_units import unit_words

GATE_NOT_ASSESSED = "not assessed"
GATE_WORDS = (
    "Gate not assessed: one window is no sample. Its numbers say what the model does here; whether the long context is worth "
    "anything on average takes many windows of many documents (olmo-sparsity influence)."
)


def gains_caption(unit: str) -> str:
    """Return what the columns of gains are; ``unit`` says what k counts."""
    return (
        f"Gain over random: sparse gain minus that of as many random {unit_words(unit)}, one draw of them. Luck: mean sparse "
        "gain on resampled targets, of selectors that see the target; real minus luck is what is left."
    )
