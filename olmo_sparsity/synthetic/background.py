"""The background of the parity tasks: the tokens between the planted ones, uniform noise or natural text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Optional

import numpy as np

from olmo_sparsity.config import Config, PoseConfig, SyntheticConfig, require
from olmo_sparsity.files import read_manifest_of
from olmo_sparsity.text.preparation import prepare
from olmo_sparsity.text.store import TokenStore, open_store
from olmo_sparsity.text.verification import verify_prepared
from olmo_sparsity.train.batches import batch_at, row_source

NUM_NOISE = 4  # different tokens of noise
NUM_SEEDS = 2**62  # from which that of the rows of text is drawn


@dataclass(frozen=True)
class Background:
    """Background tokens, by number from 0.

    Attributes:
        num_tokens: how many there are.
        draw: takes a random generator, B and T; returns the numbers of the tokens of each row, int64 [B, T].
        text_sha256: hash of the text that they are from; None: they are noise.
    """

    _: KW_ONLY
    num_tokens: int
    draw: Callable[[np.random.Generator, int, int], np.ndarray]
    text_sha256: Optional[str] = None


def noise(num_tokens: int) -> Background:
    """Return a background of tokens that are drawn independently, each equally likely."""
    return Background(
        num_tokens=num_tokens, draw=lambda rng, num_rows, row_len: rng.integers(0, num_tokens, (num_rows, row_len))
    )


def text(store: TokenStore, *, vocab_size: int) -> Background:
    """Return a background of text: each row is consecutive tokens of one document, drawn as training rows of text are.

    A token's number is its ID in the text. ``draw`` raises UserError where no document is long enough for a row.
    """

    def draw(rng: np.random.Generator, num_rows: int, row_len: int) -> np.ndarray:
        source = row_source(store, row_len=row_len, max_position=row_len)
        seed = int(rng.integers(NUM_SEEDS))
        return batch_at(source, PoseConfig(num_chunks=1), num_rows=num_rows, seed=seed, step=0).tokens_BT.numpy()

    return Background(num_tokens=vocab_size, draw=draw, text_sha256=store.tokens_sha256)


def _check_longest_row(settings: SyntheticConfig, store: TokenStore) -> None:
    """Check that some document holds the longest row that is drawn from it, of training or of held-out documents."""
    longest = int(store.lengths_G.max()) if store.num_documents else 0
    drawn = {"train_lengths": (settings.train_lengths, settings.max_sparsity)}
    if store.split == "validation":
        drawn["test_lengths"] = (settings.test_lengths, settings.test_sparsity[-1])
    for name, (lengths, k) in drawn.items():
        row_len = settings.row_len(lengths[-1], k)
        require(
            row_len < longest,
            f"synthetic.{name} = {lengths}: takes rows of {row_len} tokens, and the longest document of the {store.split} split "
            f"has {longest}, of which the last is no part of a row; use longer text, or smaller lengths",
        )


def open_background(config: Config, split: str) -> Background:
    """Return the background of a task, from one split of the text if it is text; prepares that where it is not prepared yet.

    Raises:
        UserError: the text is not usable, or has no document as long as the longest row.
    """
    if config.synthetic.background == "noise":
        return noise(NUM_NOISE)
    folder = prepare(config.data)
    verify_prepared(folder)
    store = open_store(folder, split)
    _check_longest_row(config.synthetic, store)
    return text(store, vocab_size=read_manifest_of(folder, "vocab_size")["vocab_size"])
