"""What a run is trained on where its text is a synthetic task: batches that are drawn, not read."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch

from olmo_sparsity.config import Config, Place, PoseConfig, SyntheticConfig, fingerprint, require
from olmo_sparsity.files import sha256_text
from olmo_sparsity.synthetic.background import NUM_NOISE, Background, noise, open_background
from olmo_sparsity.synthetic.planted import GENERATOR_VERSION
from olmo_sparsity.synthetic.sequences import (
    EOS_ID,
    Sequences,
    parity_sequences,
    parity_words,
    variable_sequences,
    variable_words,
    word_tokenizer,
)
from olmo_sparsity.torchrun import ProcessInfo
from olmo_sparsity.train.batches import IGNORE_INDEX, Batch
from olmo_sparsity.train.data import TEXT, DataSource, TrainingData
from olmo_sparsity.train.evaluation import EvaluationRows
from olmo_sparsity.train.positions import pose_positions, random_positions
from olmo_sparsity.train.processes import share_of_rows

# The embeddings of positions that fit each way to give their IDs. A shift of all IDs changes nothing where distances count.
EMBEDDINGS: dict[str, tuple[str, ...]] = {
    "pose": ("rope", "none"),
    "randpos": ("rope", "absolute"),
    "shifted": ("absolute",),
    "coupled": ("absolute",),
    "predicted": ("absolute",),
}
# Purposes of random generators, so that held-out and evaluated sequences are not those of a training step.
VALIDATION, EVALUATION = 1_000_003, 1_000_004
# What the seed of evaluated sequences ends with, by the place of the planted tokens; L/S: 3, L or 0, S.
PLACE_SEEDS: dict[Optional[Place], list[int]] = {None: [], "inside": [1], "beyond": [2]}


def shifted_ids(rng: np.random.Generator, ids_BT: np.ndarray, *, length_B: np.ndarray, max_position: int) -> np.ndarray:
    """Add to the position IDs of each row one random shift, uniform among those that keep them below ``max_position``.

    Args:
        rng: the random generator.
        ids_BT: int64, IDs from 0.
        length_B: int64, tokens of each row that are not filling; only their IDs must stay below ``max_position``.
        max_position: the bound.

    Returns:
        int64 [B, T]; 0 in the filling.

    Raises:
        ValueError: the IDs of a row do not fit.
    """
    is_used_BT = np.arange(ids_BT.shape[1]) < length_B[:, None]
    room_B = max_position - np.where(is_used_BT, ids_BT, 0).max(axis=1)
    if (room_B < 1).any():
        raise ValueError(f"position IDs up to {max_position - int(room_B.min())} do not lie below {max_position}")
    shift_B = (rng.random(len(ids_BT)) * room_B).astype(np.int64)
    return np.where(is_used_BT, ids_BT + shift_B[:, None], 0)


def spread_ids(
    rng: np.random.Generator, *, length_B: np.ndarray, row_len: int, max_position: int, num_chunks: Optional[int]
) -> np.ndarray:
    """Draw position IDs of PoSE or RandPos for rows of several lengths.

    Args:
        rng: the random generator.
        length_B: int64, tokens of each row that are not filling.
        row_len: T.
        max_position: the IDs lie below this.
        num_chunks: chunks of a row, each with its own skip; None: RandPos, which has none.

    Returns:
        int64 [B, T]; 0 in the filling.

    Raises:
        ValueError: a row is longer than ``max_position``, or has fewer tokens than chunks.
    """
    ids_BT = np.zeros((len(length_B), row_len), dtype=np.int64)
    for length in np.unique(length_B).tolist():
        rows = np.flatnonzero(length_B == length)
        if num_chunks is None:
            ids_BT[rows, :length] = random_positions(rng, len(rows), row_len=length, max_position=max_position)
        else:
            ids_BT[rows, :length] = pose_positions(
                rng, len(rows), row_len=length, max_position=max_position, num_chunks=num_chunks
            )
    return ids_BT


@dataclass(frozen=True)
class PlacedSequences:
    """Sequences and their position IDs, int64 [B, T]."""

    sequences: Sequences
    ids_BT: np.ndarray


def words_of(settings: SyntheticConfig, num_background: Optional[int] = None) -> list[str]:
    """Return the words of a task, by token ID.

    Args:
        settings: the task.
        num_background: number of background tokens; None: those of noise.
    """
    if settings.task == "variables":
        return variable_words(settings.num_names)
    return parity_words(num_background or NUM_NOISE, modulus=settings.modulus)


def draw_sequences(
    settings: SyntheticConfig,
    rng: np.random.Generator,
    *,
    length_B: np.ndarray,
    k_B: np.ndarray,
    row_len: int,
    background: Optional[Background] = None,
    within: Optional[tuple[int, int]] = None,
) -> Sequences:
    """Draw sequences of a task.

    Args:
        settings: the task.
        rng: the random generator.
        length_B: int64, tokens of each prompt, without the query.
        k_B: int64, the sparsity of each.
        row_len: T.
        background: of a parity task; None: noise.
        within: first position at which a parity task plants tokens, and the end of these; None: the whole prompt.
    """
    if settings.task == "variables":
        return variable_sequences(
            rng, length_B, k_B, num_names=settings.num_names, scratchpad=settings.scratchpad, row_len=row_len
        )
    return parity_sequences(
        rng,
        length_B,
        k_B,
        background=background or noise(NUM_NOISE),
        scratchpad=settings.scratchpad,
        row_len=row_len,
        modulus=settings.modulus,
        locality=settings.locality,
        spread=settings.spread,
        within=within,
    )


def _placed(config: Config, rng: np.random.Generator, sequences: Sequences, *, training: bool) -> PlacedSequences:
    settings, max_position = config.synthetic, config.max_position
    num_rows, row_len = sequences.tokens_BT.shape
    length_B = sequences.prompt_len_B + sequences.response_len_B
    if settings.positions == "randpos" or (settings.positions == "pose" and training):
        num_chunks = config.pose.num_chunks if settings.positions == "pose" else None
        ids_BT = spread_ids(rng, length_B=length_B, row_len=row_len, max_position=max_position, num_chunks=num_chunks)
        return PlacedSequences(sequences, ids_BT)
    is_consecutive = settings.positions in ("pose", "shifted")
    ids_BT = np.broadcast_to(np.arange(row_len), (num_rows, row_len)) if is_consecutive else sequences.coupled_BT
    if settings.positions == "pose":
        return PlacedSequences(sequences, ids_BT)
    return PlacedSequences(sequences, shifted_ids(rng, ids_BT, length_B=length_B, max_position=max_position))


def evaluated_sequences(
    config: Config, length: int, k: int, *, place: Optional[Place] = None, background: Optional[Background] = None
) -> PlacedSequences:
    """Return the ``test_rows`` sequences of one length and sparsity; they do not depend on ``training.seed``.

    Args:
        config: the experiment.
        length: tokens of each prompt, without the query.
        k: the sparsity.
        place: where the planted tokens lie, as ``test_row_len`` says; None: as in training.
        background: as in ``draw_sequences``.
    """
    settings = config.synthetic
    within = None if place is None else settings.places_planted(length, place)
    rng = np.random.default_rng([TEST_SEED, EVALUATION, length, k, *PLACE_SEEDS[place]])
    sequences = draw_sequences(
        settings,
        rng,
        length_B=np.full(settings.test_rows, length),
        k_B=np.full(settings.test_rows, k),
        row_len=settings.row_len(length, k),
        background=background,
        within=within,
    )
    return _placed(config, rng, sequences, training=False)


def training_sequences(
    config: Config, rng: np.random.Generator, *, num_rows: int, background: Optional[Background] = None
) -> PlacedSequences:
    """Draw training sequences: k uniform from 1 to ``max_sparsity``, lengths uniform between ``train_lengths``."""
    settings = config.synthetic
    shortest, longest = settings.train_lengths
    length_B = rng.integers(shortest, longest + 1, num_rows)
    k_B = rng.integers(1, settings.max_sparsity + 1, num_rows)
    row_len = settings.row_len(longest, settings.max_sparsity)
    sequences = draw_sequences(
        settings,
        rng,
        length_B=length_B,
        k_B=k_B,
        row_len=row_len,
        background=background,
    )
    return _placed(config, rng, sequences, training=True)


def synthetic_batch(
    config: Config,
    *,
    num_rows: int,
    seed: list[int],
    rows: slice = slice(None),
    background: Optional[Background] = None,
) -> Batch:
    """Return a batch of training sequences, or a process's share of it. The result depends on the arguments alone.

    Targets are the response tokens. Where position IDs are predicted, the batch has those of the response tokens, too.

    Args:
        config: the experiment.
        num_rows: B, the rows of the whole batch.
        seed: of the random generator.
        rows: the share of the rows that is returned.
        background: as in ``draw_sequences``.
    """
    placed = training_sequences(config, np.random.default_rng(seed), num_rows=num_rows, background=background)
    is_target_BT = placed.sequences.is_response_BT[:, 1:]

    def targets(values_BT: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.where(is_target_BT, values_BT[:, 1:], IGNORE_INDEX)[rows])

    is_predicted = config.synthetic.positions == "predicted"
    return Batch(
        tokens_BT=torch.from_numpy(placed.sequences.tokens_BT[rows, :-1].copy()),
        positions_BT=torch.from_numpy(placed.ids_BT[rows, :-1].copy()),
        targets_BT=targets(placed.sequences.tokens_BT),
        num_targets=int(is_target_BT.sum()),
        target_positions_BT=targets(placed.ids_BT) if is_predicted else None,
    )


def check_synthetic(config: Config) -> None:
    """Check that the task, the positions and the model of an experiment fit together.

    Raises:
        UserError: they do not.
    """
    settings = config.synthetic
    embedding, fitting = config.model.position_embedding, EMBEDDINGS[settings.positions]
    require(
        embedding in fitting,
        f"model.position_embedding = {embedding}: synthetic.positions = {settings.positions} takes {' or '.join(fitting)}",
    )
    require(
        config.pose.method == "pose" and not config.context.bos,
        f"pose.method = {config.pose.method}, context.bos = {config.context.bos}: synthetic tasks have no BOS, and RandPos as "
        "synthetic.positions = randpos",
    )
    used = {name: getattr(config.pose, name) for name in ("method", "num_chunks", "max_position")}
    for field in dataclasses.fields(PoseConfig):
        require(
            field.name in used or getattr(config.pose, field.name) == field.default,
            f"pose.{field.name} = {getattr(config.pose, field.name)}: synthetic tasks use pose.num_chunks and pose.max_position "
            "only; leave it out",
        )
    longest = max(
        settings.row_len(settings.train_lengths[1], settings.max_sparsity),
        settings.row_len(settings.test_lengths[-1], settings.test_sparsity[-1]),
    )
    require(
        longest <= config.max_position,
        f"pose.max_position = {config.max_position}: the longest sequence has {longest} tokens, so as many positions are needed",
    )
    shortest = settings.row_len(settings.train_lengths[0], 1)
    require(
        config.pose.num_chunks <= shortest,
        f"pose.num_chunks = {config.pose.num_chunks}: must be at most {shortest}, the tokens of the shortest training sequence",
    )


def open_synthetic_data(config: Config, process: ProcessInfo) -> TrainingData:
    """Return the training data of a synthetic task.

    Raises:
        UserError: the configuration is not usable.
    """
    check_synthetic(config)
    settings, training = config.synthetic, config.training
    background, held_out_background = open_background(config, "train"), open_background(config, "validation")
    words = words_of(settings, background.num_tokens)
    tokenizer_text = word_tokenizer(words).to_str()
    share = share_of_rows(training.batch_rows, process, key="training.batch_rows")
    eval_share = share_of_rows(training.eval_rows, process, key="training.eval_rows")

    def draw(step: int) -> Batch:
        return synthetic_batch(
            config, num_rows=training.batch_rows, seed=[training.seed, step], rows=share, background=background
        )

    held_out = synthetic_batch(
        config, num_rows=training.eval_rows, seed=[VALIDATION, 0], rows=eval_share, background=held_out_background
    )
    return TrainingData(
        vocab_size=len(words),
        eos_id=EOS_ID,
        tokenizer_text=tokenizer_text,
        manifest_entries={
            "synthetic_task": settings.task,
            "tokens_sha256": generated_sha256(settings, background),
            "tokenizer_sha256": sha256_text(tokenizer_text),
        },
        row_len=_row_len(config),
        num_bos=0,
        described=f"{settings.task}{f' modulo {settings.modulus}' * (settings.modulus != 2)}"
        f"{' with a scratchpad' * settings.scratchpad}, k to {settings.max_sparsity}, background {settings.background}, prompts "
        f"of {settings.train_lengths[0]} to {settings.train_lengths[1]} tokens, position IDs {settings.positions}, embedding "
        f"{config.model.position_embedding}",
        draw=draw,
        evaluation_rows=EvaluationRows(held_out, consecutive=None, num_bos=0),
        few_targets=background.text_sha256 is not None,
    )


def generated_sha256(settings: SyntheticConfig, background: Background) -> str:
    """Return a hash of what training sequences are drawn from: equal where another run draws the same with the same seed."""
    generated = [settings.task, settings.scratchpad, NUM_NOISE, settings.num_names, settings.locality]
    # What a version of the package without these keys drew has the hash that it wrote.
    later = [settings.modulus, background.text_sha256]
    return fingerprint(GENERATOR_VERSION, *generated, settings.spread, *(later if later != [2, None] else []))


def _row_len(config: Config) -> int:
    """Return the tokens of the longest training row; its last one is a target alone."""
    settings = config.synthetic
    return settings.row_len(settings.train_lengths[1], settings.max_sparsity) - 1


def _least_vocab_size(config: Config) -> int:
    is_text = config.synthetic.background == "text"
    return len(words_of(config.synthetic, TEXT.least_vocab_size(config) if is_text else None))


def _least_logits(config: Config) -> int:
    """Return the tokens of a row whose logits are computed at least: where the background is text, only those of an answer."""
    return 1 if config.synthetic.background == "text" else _row_len(config)


TEST_SEED = 0  # of evaluated sequences
SYNTHETIC = DataSource(
    open_synthetic_data,
    row_len=_row_len,
    least_vocab_size=_least_vocab_size,
    least_logits=_least_logits,
    is_synthetic=True,
)
