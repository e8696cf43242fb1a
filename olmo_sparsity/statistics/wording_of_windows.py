"""Sentences about the numbers of one window, which is no sample."""

from __future__ import annotations

GATE_NOT_ASSESSED = "not assessed"
GATE_WORDS = (
    "Gate not assessed: one window is no sample. Its numbers say what the model does here; whether the long context is worth "
    "anything on average takes many windows of many documents (olmo-sparsity influence)."
)
GAINS_CAPTION = (
    "Gain over random: sparse gain minus that of as many random tokens, one draw of them. Luck: mean sparse gain on resampled "
    "targets, of selectors that see the target; real minus luck is what is left."
)
