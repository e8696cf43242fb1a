from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from olmo_sparsity.batches import RowSource, batch_at, row_source
from olmo_sparsity.config import Config, PoseConfig, UserError
from olmo_sparsity.tokens import TokenStore, open_store, prepare


@pytest.fixture(scope="module")
def store(tiny_config: Config) -> TokenStore:
    return open_store(prepare(tiny_config.data), "train")


@pytest.fixture(scope="module")
def rows(store: TokenStore, tiny_config: Config) -> RowSource:
    return row_source(store, 8, 20)


def numbered(store: TokenStore) -> TokenStore:
    """The same documents, each token its own index: a batch then says where it was cut."""
    return dataclasses.replace(store, tokens=np.arange(len(store.tokens)))


@pytest.mark.parametrize("contents", ["contiguous", "matched"])
@pytest.mark.parametrize("num_chunks", [1, 2, 5])
def test_rows_are_pieces_of_one_document_and_targets_follow(
    store: TokenStore, tiny_config: Config, contents: str, num_chunks: int
) -> None:
    source = row_source(numbered(store), 8, 20)
    batch = batch_at(source, PoseConfig(num_chunks=num_chunks, contents=contents), 500, seed=1, step=2)  # type: ignore[arg-type]
    index = batch.tokens_BT.numpy()
    document = store.document_of(index)
    assert (document == document[:, :1]).all()
    assert (batch.targets_BT.numpy() == index + 1).all()
    assert (index[:, -1] + 1 < store.ends[document[:, 0]]).all()
    within = index - index[:, :1]
    expected = batch.positions_BT.numpy() if contents == "matched" else np.broadcast_to(np.arange(8), within.shape)
    assert (within == expected).all()
    assert batch.positions_BT.max() < 20


def test_a_batch_is_a_function_of_seed_and_step(rows: RowSource) -> None:
    pose = PoseConfig(num_chunks=3)
    first, _, again = batch_at(rows, pose, 32, 0, 5), batch_at(rows, pose, 32, 0, 6), batch_at(rows, pose, 32, 0, 5)
    for name in ("tokens_BT", "positions_BT", "targets_BT"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    for seed, step in ((0, 6), (1, 5)):
        assert not torch.equal(first.tokens_BT, batch_at(rows, pose, 32, seed, step).tokens_BT)


def test_every_place_is_drawn_equally_often(store: TokenStore, tiny_config: Config) -> None:
    source = row_source(numbered(store), 8, 20)
    starts = torch.cat([batch_at(source, PoseConfig(num_chunks=1), 4000, 0, s).tokens_BT[:, 0] for s in range(10)])
    counts = np.bincount(starts.numpy(), minlength=len(store.tokens))
    allowed = np.zeros(len(store.tokens), dtype=bool)
    for begin, end in zip(store.begins, store.ends, strict=True):
        allowed[begin : max(begin, end - 8)] = True
    assert not counts[~allowed].any()
    mean = 40_000 / allowed.sum()
    assert abs(counts[allowed].var() / mean - 1) < 0.1  # as a Poisson law has it


def test_a_matched_row_of_a_short_document_stays_inside_it(tiny_config: Config, store: TokenStore) -> None:
    source = row_source(numbered(store), 8, 300)  # most documents are shorter
    batch = batch_at(source, PoseConfig(num_chunks=4, contents="matched"), 2000, 0, 0)
    document = store.document_of(batch.tokens_BT.numpy())
    assert (document == document[:, :1]).all()


def test_a_corpus_without_one_long_document(store: TokenStore) -> None:
    with pytest.raises(UserError, match=r"none of its \d+ documents holds a row of 4000 tokens"):
        row_source(store, 4000, 5000)


def test_positions_may_reach_beyond_the_measured_context(store: TokenStore) -> None:
    batch = batch_at(row_source(store, 8, 40), PoseConfig(num_chunks=2), 2000, 0, 0)
    assert 30 < batch.positions_BT.max() < 40
