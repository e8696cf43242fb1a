"""Sentences about one document of which every token was a target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

DOCUMENT_GATE_WORDS = (
    "Gate not assessed: one document is no sample. Its numbers say what the model does here, token by token. No mean is given: "
    "only many windows of many documents tell whether the long context is worth anything on average (olmo-sparsity influence)."
)


def found_words(
    source: str, k_W: np.ndarray, *, ks: Sequence[int], selector: str, tolerance: float, unit: tuple[str, str]
) -> str:
    """Return how many targets need long-range tokens, and how many of them half of these need, without full stop.

    Args:
        source: name of the document.
        k_W: the smallest measured k that suffices for each target; infinity: more than the largest.
        ks: the measured k.
        selector: whose choices these are.
        tolerance: divergence in nats up to which tokens suffice.
        unit: what k counts, in the singular and the plural.
    """
    needing = k_W[k_W > 0]
    more = f"{tolerance:g} nats"
    if not len(needing):
        return f"the long context changes the prediction of none of the {len(k_W):,} targets of {source} by more than {more}"
    half = next((k for k in ks if (needing <= k).mean() >= 0.5), None)
    if half is None:
        enough = f"half of them need more than {ks[-1]} {unit[ks[-1] != 1]} chosen by {selector}"
    else:
        enough = f"for half of them {half} {unit[half != 1]} chosen by {selector} {'is' if half == 1 else 'are'} enough"
    return (
        f"the long context changes the prediction of {len(needing):,} of the {len(k_W):,} targets of {source} by more than "
        f"{more}; {enough}"
    )


def unmeasured_words(first_target: int, num_tokens: int) -> str:
    """Return in one sentence which tokens of a document are no targets."""
    return (
        f"The first {first_target:,} of the {num_tokens:,} tokens have no full window before them, so they are no targets; later "
        "targets may use them."
    )
