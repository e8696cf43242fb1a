"""Sequences of the synthetic tasks: prompts, responses, the tokens that responses depend on, and coupled position IDs.

**Parity** (Figures 1 and 2 of arXiv 2502.16792). The prompt is background with k planted bits and ends with ``=``. The response
is the parity of the bits; with a scratchpad it is the parity of the first bit, of the first two, ..., of all k. With another
modulus than 2 the planted values are 0 to modulus - 1, and the response is their sum modulo it.

**Variables** (Figure 3). The prompt is a list of assignments of two tokens each, ``NAME VALUE`` or ``NAME NAME``, in random
order, then ``?`` and the queried name. The assignments are chains of k: the last of a chain has a value, every other names the
next. The response is the value at the end of the queried chain; with a scratchpad it is the right-hand side of each assignment
of the chain. All chains have k assignments but one, which has what is left over.

**Coupled position IDs** (Cho et al., arXiv 2405.20671). A response token of a scratchpad has the position ID of the token that
it reads: its planted bit, or its assignment, whose two tokens share one ID. Without a scratchpad the response has the ID of the
token before it plus 1, like any token.

What the tokens are, and that the responses have no end token, are choices made here.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Optional

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from olmo_sparsity.synthetic.background import Background
from olmo_sparsity.synthetic.planted import planted_positions

EOS = "<|endoftext|>"  # fills the end of shorter rows
EOS_ID, QUERY_ID = 0, 1
VALUES = tuple(f"v{i}" for i in range(10))
FIRST_PLANTED_ID = 2
FIRST_VALUE_ID = 2
FIRST_NAME_ID = FIRST_VALUE_ID + len(VALUES)


@dataclass(frozen=True)
class Sequences:
    """Sequences of a task; each is a prompt and its response, filled with EOS up to T.

    Attributes:
        tokens_BT: int64, token IDs.
        coupled_BT: int64, coupled position IDs, from 0; 0 in the filling.
        planted_BT: bool, True at the prompt's tokens that the response depends on.
        prompt_len_B: int64, tokens of each prompt.
        response_len_B: int64, tokens of each response.
    """

    _: KW_ONLY
    tokens_BT: np.ndarray
    coupled_BT: np.ndarray
    planted_BT: np.ndarray
    prompt_len_B: np.ndarray
    response_len_B: np.ndarray

    @property
    def is_response_BT(self) -> np.ndarray:
        """Bool, True at the tokens of the responses."""
        places_T = np.arange(self.tokens_BT.shape[1])
        end_B = self.prompt_len_B + self.response_len_B
        return (places_T >= self.prompt_len_B[:, None]) & (places_T < end_B[:, None])


def parity_words(num_background: int, *, modulus: int = 2) -> list[str]:
    """Return the words of the parity tasks, by token ID: behind the planted values those of the background, by number."""
    return [EOS, "=", *map(str, range(modulus)), *(f"n{i}" for i in range(num_background))]


def variable_words(num_names: int) -> list[str]:
    """Return the words of variable assignment, by token ID."""
    return [EOS, "?", *VALUES, *(f"x{i}" for i in range(num_names))]


def word_tokenizer(words: list[str]) -> Tokenizer:
    """Return a tokenizer for which each word is one token."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def parity_sequences(
    rng: np.random.Generator,
    length_B: np.ndarray,
    num_planted_B: np.ndarray,
    *,
    background: Background,
    scratchpad: bool,
    row_len: int,
    modulus: int = 2,
    locality: Optional[int] = None,
    spread: int = 1,
    within: Optional[tuple[int, int]] = None,
) -> Sequences:
    """Draw sequences of sparse parity, or of sums with another modulus.

    Args:
        rng: the random generator.
        length_B: int64, tokens of each prompt before ``=``.
        num_planted_B: int64, k of each sequence.
        background: draws the tokens that are not planted.
        scratchpad: the response is every prefix's parity instead of the last one.
        row_len: T.
        modulus: planted values are below it, and summed modulo it.
        locality: tokens of the interval that holds the planted values; None: all in which they may lie.
        spread: least distance between planted values.
        within: the first position at which values may be planted and the end of these, of all sequences; None: the whole prompt.

    Raises:
        ValueError: the planted values of a sequence do not fit into its prompt.
    """
    num_rows = len(length_B)
    begin, room_B = (0, length_B) if within is None else (within[0], np.full(num_rows, within[1] - within[0]))
    positions_BK = planted_positions(rng, room_B, num_planted_B, locality=locality, spread=spread)
    is_planted_BK = positions_BK >= 0
    positions_BK[is_planted_BK] += begin
    values_BK = rng.integers(0, modulus, positions_BK.shape) * is_planted_BK
    sum_BK = values_BK.cumsum(axis=1) % modulus
    tokens_BT = FIRST_PLANTED_ID + modulus + background.draw(rng, num_rows, row_len)
    coupled_BT = np.broadcast_to(np.arange(row_len), (num_rows, row_len)).copy()
    planted_BT = np.zeros((num_rows, row_len), dtype=bool)
    row_BK = np.broadcast_to(np.arange(num_rows)[:, None], positions_BK.shape)
    tokens_BT[row_BK[is_planted_BK], positions_BK[is_planted_BK]] = FIRST_PLANTED_ID + values_BK[is_planted_BK]
    planted_BT[row_BK[is_planted_BK], positions_BK[is_planted_BK]] = True
    tokens_BT[np.arange(num_rows), length_B] = QUERY_ID
    prompt_len_B = length_B + 1
    if scratchpad:
        response_len_B = num_planted_B
        place_BK = prompt_len_B[:, None] + np.arange(positions_BK.shape[1])
        tokens_BT[row_BK[is_planted_BK], place_BK[is_planted_BK]] = FIRST_PLANTED_ID + sum_BK[is_planted_BK]
        coupled_BT[row_BK[is_planted_BK], place_BK[is_planted_BK]] = positions_BK[is_planted_BK]
    else:
        response_len_B = np.ones_like(num_planted_B)
        tokens_BT[np.arange(num_rows), prompt_len_B] = FIRST_PLANTED_ID + sum_BK[:, -1]
    return _filled(tokens_BT, coupled_BT, planted_BT, prompt_len_B=prompt_len_B, response_len_B=response_len_B)


def variable_sequences(
    rng: np.random.Generator,
    length_B: np.ndarray,
    num_hops_B: np.ndarray,
    *,
    num_names: int,
    scratchpad: bool,
    row_len: int,
) -> Sequences:
    """Draw sequences of variable assignment.

    Args:
        rng: the random generator.
        length_B: int64, tokens of the assignments of each prompt, two for each; an odd one is rounded down.
        num_hops_B: int64, k of each sequence: the assignments that the response depends on.
        num_names: number of names; each sequence draws its own from them, without replacement.
        scratchpad: the response is the whole chain instead of its value.
        row_len: T.

    Raises:
        ValueError: there are too few names, or too few assignments for a chain.
    """
    num_rows, num_assigned_B = len(length_B), np.asarray(length_B) // 2
    if (num_assigned_B > num_names).any() or (num_hops_B > num_assigned_B).any():
        raise ValueError(f"{num_names} names do not suffice, or the chains are longer than the prompt")
    max_assigned, max_hops = int(num_assigned_B.max()), int(num_hops_B.max())
    name_BN = FIRST_NAME_ID + rng.random((num_rows, num_names)).argsort(axis=1)[:, :max_assigned]
    # Names stand in the order of the chains; the queried chain is the first. Assignment i is written at place_BN[:, i].
    index_N = np.arange(max_assigned)
    ends_chain_BN = (index_N % num_hops_B[:, None] == num_hops_B[:, None] - 1) | (
        index_N == num_assigned_B[:, None] - 1
    )
    next_BN = np.roll(name_BN, -1, axis=1)
    right_BN = np.where(ends_chain_BN, FIRST_VALUE_ID + rng.integers(0, len(VALUES), name_BN.shape), next_BN)
    keys_BN = rng.random((num_rows, max_assigned))
    keys_BN[index_N >= num_assigned_B[:, None]] = 2.0
    place_BN = keys_BN.argsort(axis=1).argsort(axis=1)

    tokens_BT = np.full((num_rows, row_len), EOS_ID, dtype=np.int64)
    coupled_BT = np.zeros((num_rows, row_len), dtype=np.int64)
    planted_BT = np.zeros((num_rows, row_len), dtype=bool)
    is_assigned_BN = index_N < num_assigned_B[:, None]
    row_BN = np.broadcast_to(np.arange(num_rows)[:, None], name_BN.shape)
    for side, side_BN in enumerate((name_BN, right_BN)):
        at = (row_BN[is_assigned_BN], (2 * place_BN + side)[is_assigned_BN])
        tokens_BT[at] = side_BN[is_assigned_BN]
        coupled_BT[at] = place_BN[is_assigned_BN]
        planted_BT[at] = (index_N < num_hops_B[:, None])[is_assigned_BN]
    query_B, rows_B = 2 * num_assigned_B, np.arange(num_rows)
    tokens_BT[rows_B, query_B], tokens_BT[rows_B, query_B + 1] = QUERY_ID, name_BN[:, 0]
    coupled_BT[rows_B, query_B] = coupled_BT[rows_B, query_B + 1] = num_assigned_B
    prompt_len_B = query_B + 2
    if scratchpad:
        is_hop_BK = np.arange(max_hops) < num_hops_B[:, None]
        at = (row_BN[:, :max_hops][is_hop_BK], (prompt_len_B[:, None] + np.arange(max_hops))[is_hop_BK])
        tokens_BT[at] = right_BN[:, :max_hops][is_hop_BK]
        coupled_BT[at] = place_BN[:, :max_hops][is_hop_BK]
        response_len_B = num_hops_B
    else:
        tokens_BT[rows_B, prompt_len_B] = right_BN[rows_B, num_hops_B - 1]
        coupled_BT[rows_B, prompt_len_B] = num_assigned_B + 1
        response_len_B = np.ones_like(num_hops_B)
    return _filled(tokens_BT, coupled_BT, planted_BT, prompt_len_B=prompt_len_B, response_len_B=response_len_B)


def _filled(
    tokens_BT: np.ndarray,
    coupled_BT: np.ndarray,
    planted_BT: np.ndarray,
    *,
    prompt_len_B: np.ndarray,
    response_len_B: np.ndarray,
) -> Sequences:
    """Return the record of sequences, with EOS and position ID 0 behind each response."""
    is_filling_BT = np.arange(tokens_BT.shape[1]) >= (prompt_len_B + response_len_B)[:, None]
    return Sequences(
        tokens_BT=np.where(is_filling_BT, EOS_ID, tokens_BT),
        coupled_BT=np.where(is_filling_BT, 0, coupled_BT),
        planted_BT=planted_BT,
        prompt_len_B=np.asarray(prompt_len_B),
        response_len_B=np.asarray(response_len_B),
    )
