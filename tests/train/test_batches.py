"""Batches: against the same draws made row by row, and against the distributions that they should follow."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pose_laws import assert_law, law_of_shifts, law_of_starts, rows_of

from olmo_sparsity.config import Config, PoseConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.preparation import prepare
from olmo_sparsity.text.store import TokenStore, open_store
from olmo_sparsity.train.batches import IGNORE_INDEX, RowSource, batch_at, row_source


@pytest.fixture(scope="module")
def store(tiny_config: Config) -> TokenStore:
    return open_store(prepare(tiny_config.data), "train")


@pytest.fixture(scope="module")
def rows(store: TokenStore, tiny_config: Config) -> RowSource:
    return row_source(store, row_len=8, max_position=20)


def numbered(store: TokenStore) -> TokenStore:
    """Return the same documents with each token replaced by its index, so that a batch shows where it lies."""
    return dataclasses.replace(store, tokens=np.arange(len(store.tokens)))


def store_of_lengths(lengths: list[int]) -> TokenStore:
    """Return documents of these lengths, in which each token is its own index."""
    offsets = np.cumsum([0, *lengths])
    nothing = np.zeros(len(lengths), dtype=np.uint64)
    ends = np.array([len(lengths)])
    return TokenStore(np.arange(offsets[-1]), offsets[:-1], offsets[1:], nothing, ["made up"], ends, "train", "")


LENGTHS = [
    5,
    40,
    3,
    9,
    10,
    25,
    1,
    64,
]  # the first, third and seventh are too short for a row of 8 tokens and its last target


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
    num_chunks = [pose.num_chunks] * num_rows
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
        spare = lengths[document] - row_len - 1
        if pose.method == "randpos":
            positions = sorted(sorted(range(max_position), key=lambda p: order[b][p])[:row_len])
            within = list(range(row_len))
        else:
            cuts = sorted(range(1, row_len), key=lambda p: order[b][p - 1])
            cuts = cuts[: num_chunks[b] - 1]
            chunk = [sum(cut <= t for cut in cuts) for t in range(row_len)]
            bound = max_position - row_len
            if start_draws is not None:
                bound = min(bound, spare)
            skips = [0, *sorted(int(draw * (bound + 1)) for draw in skip_draws[b][: num_chunks[b] - 1])]
            positions = [t + skips[chunk[t]] for t in range(row_len)]
            within = list(range(row_len))
            if start_draws is not None:
                within = positions
                start = int(start_draws[b] * (spare - skips[-1] + 1))
        tokens = [sum(lengths[:document]) + start + t for t in within]
        targets = [token + 1 for token in tokens]
        for all_rows, row in zip(rows, (tokens, positions, targets), strict=True):
            all_rows.append(row)
    return rows


@given(pose_configs(), st.integers(8, 30), st.integers(0, 2**31))
@settings(deadline=None, max_examples=200)
def test_a_batch_equals_the_same_draws_made_row_by_row(pose: PoseConfig, max_position: int, seed: int) -> None:
    batch = batch_at(
        row_source(store_of_lengths(LENGTHS), row_len=8, max_position=max_position),
        pose,
        num_rows=12,
        seed=seed,
        step=3,
    )
    expected = batch_by_hand(LENGTHS, 8, max_position, pose, 12, seed, 3)
    for name, rows in zip(("tokens_BT", "positions_BT", "targets_BT"), expected, strict=True):
        assert getattr(batch, name).tolist() == rows
        assert getattr(batch, name).dtype == torch.int64


@given(pose_configs(), st.integers(8, 30), st.integers(0, 2**31))
@settings(deadline=None, max_examples=200)
def test_rows_lie_in_one_document_in_order_with_the_targets_after_them(
    pose: PoseConfig, max_position: int, seed: int
) -> None:
    source = row_source(store_of_lengths(LENGTHS), row_len=8, max_position=max_position)
    batch = batch_at(source, pose, num_rows=50, seed=seed, step=0)
    index, positions, targets = (x.numpy() for x in (batch.tokens_BT, batch.positions_BT, batch.targets_BT))
    document = source.store.document_of(index)
    assert (document == document[:, :1]).all()
    assert (index[:, -1] + 1 < source.store.ends_G[document[:, 0]]).all()
    text_steps, steps = np.diff(index, axis=1), np.diff(positions, axis=1)
    assert (text_steps >= 1).all() and (steps >= 1).all()
    assert positions.min() >= 0 and positions.max() < max_position
    seam = (text_steps > 1) | (steps > 1)
    if pose.method == "pose":
        assert (positions[:, 0] == 0).all()
        assert seam.sum(axis=1).max() <= pose.num_chunks - 1
    if pose.contents == "matched":
        assert (text_steps == steps).all()
    if pose.contents == "contiguous":
        assert (text_steps == 1).all()
    assert (targets == index + 1).all() and batch.num_targets == targets.size


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
            for cuts, p_cuts in law_of_starts(row_len, pose.num_chunks).items():

                def moved(shifts: tuple[int, ...], cuts: tuple[int, ...] = cuts) -> tuple[int, ...]:
                    return tuple(t + (0, *shifts)[sum(cut <= t for cut in cuts)] for t in range(row_len))

                bound = max_position - row_len
                if pose.contents == "matched":
                    bound = min(bound, spare)
                for skips, p_skips in law_of_shifts(bound, pose.num_chunks - 1).items():
                    positions, p = moved(skips), p_cuts * p_skips / num_places
                    if pose.contents == "contiguous":
                        add(begin + start, contiguous, positions, p)
                    else:
                        room = spare - (0, *skips)[-1] + 1
                        for new_start in range(room):
                            add(begin + new_start, positions, positions, p / room)
    return law


@pytest.mark.parametrize(
    ("lengths", "row_len", "max_position", "pose"),
    [
        ([7, 5], 3, 5, PoseConfig(num_chunks=1)),
        ([7, 2, 5], 3, 5, PoseConfig()),
        ([7, 2, 5], 3, 5, PoseConfig(num_chunks=3)),
        ([9, 4, 5], 3, 6, PoseConfig(contents="matched")),
        ([9, 4, 5], 3, 6, PoseConfig(contents="matched", num_chunks=3)),
        ([6, 2, 4], 3, 5, PoseConfig(method="randpos")),
    ],
)
def test_rows_follow_their_law(lengths: list[int], row_len: int, max_position: int, pose: PoseConfig) -> None:
    batch = batch_at(
        row_source(store_of_lengths(lengths), row_len=row_len, max_position=max_position),
        pose,
        num_rows=30_000,
        seed=1,
        step=0,
    )
    law = law_of_rows(lengths, row_len, max_position, pose)
    assert_law(zip(rows_of(batch.tokens_BT.numpy()), rows_of(batch.positions_BT.numpy()), strict=True), law)


@given(pose_configs(), st.lists(st.integers(0, 12), max_size=3), st.integers(0, 2**31))
@settings(deadline=None, max_examples=60)
def test_the_shares_together_are_the_whole_batch(pose: PoseConfig, ends: list[int], seed: int) -> None:
    source = row_source(store_of_lengths(LENGTHS), row_len=8, max_position=20)
    whole = batch_at(source, pose, num_rows=12, seed=seed, step=7)
    bounds = [0, *sorted(ends), 12]
    parts = [batch_at(source, pose, num_rows=12, seed=seed, step=7, rows=slice(*pair)) for pair in pairwise(bounds)]
    for name in ("tokens_BT", "positions_BT", "targets_BT"):
        assert [len(getattr(part, name)) for part in parts] == np.diff(bounds).tolist()
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))
    assert {part.num_targets for part in parts} == {whole.num_targets}  # every share has the number of the whole batch


def test_only_the_text_of_the_share_is_read() -> None:
    """The token file is cut off where the share ends, so that reading a later row is an error."""
    source = row_source(store_of_lengths([400] * 30), row_len=8, max_position=20)
    whole = batch_at(source, PoseConfig(), num_rows=12, seed=0, step=0)
    for i in range(12):
        end = int(whole.targets_BT[i].max()) + 1
        short = dataclasses.replace(source, store=dataclasses.replace(source.store, tokens=source.store.tokens[:end]))
        share = batch_at(short, PoseConfig(), num_rows=12, seed=0, step=0, rows=slice(i, i + 1))
        assert torch.equal(share.targets_BT, whole.targets_BT[i : i + 1])


def test_a_batch_is_a_function_of_seed_and_step(rows: RowSource) -> None:
    pose = PoseConfig(num_chunks=3)
    first, again = (batch_at(rows, pose, num_rows=32, seed=0, step=5) for _ in range(2))
    for name in ("tokens_BT", "positions_BT", "targets_BT"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    for seed, step in ((0, 6), (1, 5)):
        assert not torch.equal(first.tokens_BT, batch_at(rows, pose, num_rows=32, seed=seed, step=step).tokens_BT)


def test_every_place_is_drawn_equally_often(store: TokenStore, tiny_config: Config) -> None:
    source = row_source(numbered(store), row_len=8, max_position=20)
    starts = torch.cat(
        [batch_at(source, PoseConfig(num_chunks=1), num_rows=4000, seed=0, step=s).tokens_BT[:, 0] for s in range(10)]
    )
    counts = np.bincount(starts.numpy(), minlength=len(store.tokens))
    allowed = np.zeros(len(store.tokens), dtype=bool)
    for begin, end in zip(store.begins_G, store.ends_G, strict=True):
        allowed[begin : max(begin, end - 8)] = True
    assert not counts[~allowed].any()
    mean = 40_000 / allowed.sum()
    assert abs(counts[allowed].var() / mean - 1) < 0.1  # as in a Poisson distribution


def test_a_matched_row_of_a_short_document_stays_inside_it(tiny_config: Config, store: TokenStore) -> None:
    source = row_source(numbered(store), row_len=8, max_position=300)  # most documents are shorter
    batch = batch_at(source, PoseConfig(num_chunks=4, contents="matched"), num_rows=2000, seed=0, step=0)
    document = store.document_of(batch.tokens_BT.numpy())
    assert (document == document[:, :1]).all()


def test_a_corpus_without_one_long_document(store: TokenStore) -> None:
    with pytest.raises(UserError, match=r"none of its \d+ documents holds a row of 4000 tokens"):
        row_source(store, row_len=4000, max_position=5000)
    with pytest.raises(UserError) as refused:
        row_source(store_of_lengths([7, 3]), row_len=8, max_position=20)
    assert str(refused.value) == (
        "the train split is too small: none of its 2 documents holds a row of 8 tokens and its last target (the longest has "
        "7); use more or longer text, or a smaller context.train_len"
    )


def test_positions_may_reach_beyond_the_measured_context(store: TokenStore) -> None:
    batch = batch_at(
        row_source(store, row_len=8, max_position=40), PoseConfig(num_chunks=2), num_rows=2000, seed=0, step=0
    )
    assert 30 < batch.positions_BT.max() < 40


@given(pose_configs(), st.integers(0, 2**31))
@settings(deadline=None, max_examples=30)
def test_the_bos_stands_in_front_of_the_same_rows(pose: PoseConfig, seed: int) -> None:
    """At position 0 and without a target; the row is the one drawn without it, with positions one higher."""
    store = store_of_lengths(LENGTHS)
    plain = batch_at(row_source(store, row_len=8, max_position=20), pose, num_rows=12, seed=seed, step=7)
    source = row_source(store, row_len=8, max_position=20, bos_id=5)
    batch = batch_at(source, pose, num_rows=12, seed=seed, step=7)
    assert batch.tokens_BT[:, 0].tolist() == [5] * 12 and torch.equal(batch.tokens_BT[:, 1:], plain.tokens_BT)
    assert batch.positions_BT[:, 0].tolist() == [0] * 12
    assert torch.equal(batch.positions_BT[:, 1:], plain.positions_BT + 1)
    assert (batch.targets_BT[:, 0] == IGNORE_INDEX).all() and torch.equal(batch.targets_BT[:, 1:], plain.targets_BT)
    assert batch.num_targets == plain.num_targets
