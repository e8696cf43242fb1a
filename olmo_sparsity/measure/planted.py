"""Windows whose long-range dependency is known because it was planted.

A *needle* is a made-up name or number that is planted among the long-range tokens of a natural window and completed by its
target.
"""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass

import numpy as np
from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError

NEEDLES = ("needle-name", "needle-number")
LEAST_NEEDLE_TOKENS, MAX_NEEDLE_TOKENS = 2, 4
MAX_ATTEMPTS = 1000
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class PlantedWindows:
    """Windows of one suite, and where their targets depend on the long-range tokens.

    Attributes:
        suite: name of the suite.
        num_planted: copies of the needle.
        rows_WT: int64, tokens of the windows and, last, their targets.
        truth_WM: bool, True at the planted long-range positions.
        doc_ids: document of each window, the unit of the bootstrap.
    """

    suite: str
    num_planted: int
    _: KW_ONLY
    rows_WT: np.ndarray
    truth_WM: np.ndarray
    doc_ids: list[str]

    @property
    def full_len(self) -> int:
        """Tokens of a window, without the target."""
        return self.rows_WT.shape[1] - 1

    @property
    def num_long_range(self) -> int:
        """M, the number of long-range tokens of a window."""
        return self.truth_WM.shape[1]

    def subset(self, chosen_w: np.ndarray) -> PlantedWindows:
        """Return some of the windows (int64 indices)."""
        return dataclasses.replace(
            self,
            rows_WT=self.rows_WT[chosen_w],
            truth_WM=self.truth_WM[chosen_w],
            doc_ids=[self.doc_ids[i] for i in chosen_w],
        )


def made_up_word(rng: np.random.Generator, suite: str) -> str:
    """Return a name that no text holds, such as `` Vobalik``, or a number of three to five digits; a space precedes it."""
    if suite == "needle-number":
        digits = int(rng.integers(3, 6))
        return f" {rng.integers(10 ** (digits - 1), 10**digits)}"
    syllables = [str(rng.choice(list(CONSONANTS))) + str(rng.choice(list(VOWELS))) for _ in range(rng.integers(2, 4))]
    return " " + "".join(syllables).capitalize() + str(rng.choice(list(CONSONANTS)))


def _needle(rng: np.random.Generator, suite: str, *, tokenizer: Tokenizer, max_tokens: int) -> list[int]:
    for _ in range(MAX_ATTEMPTS):
        tokens: list[int] = tokenizer.encode(made_up_word(rng, suite), add_special_tokens=False).ids
        if LEAST_NEEDLE_TOKENS <= len(tokens) <= max_tokens:
            return tokens
    raise UserError(
        f"{suite}: with this tokenizer no made-up word has {LEAST_NEEDLE_TOKENS} to {max_tokens} tokens, so nothing can be "
        "planted; validation.needle_copies or the number of local tokens may leave too little room"
    )


def needle_windows(
    suite: str,
    copies: int,
    *,
    rows_WT: np.ndarray,
    doc_ids: list[str],
    num_long_range: int,
    tokenizer: Tokenizer,
    seed: int,
) -> PlantedWindows:
    """Plant a needle into each of W natural windows.

    Whole copies of it are placed among the long-range tokens, uniformly and without overlap. The window ends with its
    beginning, so that the needle's last token is the target.

    Args:
        suite: one of ``NEEDLES``.
        copies: how many copies among the long-range tokens.
        rows_WT: int64, natural windows and, last, their targets.
        doc_ids: document of each window.
        num_long_range: M.
        tokenizer: of the windows.
        seed: window i is a function of (seed, suite, copies, i) alone.

    Raises:
        UserError: there is no room for a needle.
    """
    planted_WT, truth_WM = rows_WT.copy(), np.zeros((len(rows_WT), num_long_range), dtype=bool)
    max_tokens = min(MAX_NEEDLE_TOKENS, rows_WT.shape[1] - 1 - num_long_range, num_long_range // copies)
    for w in range(len(rows_WT)):
        rng = np.random.default_rng([seed, 10 + NEEDLES.index(suite), copies, w])
        needle = _needle(rng, suite, tokenizer=tokenizer, max_tokens=max_tokens)
        size = len(needle)
        # Uniform among all ways to place the copies: choose among the places that remain when each copy shrinks to one.
        shrunk = np.sort(rng.permutation(num_long_range - copies * (size - 1))[:copies])
        for start in shrunk + np.arange(copies) * (size - 1):
            planted_WT[w, start : start + size] = needle
            truth_WM[w, start : start + size] = True
        planted_WT[w, -size:] = needle
    return PlantedWindows(suite, copies, rows_WT=planted_WT, truth_WM=truth_WM, doc_ids=doc_ids)
