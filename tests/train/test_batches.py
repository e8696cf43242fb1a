"""Batches: against the same draws made row by row, and against the distributions that they should follow."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pose_laws import assert_law, law_of_shifts, law_of_starts, rows_of

from olmo_sparsity.config import PoseConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.train.batches import IGNORE_INDEX, batch_at, row_source

FIELDS = ("tokens_BT", "positions_BT", "targets_BT")
# The first, third and seventh document are too short for a row of 8 tokens and its last target.
LENGTHS = [5, 40, 3, 9, 10, 25, 1, 64]


def store_of_lengths(lengths: list[int]) -> TokenStore:
    """Return documents of these lengths, in which each token is its own index."""
    offsets = np.cumsum([0, *lengths])
    nothing = np.zeros(len(lengths), dtype=np.uint64)
    ends = np.array([len(lengths)])
    return TokenStore(np.arange(offsets[-1]), offsets[:-1], offsets[1:], nothing, ["made up"], ends, "train", "")


@st.composite
def pose_configs(draw: st.DrawFn) -> PoseConfig:
    if draw(st.booleans()) and draw(st.booleans()):
        return PoseConfig(method="randpos")
    return PoseConfig(
        num_chunks=draw(st.integers(1, 8)),
        vary_chunks=draw(st.booleans()),
        contents=draw(st.sampled_from(["contiguous", "matched"])),
    )


def batch_by_hand(
    lengths: list[int], row_len: int, max_position: int, pose: PoseConfig, num_rows: int, seed: int, step: int
) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    """Return (tokens, positions, targets), from the same random numbers, row by row; each token is its own index."""
    rng = np.random.default_rng([seed, step])
    places = [(d, start) for d, length in enumerate(lengths) for start in range(length - row_len)]
    place = rng.integers(len(places), size=num_rows)
    num_chunks, start_draws = [pose.num_chunks] * num_rows, None
    if pose.method == "randpos":
        order = rng.random((num_rows, max_position))
    else:
        if pose.vary_chunks:
            num_chunks = rng.integers(1, pose.num_chunks + 1, size=num_rows).tolist()
        order = rng.random((num_rows, row_len - 1))
        skip_draws = rng.random((num_rows, pose.num_chunks - 1))
        start_draws = rng.random(num_rows) if pose.contents == "matched" else None
    rows: tuple[list[list[int]], list[list[int]], list[list[int]]] = ([], [], [])
    for b in range(num_rows):
        document, start = places[place[b]]
        spare, within = lengths[document] - row_len - 1, list(range(row_len))
        if pose.method == "randpos":
            positions = sorted(sorted(range(max_position), key=lambda p: order[b][p])[:row_len])
        else:
            cuts = sorted(range(1, row_len), key=lambda p: order[b][p - 1])[: num_chunks[b] - 1]
            bound = max_position - row_len if start_draws is None else min(max_position - row_len, spare)
            skips = [0, *sorted(int(draw * (bound + 1)) for draw in skip_draws[b][: num_chunks[b] - 1])]
            positions = [t + skips[sum(cut <= t for cut in cuts)] for t in range(row_len)]
            if start_draws is not None:
                within, start = positions, int(start_draws[b] * (spare - skips[-1] + 1))
        tokens = [sum(lengths[:document]) + start + t for t in within]
        for all_rows, row in zip(rows, (tokens, positions, [token + 1 for token in tokens]), strict=True):
            all_rows.append(row)
    return rows


@given(pose_configs(), st.integers(8, 30), st.lists(st.integers(0, 12), max_size=3), st.integers(0, 2**31))
@settings(deadline=None, max_examples=200)
def test_a_batch_and_its_shares_equal_the_same_draws_made_row_by_row(
    pose: PoseConfig, max_position: int, ends: list[int], seed: int
) -> None:
    """In front of the same rows a BOS stands at position 0, without a target; positions behind it are one higher."""
    store, bounds = store_of_lengths(LENGTHS), [0, *sorted(ends), 12]
    expected = batch_by_hand(LENGTHS, 8, max_position, pose, 12, seed, 3)
    for bos_id in (None, 5):
        source = row_source(store, row_len=8, max_position=max_position, bos_id=bos_id)
        shares = [
            batch_at(source, pose, num_rows=12, seed=seed, step=3, rows=slice(*rows)) for rows in pairwise(bounds)
        ]
        assert {share.num_targets for share in shares} == {12 * 8}  # that of the whole batch
        tokens, positions, targets = (torch.cat([getattr(share, name) for share in shares]) for name in FIELDS)
        if bos_id is not None:
            assert (tokens[:, 0] == 5).all() and (positions[:, 0] == 0).all() and (targets[:, 0] == IGNORE_INDEX).all()
            tokens, positions, targets = tokens[:, 1:], positions[:, 1:] - 1, targets[:, 1:]
        assert (tokens.tolist(), positions.tolist(), targets.tolist()) == expected


def law_of_rows(lengths: list[int], row_len: int, max_position: int, pose: PoseConfig) -> dict[Any, float]:
    """Return the probability of every (tokens, positions), by enumeration of all possible draws."""
    law: Counter[Any] = Counter()
    contiguous = tuple(range(row_len))

    def add(begin: int, within: tuple[int, ...], positions: tuple[int, ...], p: float) -> None:
        law[tuple(begin + t for t in within), positions] += p  # type: ignore[assignment]

    num_places = sum(max(length - row_len, 0) for length in lengths)
    for document, length in enumerate(lengths):
        begin, spare = sum(lengths[:document]), length - row_len - 1
        for start in range(spare + 1):  # no iterations if no row fits
            if pose.method == "randpos":
                subsets = list(combinations(range(max_position), row_len))
                for positions in subsets:
                    add(begin + start, contiguous, positions, 1 / num_places / len(subsets))
                continue
            bound = max_position - row_len
            if pose.contents == "matched":
                bound = min(bound, spare)
            for cuts, p_cuts in law_of_starts(row_len, pose.num_chunks).items():
                for skips, p_skips in law_of_shifts(bound, pose.num_chunks - 1).items():
                    positions = tuple(t + (0, *skips)[sum(cut <= t for cut in cuts)] for t in range(row_len))
                    p = p_cuts * p_skips / num_places
                    if pose.contents == "contiguous":
                        add(begin + start, contiguous, positions, p)
                        continue
                    room = spare - (0, *skips)[-1] + 1
                    for new_start in range(room):
                        add(begin + new_start, positions, positions, p / room)
    return law


@pytest.mark.parametrize(
    ("lengths", "max_position", "pose"),
    [
        ([7, 5], 5, PoseConfig(num_chunks=1)),
        ([7, 2, 5], 5, PoseConfig(num_chunks=3)),
        ([9, 4, 5], 6, PoseConfig(contents="matched")),
        ([9, 4, 5], 6, PoseConfig(contents="matched", num_chunks=3)),
        ([6, 2, 4], 5, PoseConfig(method="randpos")),
    ],
)
def test_rows_follow_their_law(lengths: list[int], max_position: int, pose: PoseConfig) -> None:
    source = row_source(store_of_lengths(lengths), row_len=3, max_position=max_position)
    batch = batch_at(source, pose, num_rows=30_000, seed=1, step=0)
    law = law_of_rows(lengths, 3, max_position, pose)
    assert_law(zip(rows_of(batch.tokens_BT.numpy()), rows_of(batch.positions_BT.numpy()), strict=True), law)


def test_other_steps_and_seeds_are_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    source = row_source(store_of_lengths(LENGTHS), row_len=8, max_position=20)
    drawn = [
        tuple(batch_at(source, PoseConfig(), num_rows=32, seed=seed, step=step).tokens_BT.flatten().tolist())
        for seed, step in ((0, 5), (0, 6), (1, 5), (0, 5))
    ]
    assert len(set(drawn)) == 3 and drawn[0] == drawn[-1]
    batch = batch_at(source, PoseConfig(), num_rows=4, seed=0, step=0)
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)  # which needs a GPU
    pinned = batch.pinned()
    assert all(a is not b and torch.equal(a, b) for a, b in zip(pinned.fields, batch.fields, strict=True))
    assert (pinned.num_targets, pinned.target_positions_BT) == (4 * 8, None)


def test_a_corpus_without_one_long_document() -> None:
    with pytest.raises(
        UserError, match=r"train split is too small: none of its 2 .* of 8 tokens .* \(the longest has 7\)"
    ):
        row_source(store_of_lengths([7, 3]), row_len=8, max_position=20)
    assert row_source(store_of_lengths([7, 9]), row_len=8, max_position=20).documents_g.tolist() == [1]
