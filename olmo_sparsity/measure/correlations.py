"""Planted correlations: noise in which the target is a function of k tokens at random long-range positions.

Source: Definition 3.2 of Golowich et al. (arXiv 2502.16792), drawn by ``olmo_sparsity.synthetic.planted``. A small model, the
solver (``olmo_sparsity.measure.solver``), is trained on such sequences.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import numpy as np
from tokenizers import Tokenizer

from olmo_sparsity.config import ContextConfig
from olmo_sparsity.measure.planted import PlantedWindows
from olmo_sparsity.synthetic import sequences
from olmo_sparsity.synthetic.planted import planted_positions

NOISE = tuple(f"n{i}" for i in range(16))
VALUES = tuple(f"v{i}" for i in range(4))
LENGTHS = ContextConfig(local_len=8, full_len=32, train_len=32)


@dataclass(frozen=True)
class Task:
    """What the target is a function of: the sum of k planted values, modulo ``modulus``."""

    suite: str
    k: int
    _: KW_ONLY
    modulus: int

    @property
    def answers(self) -> list[str]:
        """The words that may be targets, by the value they stand for."""
        return [f"{self.suite.removeprefix('planted-')}={value}" for value in range(self.modulus)]


# Modulus 13 leaves a sum of four values unchanged. Every planted token of a sum matters alone; of a parity, only all of
# them together.
TASKS = {
    "sum1": Task("planted-sum", 1, modulus=13),
    "sum2": Task("planted-sum", 2, modulus=13),
    "sum4": Task("planted-sum", 4, modulus=13),
    "parity2": Task("planted-parity", 2, modulus=2),
}


def sequence(rng: np.random.Generator, name: str) -> tuple[list[str], list[int]]:
    """Return (``full_len`` words and the target, the planted positions in order) of a task.

    The words are noise, with k planted values among the long-range ones; the last word names the task. The target is the
    sum of the values, modulo the task's modulus.
    """
    task = TASKS[name]
    words = [NOISE[i] for i in rng.integers(0, len(NOISE), LENGTHS.full_len)]
    values_K = rng.integers(0, len(VALUES), task.k)
    positions_K = planted_positions(rng, np.array([LENGTHS.num_long_range]), np.array([task.k]))[0]
    for value, position in zip(values_K, positions_K, strict=True):
        words[position] = VALUES[value]
    words[-1] = name
    return [*words, task.answers[values_K.sum() % task.modulus]], positions_K.tolist()


def word_tokenizer() -> Tokenizer:
    """Return the tokenizer of the sequences: each word is one token."""
    answers = {answer for task in TASKS.values() for answer in task.answers}
    return sequences.word_tokenizer([sequences.EOS, *NOISE, *VALUES, *TASKS, *sorted(answers)])


def correlated_windows(name: str, num_windows: int, *, seed: int) -> PlantedWindows:
    """Return windows of a task with all k tokens planted; window i is a function of (seed, task, i) alone."""
    tokenizer = word_tokenizer()
    rows_WT = np.empty((num_windows, LENGTHS.full_len + 1), dtype=np.int64)
    truth_WM = np.zeros((num_windows, LENGTHS.num_long_range), dtype=bool)
    for w in range(num_windows):
        rng = np.random.default_rng([seed, 21, list(TASKS).index(name), w])
        words, positions = sequence(rng, name)
        rows_WT[w] = [tokenizer.token_to_id(word) for word in words]
        truth_WM[w, positions] = True
    doc_ids = [f"{name}-{w}" for w in range(num_windows)]
    return PlantedWindows(TASKS[name].suite, TASKS[name].k, rows_WT=rows_WT, truth_WM=truth_WM, doc_ids=doc_ids)
