"""Position IDs of synthetic sequences, on cases written by hand and against their definitions."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from olmo_sparsity.config import Config, ContextConfig, ModelConfig, PoseConfig, SyntheticConfig
from olmo_sparsity.synthetic.background import noise
from olmo_sparsity.synthetic.data import (
    evaluated_sequences,
    shifted_ids,
    spread_ids,
    synthetic_batch,
    training_sequences,
)
from olmo_sparsity.synthetic.sequences import parity_sequences, variable_sequences
from olmo_sparsity.train.batches import IGNORE_INDEX


class Scripted(np.random.Generator):
    """A random generator whose draws are written by hand."""

    def __init__(self, floats: list[list[list[float]] | list[float]], integers: list[list[list[int]]]):
        super().__init__(np.random.PCG64(0))
        self._floats, self._integers = iter(floats), iter(integers)

    def random(self, size=None, *args, **kwargs):  # type: ignore[no-untyped-def]
        drawn = np.array(next(self._floats), dtype=float)
        assert drawn.shape == (size if isinstance(size, tuple) else (size,))
        return drawn

    def integers(self, low, high=None, size=None, *args, **kwargs):  # type: ignore[no-untyped-def]
        drawn = np.array(next(self._integers))
        assert drawn.shape == size
        return drawn


def test_coupled_ids_of_a_parity_written_by_hand() -> None:
    """Bits 1 and 1 at positions 1 and 4 of six: a b1 c d b1 e = 1 0; the scratchpad reads 1, then 4."""
    keys = [[0.9, 0.1, 0.8, 0.7, 0.2, 0.6]]
    rng = Scripted([keys, [0.0]], [[[1, 1]], [[0, 1, 2, 0, 1, 2, 0, 1, 2]]])
    sequences = parity_sequences(rng, np.array([6]), np.array([2]), background=noise(3), scratchpad=True, row_len=9)
    assert sequences.tokens_BT.tolist() == [[4, 3, 6, 4, 3, 6, 1, 3, 2]]
    assert sequences.coupled_BT.tolist() == [[0, 1, 2, 3, 4, 5, 6, 1, 4]]


def test_coupled_ids_of_variables_written_by_hand() -> None:
    """Names x2 x0 x1, one chain of 3, written in the order 2, 0, 1: x1 v5, x2 x0, x0 x1, ? x2 -> x0 x1 v5 at 1, 2, 0."""
    rng = Scripted([[[0.5, 0.9, 0.1]], [[0.4, 0.6, 0.2]]], [[[7, 7, 5]]])
    sequences = variable_sequences(rng, np.array([6]), np.array([3]), num_names=3, scratchpad=True, row_len=11)
    x0, x1, x2, v5 = 12, 13, 14, 7
    assert sequences.tokens_BT.tolist() == [[x1, v5, x2, x0, x0, x1, 1, x2, x0, x1, v5]]
    assert sequences.coupled_BT.tolist() == [[0, 0, 1, 1, 2, 2, 3, 3, 1, 2, 0]]


def test_a_shift_is_uniform_and_moves_all_ids_of_a_row_together() -> None:
    ids_BT = np.tile([0, 1, 2, 1, 9], (3000, 1))
    shifted_BT = shifted_ids(np.random.default_rng(0), ids_BT, length_B=np.full(3000, 4), max_position=7)
    shift_B = shifted_BT[:, 0]
    assert (shifted_BT[:, :4] == ids_BT[:, :4] + shift_B[:, None]).all()
    assert (shifted_BT[:, 4] == 0).all()  # the filling, whose ID of 9 does not count
    counts = Counter(shift_B.tolist())
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert chisquare(list(counts.values())).pvalue > 1e-3
    with pytest.raises(ValueError, match="do not lie below 2"):
        shifted_ids(np.random.default_rng(0), ids_BT, length_B=np.full(3000, 4), max_position=2)


def test_pose_ids_cut_each_row_within_its_own_length() -> None:
    length_B = np.repeat([4, 6, 9], 400)
    ids_BT = spread_ids(np.random.default_rng(0), length_B=length_B, row_len=9, max_position=20, num_chunks=2)
    for row, length in zip(ids_BT, length_B, strict=True):
        jumps = np.diff(row[:length])
        assert row[0] == 0 and (jumps >= 1).all() and (jumps > 1).sum() <= 1 and row[length - 1] < 20
        assert (row[length:] == 0).all()
    for length in (4, 6, 9):
        cuts = {int(np.diff(row[:length]).argmax()) for row in ids_BT[length_B == length] if row[length - 1] >= length}
        assert cuts == set(range(length - 1))


def test_random_ids_are_sorted_samples_of_all_ids_for_each_row_within_its_own_length() -> None:
    length_B = np.repeat([2, 3, 5], 2000)
    ids_BT = spread_ids(np.random.default_rng(0), length_B=length_B, row_len=5, max_position=6, num_chunks=None)
    for length in (2, 3, 5):
        rows = ids_BT[length_B == length]
        assert (rows[:, length:] == 0).all() and (np.diff(rows[:, :length], axis=1) >= 1).all()
        counts = Counter(map(tuple, rows[:, :length].tolist()))
        assert sorted(counts) == list(itertools.combinations(range(6), length))  # all samples without replacement
        assert chisquare(list(counts.values())).pvalue > 1e-3


def config(**keys: object) -> Config:
    settings: dict[str, object] = {
        "train_lengths": [6, 10],
        "test_lengths": [8, 12],
        "test_rows": 50,
        "max_sparsity": 3,
    }
    settings |= {"test_sparsity": [2, 3], **keys}
    embedding = "rope" if settings.get("positions", "pose") in ("pose", "randpos") else "absolute"
    return Config(
        context=ContextConfig(local_len=2, full_len=8, train_len=8),
        pose=PoseConfig(max_position=30),
        model=ModelConfig(position_embedding=embedding),  # type: ignore[arg-type]
        synthetic=SyntheticConfig(**settings),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("task", ["parity", "variables"])
@pytest.mark.parametrize("positions", ["shifted", "coupled", "predicted"])
def test_a_batch_trains_the_response_and_its_ids(task: str, positions: str) -> None:
    experiment = config(task=task, positions=positions, scratchpad=True)
    batch = synthetic_batch(experiment, num_rows=40, seed=[0, 3])
    drawn = training_sequences(experiment, np.random.default_rng([0, 3]), num_rows=40)
    sequences = drawn.sequences
    assert batch.num_targets == int(sequences.response_len_B.sum())
    for row in range(40):
        prompt_len, k = int(sequences.prompt_len_B[row]), int(sequences.response_len_B[row])
        trained = np.flatnonzero(batch.targets_BT[row] != IGNORE_INDEX).tolist()
        assert trained == list(range(prompt_len - 1, prompt_len - 1 + k))
        assert batch.targets_BT[row, trained].tolist() == sequences.tokens_BT[row, prompt_len : prompt_len + k].tolist()
        if positions == "predicted":
            assert batch.target_positions_BT is not None
            target_ids = batch.target_positions_BT[row]
            assert target_ids[trained].tolist() == drawn.ids_BT[row, prompt_len : prompt_len + k].tolist()
            assert (target_ids != IGNORE_INDEX).sum() == k
        base = np.arange(sequences.tokens_BT.shape[1]) if positions == "shifted" else sequences.coupled_BT[row]
        shift = drawn.ids_BT[row, 0] - base[0]
        assert (drawn.ids_BT[row, : prompt_len + k] == base[: prompt_len + k] + shift).all()
    assert (batch.target_positions_BT is None) == (positions != "predicted")


def test_evaluated_sequences_do_not_depend_on_training() -> None:
    one = evaluated_sequences(config(), 12, 3)
    other = evaluated_sequences(config(train_lengths=[3, 5], max_sparsity=2), 12, 3)
    assert (one.sequences.tokens_BT == other.sequences.tokens_BT).all()
    assert set(one.sequences.prompt_len_B.tolist()) == {13}
    assert (one.ids_BT == np.arange(14)).all()


def test_randpos_draws_ids_in_training_and_in_evaluation() -> None:
    for placed in (
        training_sequences(config(positions="randpos"), np.random.default_rng(0), num_rows=200),
        evaluated_sequences(config(positions="randpos"), 12, 3),
    ):
        length_B = placed.sequences.prompt_len_B + placed.sequences.response_len_B
        gaps = [np.diff(row[:length]) for row, length in zip(placed.ids_BT, length_B, strict=True)]
        assert min(one.min() for one in gaps) == 1 and max(one.max() for one in gaps) > 5
        assert sum((one > 1).sum() > 1 for one in gaps) > 0.9 * len(gaps)  # more gaps than PoSE has
        assert placed.ids_BT.max() == 29 and len(set(map(tuple, placed.ids_BT.tolist()))) == len(placed.ids_BT)
