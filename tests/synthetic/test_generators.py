"""Every generator against its definition: by enumeration of what it may draw, and by solving each sequence anew."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise
from typing import Any, Optional

import numpy as np
import pytest
from scipy.stats import chisquare

from olmo_sparsity.config import QUERY_TOKENS, Config, ContextConfig, PoseConfig, SyntheticConfig
from olmo_sparsity.synthetic.background import noise
from olmo_sparsity.synthetic.data import training_sequences
from olmo_sparsity.synthetic.planted import planted_positions
from olmo_sparsity.synthetic.sequences import (
    FIRST_NAME_ID,
    VALUES,
    Sequences,
    parity_sequences,
    parity_words,
    variable_sequences,
    variable_words,
    word_tokenizer,
)

NUM = 4000


def allowed_sets(length: int, k: int, *, locality: Optional[int], spread: int) -> dict[tuple[int, ...], float]:
    """Return the probability of every set, from the definition: first the place of the interval, then a set within it."""
    width = min(length, locality or length)
    starts = range(length - width + 1)
    probability: Counter[tuple[int, ...]] = Counter()
    for start in starts:
        within = [
            chosen
            for chosen in combinations(range(start, start + width), k)
            if all(b - a >= spread for a, b in pairwise(chosen))
        ]
        for chosen in within:
            probability[chosen] += 1 / len(starts) / len(within)
    return dict(probability)


@pytest.mark.parametrize(
    ("length", "k", "locality", "spread"),
    [(7, 3, None, 1), (8, 2, None, 3), (7, 2, 4, 1), (9, 3, 7, 2), (5, 1, 2, 4), (6, 6, None, 1), (3, 2, 9, 1)],
)
def test_planted_positions_have_the_distribution_of_the_definition(
    length: int, k: int, locality: Optional[int], spread: int
) -> None:
    rng = np.random.default_rng(0)
    drawn_BK = planted_positions(rng, np.full(NUM, length), np.full(NUM, k), locality=locality, spread=spread)
    expected = allowed_sets(length, k, locality=locality, spread=spread)
    counts = Counter(map(tuple, drawn_BK.tolist()))
    assert set(counts) == set(expected)
    if len(expected) > 1:
        observed = [counts[chosen] for chosen in expected]
        assert chisquare(observed, [NUM * p for p in expected.values()]).pvalue > 1e-3


def test_rows_of_several_lengths_and_sparsities_are_drawn_together() -> None:
    rng = np.random.default_rng(1)
    length_B, k_B = rng.integers(6, 20, NUM), rng.integers(1, 4, NUM)
    drawn_BK = planted_positions(rng, length_B, k_B, locality=6, spread=2)
    assert ((drawn_BK >= 0).sum(axis=1) == k_B).all()
    for row, length, k in zip(drawn_BK, length_B, k_B, strict=True):
        assert (row[k:] == -1).all()
        assert row[0] >= 0 and row[k - 1] < length and row[k - 1] - row[0] < 6
        assert (np.diff(row[:k]) >= 2).all()


@pytest.mark.parametrize(("length", "k", "locality", "spread"), [(3, 4, None, 1), (9, 3, 4, 2), (9, 0, None, 1)])
def test_what_does_not_fit_is_an_error(length: int, k: int, locality: Optional[int], spread: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        planted_positions(np.random.default_rng(0), np.array([length]), np.array([k]), locality=locality, spread=spread)


def parities(*, scratchpad: bool, modulus: int, num: int = 300, num_noise: int = 3) -> Sequences:
    rng = np.random.default_rng(2)
    length_B, k_B = rng.integers(5, 12, num), rng.integers(1, 5, num)
    return parity_sequences(
        rng, length_B, k_B, background=noise(num_noise), scratchpad=scratchpad, row_len=18, modulus=modulus
    )


@pytest.mark.parametrize("modulus", [2, 5])
@pytest.mark.parametrize("scratchpad", [False, True])
def test_a_parity_sequence_read_as_words_is_what_the_definition_says(scratchpad: bool, modulus: int) -> None:
    words, sequences = parity_words(3, modulus=modulus), parities(scratchpad=scratchpad, modulus=modulus)
    values = [str(value) for value in range(modulus)]
    for row in range(len(sequences.tokens_BT)):
        text = [words[token] for token in sequences.tokens_BT[row]]
        query = text.index("=")
        prompt, response = text[:query], text[query + 1 : text.index("<|endoftext|>")]
        at = [i for i, word in enumerate(prompt) if word in values]
        bits = [int(prompt[i]) for i in at]
        prefixes = [str(sum(bits[: i + 1]) % modulus) for i in range(len(bits))]
        assert response == (prefixes if scratchpad else prefixes[-1:])
        assert set(prompt) <= {*values, "n0", "n1", "n2"}
        assert np.flatnonzero(sequences.planted_BT[row]).tolist() == at
        assert (sequences.prompt_len_B[row], sequences.response_len_B[row]) == (query + 1, len(response))
        coupled = sequences.coupled_BT[row].tolist()
        assert coupled[: query + 1] == list(range(query + 1))
        assert coupled[query + 1 : query + 1 + len(response)] == (at if scratchpad else [query + 1])
        behind = len(text) - query - 1 - len(response)
        assert text[-behind:] == ["<|endoftext|>"] * behind and coupled[-behind:] == [0] * behind


def test_all_bits_and_backgrounds_are_equally_likely() -> None:
    rng = np.random.default_rng(3)
    sequences = parity_sequences(
        rng, np.full(NUM, 6), np.full(NUM, 2), background=noise(4), scratchpad=False, row_len=8
    )
    prompt, planted = sequences.tokens_BT[:, :6], sequences.planted_BT[:, :6]
    pairs = Counter(map(tuple, prompt[planted].reshape(-1, 2).tolist()))
    assert len(pairs) == 4
    assert chisquare(list(pairs.values())).pvalue > 1e-3
    drawn = Counter(prompt[~planted].tolist())
    assert sorted(drawn) == [4, 5, 6, 7]
    assert chisquare(list(drawn.values())).pvalue > 1e-3


@pytest.mark.parametrize("scratchpad", [False, True])
def test_a_variable_sequence_read_as_words_is_solved_by_looking_up(scratchpad: bool) -> None:
    rng = np.random.default_rng(4)
    length_B, hops_B = rng.integers(8, 23, 300), rng.integers(1, 5, 300)
    sequences = variable_sequences(rng, length_B, hops_B, num_names=12, scratchpad=scratchpad, row_len=30)
    words = variable_words(12)
    for row, (length, hops) in enumerate(zip(length_B, hops_B, strict=True)):
        text = [words[token] for token in sequences.tokens_BT[row]]
        n = length // 2
        assert text[2 * n] == "?"
        left, right, queried = text[0 : 2 * n : 2], text[1 : 2 * n : 2], text[2 * n + 1]
        assert len(set(left)) == n
        response = text[2 * n + 2 : text.index("<|endoftext|>")]
        chain, at, name = [], [], queried
        while not chain or chain[-1] not in VALUES:
            at.append(left.index(name))
            name = right[at[-1]]
            chain.append(name)
        assert len(chain) == hops
        assert response == (chain if scratchpad else chain[-1:])
        coupled = sequences.coupled_BT[row].tolist()
        assert coupled[: 2 * n + 2] == [i // 2 for i in range(2 * n + 2)]
        assert coupled[2 * n + 2 : 2 * n + 2 + len(response)] == (at if scratchpad else [n + 1])
        behind = len(text) - 2 * n - 2 - len(response)
        assert text[-behind:] == ["<|endoftext|>"] * behind and coupled[-behind:] == [0] * behind
        planted = [False] * (2 * n)
        for i in at:
            planted[2 * i] = planted[2 * i + 1] = True
        assert sequences.planted_BT[row, : 2 * n].tolist() == planted
        # Distractors are chains of the same length, but for what is left over.
        starts = [name for name in left if name not in right]
        lengths = []
        for name in starts:
            steps = 0
            while name not in VALUES:
                name, steps = right[left.index(name)], steps + 1
            lengths.append(steps)
        assert sorted(lengths, reverse=True) == [hops] * (n // hops) + [n % hops] * (n % hops > 0)


def test_the_order_of_assignments_and_the_names_are_uniform() -> None:
    rng = np.random.default_rng(5)
    sequences = variable_sequences(rng, np.full(NUM, 6), np.full(NUM, 3), num_names=4, scratchpad=True, row_len=12)
    orders = Counter(map(tuple, sequences.coupled_BT[:, 8:11].tolist()))
    assert len(orders) == 6
    assert chisquare(list(orders.values())).pvalue > 1e-3
    names = Counter(sequences.tokens_BT[:, 7].tolist())
    assert sorted(names) == list(range(FIRST_NAME_ID, FIRST_NAME_ID + 4))
    assert chisquare(list(names.values())).pvalue > 1e-3


@pytest.mark.parametrize(("length", "hops", "names"), [(8, 5, 8), (20, 2, 9)])
def test_variables_that_do_not_fit_are_an_error(length: int, hops: int, names: int) -> None:
    with pytest.raises(ValueError, match="names do not suffice"):
        variable_sequences(
            np.random.default_rng(0),
            np.array([length]),
            np.array([hops]),
            num_names=names,
            scratchpad=True,
            row_len=40,
        )


def test_each_word_is_one_token() -> None:
    words = variable_words(3)
    encoded = word_tokenizer(words).encode(" ".join(words), add_special_tokens=False)
    assert encoded.ids == list(range(len(words)))


def test_training_has_every_length_and_sparsity_equally_often() -> None:
    """The shortest and the longest prompt, and every k from 1 to K_train; planted where the configuration says."""
    keys: dict[str, Any] = {"test_lengths": [6], "test_sparsity": [1], "locality": 6, "spread": 2}
    settings = SyntheticConfig(max_sparsity=3, train_lengths=[5, 8], **keys)
    config = Config(
        context=ContextConfig(local_len=2, full_len=24, train_len=8),
        pose=PoseConfig(max_position=24),
        synthetic=settings,
    )
    drawn = training_sequences(config, np.random.default_rng(0), num_rows=NUM).sequences
    lengths = Counter((drawn.prompt_len_B - QUERY_TOKENS["parity"]).tolist())
    sparsities = Counter(drawn.planted_BT.sum(axis=1).tolist())
    assert set(lengths) == {5, 6, 7, 8} and set(sparsities) == {1, 2, 3}
    for counts in (lengths, sparsities):
        assert chisquare(list(counts.values())).pvalue > 1e-3
    places = [np.flatnonzero(planted_T) for planted_T in drawn.planted_BT]
    assert max(np.ptp(at) for at in places) == 5 and min(np.diff(at).min() for at in places if len(at) > 1) == 2
