"""Synthetic tasks whose dependencies are known: their sequences, position IDs and training data.

**Parity** (k-sparse planted correlations: Golowich et al., arXiv 2502.16792, Definition 3.2; Figures 1 and 2). The prompt is
background with k planted bits and ends with ``=``. The response is the parity of the bits; with a scratchpad it is the parity
of the first bit, of the first two, ..., of all k. With another modulus than 2 the planted values are 0 to modulus - 1, and the
response is their sum modulo it. All sets of k places are equally likely.

**Variables** (Figure 3). The prompt is a list of assignments of two tokens each, ``NAME VALUE`` or ``NAME NAME``, in random
order, then ``?`` and the queried name. The assignments are chains of k, but one, which has what is left over: the last of a
chain has a value, every other names the next. The response is the value at the end of the queried chain; with a scratchpad it
is the right-hand side of each assignment of the chain.

**Coupled position IDs** (Cho et al., arXiv 2405.20671). A response token of a scratchpad has the position ID of the token that
it reads: its planted bit, or its assignment, whose two tokens share one ID.

What the tokens are, and that responses have no end token, are choices made here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Optional

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from olmo_sparsity.config import Config, Place, PoseConfig, SyntheticConfig, fingerprint, require
from olmo_sparsity.files import read_manifest_of, sha256_text
from olmo_sparsity.text.prepare import prepare
from olmo_sparsity.text.store import TokenStore, open_store, verify_prepared
from olmo_sparsity.train.batches import IGNORE_INDEX, Batch, TrainingData, batch_at, row_source
from olmo_sparsity.train.positions import pose_positions, random_positions

GENERATOR_VERSION = 1  # part of every fingerprint: increase it when a generator draws other sequences
NUM_NOISE = 4  # different background tokens, if the background is noise
EOS_ID, QUERY_ID, FIRST_ID = 0, 1, 2  # EOS fills the end of shorter rows; then planted values, or values and names
VALUES = tuple(f"v{i}" for i in range(10))
# The embeddings of positions that fit their IDs; all others shift them, which changes nothing where distances count.
EMBEDDINGS = {"pose": ("rope", "none"), "randpos": ("rope", "absolute")}
VALIDATION, EVALUATION, TEST_SEED = 1_000_003, 1_000_004, 0  # seeds of sequences of no training step
PLACE_SEEDS: dict[Optional[Place], list[int]] = {None: [], "inside": [1], "beyond": [2]}
NUM_SEEDS = 2**62  # from which that of the rows of text is drawn


@dataclass(frozen=True)
class Sequences:
    """Prompts and their responses, filled with EOS up to T tokens, and position IDs from 0, which couple a scratchpad."""

    tokens_BT: np.ndarray  # int64
    ids_BT: np.ndarray  # int64
    prompt_len_B: np.ndarray
    response_len_B: np.ndarray

    @property
    def used_BT(self) -> np.ndarray:
        """Bool, True at prompts and responses."""
        return np.arange(self.tokens_BT.shape[1]) < (self.prompt_len_B + self.response_len_B)[:, None]


@dataclass(frozen=True)
class Background:
    """The tokens of parity tasks between the planted ones, by number from 0."""

    num_tokens: int
    draw: Callable[[np.random.Generator, int, int], np.ndarray]  # (generator, B, T) -> int64 [B, T]
    text_sha256: Optional[str] = None  # of the text that they are from; None: they are noise


NOISE = Background(NUM_NOISE, lambda rng, num_rows, row_len: rng.integers(0, NUM_NOISE, (num_rows, row_len)))


def open_background(config: Config, split: str) -> Background:
    """Background of a task: noise, or rows of one split of the text, which is prepared if necessary."""
    settings = config.synthetic
    if settings.background == "noise":
        return NOISE
    folder = prepare(config.data)
    verify_prepared(folder)
    store = open_store(folder, split)
    drawn = {"train_lengths": (settings.train_lengths, settings.max_sparsity)}
    if split == "validation":
        drawn["test_lengths"] = (settings.test_lengths, settings.test_sparsity[-1])
    for name, (lengths, k) in drawn.items():
        row_len, longest = settings.row_len(lengths[-1], k), store.lengths_G.max(initial=0)
        require(
            row_len < longest,
            f"synthetic.{name} = {lengths}: takes rows of {row_len} tokens, and the longest document of the {store.split} split "
            f"has {longest}, of which the last is no part of a row; use longer text, or smaller lengths",
        )
    return text_background(store, read_manifest_of(folder, "vocab_size")["vocab_size"])


def text_background(store: TokenStore, vocab_size: int) -> Background:
    """Background of rows of consecutive tokens of one document, drawn as training rows of text are."""

    def draw(rng: np.random.Generator, num_rows: int, row_len: int) -> np.ndarray:
        source, seed = row_source(store, row_len=row_len, max_position=row_len), int(rng.integers(NUM_SEEDS))
        return batch_at(source, PoseConfig(num_chunks=1), num_rows=num_rows, seed=seed, step=0).tokens_BT.numpy()

    return Background(vocab_size, draw, store.tokens_sha256)


def words_of(settings: SyntheticConfig, num_background: int = NUM_NOISE) -> list[str]:
    """Words of a task, by token ID."""
    if settings.task == "variables":
        return ["<|endoftext|>", "?", *VALUES, *(f"x{i}" for i in range(settings.num_names))]
    return ["<|endoftext|>", "=", *map(str, range(settings.modulus)), *(f"n{i}" for i in range(num_background))]


def planted_positions(rng: np.random.Generator, length_B: np.ndarray, k_B: np.ndarray) -> np.ndarray:
    """Draw k positions below ``length`` of each sequence, int64 [B, largest k], rising; -1 behind the last of a row."""
    keys_BT = rng.random((len(length_B), int(length_B.max())))
    keys_BT[np.arange(keys_BT.shape[1]) >= length_B[:, None]] = 2.0  # above every random number
    at_BK = keys_BT.argsort(axis=1)[:, : int(k_B.max())]
    unused_BK = np.arange(at_BK.shape[1]) >= k_B[:, None]
    at_BK[unused_BK] = np.iinfo(np.int64).max
    at_BK.sort(axis=1)
    rng.random(len(length_B))  # of no use, but without it the published sequences would change
    return np.where(unused_BK, -1, at_BK)


def parity_sequences(
    rng: np.random.Generator,
    settings: SyntheticConfig,
    length_B: np.ndarray,
    k_B: np.ndarray,
    *,
    row_len: int,
    background: Background = NOISE,
    within: Optional[tuple[int, int]] = None,
) -> Sequences:
    """Draw sequences of sparse parity, or of sums with another modulus. ``length_B`` counts the tokens before ``=``.

    ``within``: the first position at which values may be planted and the end of these; None: the whole prompt.
    """
    num_rows, modulus = len(length_B), settings.modulus
    begin, room_B = (0, length_B) if within is None else (within[0], np.full(num_rows, within[1] - within[0]))
    at_BK = planted_positions(rng, room_B, k_B)
    rows, columns = np.nonzero(at_BK >= 0)
    at_BK[rows, columns] += begin
    values_BK = rng.integers(0, modulus, at_BK.shape) * (at_BK >= 0)
    sum_BK = values_BK.cumsum(axis=1) % modulus
    tokens_BT = FIRST_ID + modulus + background.draw(rng, num_rows, row_len)
    ids_BT = np.broadcast_to(np.arange(row_len), (num_rows, row_len)).copy()
    tokens_BT[rows, at_BK[rows, columns]] = FIRST_ID + values_BK[rows, columns]
    tokens_BT[np.arange(num_rows), length_B] = QUERY_ID
    if settings.scratchpad:
        places = (length_B + 1)[rows] + columns
        tokens_BT[rows, places] = FIRST_ID + sum_BK[rows, columns]
        ids_BT[rows, places] = at_BK[rows, columns]
    else:
        tokens_BT[np.arange(num_rows), length_B + 1] = FIRST_ID + sum_BK[:, -1]
    return _filled(tokens_BT, ids_BT, length_B + 1, k_B, settings)


def variable_sequences(
    rng: np.random.Generator, settings: SyntheticConfig, length_B: np.ndarray, k_B: np.ndarray, *, row_len: int
) -> Sequences:
    """Draw sequences of variable assignment; ``length_B`` counts the tokens of the assignments, an odd one is rounded down."""
    num_rows, num_assigned_B = len(length_B), length_B // 2
    max_assigned, max_k, all_rows = int(num_assigned_B.max()), int(k_B.max()), np.arange(num_rows)
    first_name = FIRST_ID + len(VALUES)
    name_BN = first_name + rng.random((num_rows, settings.num_names)).argsort(axis=1)[:, :max_assigned]
    # Names stand in the order of the chains; the queried chain is the first. Assignment i is written at place_BN[:, i].
    index_N = np.arange(max_assigned)
    is_last_BN = (index_N % k_B[:, None] == k_B[:, None] - 1) | (index_N == num_assigned_B[:, None] - 1)
    value_BN = FIRST_ID + rng.integers(0, len(VALUES), name_BN.shape)
    right_BN = np.where(is_last_BN, value_BN, np.roll(name_BN, -1, axis=1))
    keys_BN = rng.random((num_rows, max_assigned))
    keys_BN[index_N >= num_assigned_B[:, None]] = 2.0
    place_BN = keys_BN.argsort(axis=1).argsort(axis=1)

    tokens_BT = np.full((num_rows, row_len), EOS_ID, dtype=np.int64)
    ids_BT = np.zeros((num_rows, row_len), dtype=np.int64)
    rows, assigned = np.nonzero(index_N < num_assigned_B[:, None])
    for side, side_BN in enumerate((name_BN, right_BN)):
        tokens_BT[rows, 2 * place_BN[rows, assigned] + side] = side_BN[rows, assigned]
        ids_BT[rows, 2 * place_BN[rows, assigned] + side] = place_BN[rows, assigned]
    query_B = 2 * num_assigned_B
    tokens_BT[all_rows, query_B], tokens_BT[all_rows, query_B + 1] = QUERY_ID, name_BN[:, 0]
    ids_BT[all_rows, query_B] = ids_BT[all_rows, query_B + 1] = num_assigned_B
    if settings.scratchpad:
        rows, hops = np.nonzero(np.arange(max_k) < k_B[:, None])
        tokens_BT[rows, (query_B + 2)[rows] + hops] = right_BN[rows, hops]
        ids_BT[rows, (query_B + 2)[rows] + hops] = place_BN[rows, hops]
    else:
        tokens_BT[all_rows, query_B + 2] = right_BN[all_rows, k_B - 1]
        ids_BT[all_rows, query_B + 2] = num_assigned_B + 1
    return _filled(tokens_BT, ids_BT, query_B + 2, k_B, settings)


def _filled(
    tokens_BT: np.ndarray, ids_BT: np.ndarray, prompt_len_B: np.ndarray, k_B: np.ndarray, settings: SyntheticConfig
) -> Sequences:
    """Sequences with EOS and position ID 0 behind each response, which has k tokens in a scratchpad, else one."""
    sequences = Sequences(tokens_BT, ids_BT, prompt_len_B, k_B if settings.scratchpad else np.ones_like(k_B))
    used_BT = sequences.used_BT
    return replace(sequences, tokens_BT=np.where(used_BT, tokens_BT, EOS_ID), ids_BT=np.where(used_BT, ids_BT, 0))


def _draw(
    config: Config,
    rng: np.random.Generator,
    length_B: np.ndarray,
    k_B: np.ndarray,
    *,
    row_len: int,
    background: Background,
    within: Optional[tuple[int, int]] = None,
    is_training: bool = False,
) -> Sequences:
    """Draw sequences of a task, with the position IDs that ``synthetic.positions`` gives them."""
    settings, max_position, shape = config.synthetic, config.max_position, (len(length_B), row_len)
    if settings.task == "variables":
        sequences = variable_sequences(rng, settings, length_B, k_B, row_len=row_len)
    else:
        sequences = parity_sequences(
            rng, settings, length_B, k_B, row_len=row_len, background=background, within=within
        )
    used_BT, ids_BT = sequences.used_BT, sequences.ids_BT
    if settings.positions in ("pose", "shifted"):
        ids_BT = np.broadcast_to(np.arange(row_len), shape)
    if settings.positions == "randpos" or (settings.positions == "pose" and is_training):
        draw: Callable[..., np.ndarray] = random_positions
        if settings.positions == "pose":
            draw = functools.partial(pose_positions, num_chunks=config.pose.num_chunks)
        ids_BT, used_B = np.zeros(shape, dtype=np.int64), used_BT.sum(axis=1)
        for length in np.unique(used_B).tolist():
            rows = np.flatnonzero(used_B == length)
            ids_BT[rows, :length] = draw(rng, len(rows), row_len=length, max_position=max_position)
    elif settings.positions != "pose":  # a random shift, uniform among those that keep the IDs below the bound
        room_B = max_position - np.where(used_BT, ids_BT, 0).max(axis=1)
        shift_B = (rng.random(len(room_B)) * room_B).astype(np.int64)
        ids_BT = np.where(used_BT, ids_BT + shift_B[:, None], 0)
    return replace(sequences, ids_BT=ids_BT)


def evaluated_sequences(
    config: Config, length: int, k: int, *, place: Optional[Place] = None, background: Background = NOISE
) -> Sequences:
    """The ``test_rows`` sequences of one length (without the query), sparsity and place of the planted tokens."""
    settings = config.synthetic
    rng = np.random.default_rng([TEST_SEED, EVALUATION, length, k, *PLACE_SEEDS[place]])
    length_B, k_B = (np.full(settings.test_rows, number) for number in (length, k))
    within = None if place is None else settings.places(length)[place]
    row_len = settings.row_len(length, k)
    return _draw(config, rng, length_B, k_B, row_len=row_len, background=background, within=within)


def training_batch(
    config: Config, *, num_rows: int, seed: list[int], rows: slice = slice(None), background: Background = NOISE
) -> Batch:
    """A batch of training sequences, or a process's share (``rows``) of it: k uniform from 1 to ``max_sparsity``, lengths
    uniform between ``train_lengths``. Targets are the response tokens and, where they are predicted, their position IDs.
    """
    settings, rng = config.synthetic, np.random.default_rng(seed)
    shortest, longest = settings.train_lengths
    length_B = rng.integers(shortest, longest + 1, num_rows)
    k_B = rng.integers(1, settings.max_sparsity + 1, num_rows)
    row_len = settings.row_len(longest, settings.max_sparsity)
    drawn = _draw(config, rng, length_B, k_B, row_len=row_len, background=background, is_training=True)
    is_target_BT = (drawn.used_BT & (np.arange(row_len) >= drawn.prompt_len_B[:, None]))[:, 1:]
    both = (drawn.tokens_BT, drawn.ids_BT)
    tokens, ids = (torch.from_numpy(values_BT[rows, :-1].copy()) for values_BT in both)
    targets_bT = (np.where(is_target_BT, values_BT[:, 1:], IGNORE_INDEX)[rows] for values_BT in both)
    next_tokens, next_ids = map(torch.from_numpy, targets_bT)
    num_targets, predicts_ids = int(is_target_BT.sum()), settings.positions == "predicted"
    return Batch(tokens, ids, next_tokens, num_targets, next_ids if predicts_ids else None)


def check_task(config: Config) -> None:
    """Raise UserError if the task, the positions and the model of an experiment do not fit together."""
    settings, pose, embedding = config.synthetic, config.pose, config.model.position_embedding
    fitting = EMBEDDINGS.get(settings.positions, ("absolute",))
    require(
        embedding in fitting,
        f"model.position_embedding = {embedding}: synthetic.positions = {settings.positions} takes {' or '.join(fitting)}",
    )
    require(
        pose == PoseConfig(num_chunks=pose.num_chunks, max_position=pose.max_position) and not config.context.bos,
        "synthetic tasks use pose.num_chunks and pose.max_position only, and have no BOS; leave the other keys of pose and "
        "context.bos out (RandPos is synthetic.positions = randpos)",
    )
    (shortest, longest), evaluated = settings.train_lengths, (settings.test_lengths[-1], settings.test_sparsity[-1])
    longest = max(settings.row_len(longest, settings.max_sparsity), settings.row_len(*evaluated))
    shortest = settings.row_len(shortest, 1)
    require(
        longest <= config.max_position,
        f"pose.max_position = {config.max_position}: the longest sequence has {longest} tokens, so as many positions are needed",
    )
    require(
        pose.num_chunks <= shortest,
        f"pose.num_chunks = {pose.num_chunks}: must be at most {shortest}, the tokens of the shortest training sequence",
    )


def generated_sha256(settings: SyntheticConfig, background: Background) -> str:
    """Hash of what training sequences are drawn from: equal where another run draws the same with the same seed."""
    names = ("task", "scratchpad", "num_names", "modulus")
    return fingerprint(GENERATOR_VERSION, *(getattr(settings, name) for name in names), background.text_sha256)


def open_task(config: Config) -> TrainingData:
    """Training data of a synthetic task. UserError: the configuration is not usable."""
    check_task(config)
    settings, training = config.synthetic, config.training
    background, held_out_background = open_background(config, "train"), open_background(config, "validation")
    words = words_of(settings, background.num_tokens)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[EOS_ID]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()

    def draw(step: int, rows: slice) -> Batch:
        seed = [training.seed, step]
        return training_batch(config, num_rows=training.batch_rows, seed=seed, rows=rows, background=background)

    def draw_held_out(rows: slice) -> tuple[Batch, None]:
        num_rows, seed = training.eval_rows, [VALIDATION, 0]
        return training_batch(config, num_rows=num_rows, seed=seed, rows=rows, background=held_out_background), None

    name = f"{settings.task}{f' modulo {settings.modulus}' * (settings.modulus != 2)}{' with a scratchpad' * settings.scratchpad}"
    shortest, longest = settings.train_lengths
    return TrainingData(
        vocab_size=len(words),
        eos_id=EOS_ID,
        tokenizer_text=tokenizer.to_str(),
        manifest_entries={
            "synthetic_task": settings.task,
            "tokens_sha256": generated_sha256(settings, background),
            "tokenizer_sha256": sha256_text(tokenizer.to_str()),
        },
        row_len=settings.row_len(longest, settings.max_sparsity) - 1,  # the last token is a target alone
        num_bos=0,
        described=f"{name}, k to {settings.max_sparsity}, background {settings.background}, prompts of {shortest} to {longest} "
        f"tokens, position IDs {settings.positions}, embedding {config.model.position_embedding}",
        draw=draw,
        draw_held_out=draw_held_out,
        few_targets=background.text_sha256 is not None,
    )
