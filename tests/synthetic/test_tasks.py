"""Synthetic tasks against their definitions: by enumeration of what may be drawn, and by solving each sequence again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from pose_laws import assert_law
from scipy.stats import chisquare
from tiny_stores import tiny_store

from olmo_sparsity.config import Config, ContextConfig, ModelConfig, PoseConfig, SyntheticConfig
from olmo_sparsity.synthetic.tasks import (
    FIRST_ID,
    VALUES,
    Sequences,
    evaluated_sequences,
    open_task,
    parity_sequences,
    planted_positions,
    text_background,
    training_batch,
    variable_sequences,
    words_of,
)
from olmo_sparsity.train.batches import IGNORE_INDEX, batch_at, row_source

NUM = 4000
WAYS = ("pose", "randpos", "shifted", "coupled", "predicted")


def config(positions: str = "pose", *, max_position: int = 30, **keys: Any) -> Config:
    given = {
        "train_lengths": [6, 10],
        "test_lengths": [8, 12],
        "test_rows": 50,
        "max_sparsity": 3,
        "test_sparsity": [2, 3],
    }
    return Config(
        context=ContextConfig(local_len=2, full_len=8, train_len=8),
        pose=PoseConfig(max_position=max_position, num_chunks=2),
        model=ModelConfig(position_embedding="rope" if positions in ("pose", "randpos") else "absolute"),
        synthetic=SyntheticConfig(positions=positions, **{"scratchpad": True, **given, **keys}),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(("length", "k"), [(7, 3), (5, 1), (3, 2)])
def test_planted_positions_have_the_distribution_of_the_definition(length: int, k: int) -> None:
    """Rows of other lengths and k are drawn together with these."""
    sets = [*combinations(range(length), k)]
    length_B, k_B = np.array([length, length + 9] * NUM), np.array([k, 1] * NUM)
    drawn_BK = planted_positions(np.random.default_rng(0), length_B, k_B)
    assert_law(map(tuple, drawn_BK[::2].tolist()), dict.fromkeys(sets, 1 / len(sets)))
    assert (drawn_BK[1::2, 1:] == -1).all() and (drawn_BK[1::2, 0] >= 0).all()


def words_in(words: list[str], sequences: Sequences, row: int) -> tuple[list[str], list[int], int]:
    """Return the words of a row, its IDs, and where its prompt ends; behind the response there is only filling."""
    text, end = [words[token] for token in sequences.tokens_BT[row]], int(sequences.prompt_len_B[row])
    ids, length = sequences.ids_BT[row].tolist(), end + int(sequences.response_len_B[row])
    assert set(text[length:]) <= {"<|endoftext|>"} and not any(ids[length:]) and "<|endoftext|>" not in text[:length]
    return text[:length], ids[:length], end


@pytest.mark.parametrize("modulus", [2, 5])
@pytest.mark.parametrize("scratchpad", [False, True])
def test_a_parity_sequence_read_as_words_is_what_the_definition_says(scratchpad: bool, modulus: int) -> None:
    rng, settings = np.random.default_rng(2), config(scratchpad=scratchpad, modulus=modulus).synthetic
    length_B, k_B = rng.integers(5, 12, 600), rng.integers(1, 5, 600)
    sequences = parity_sequences(rng, settings, length_B, k_B, row_len=18)
    words, values = words_of(settings), [str(i) for i in range(modulus)]
    bits_seen: Counter[int] = Counter()
    noise_seen: Counter[str] = Counter()
    for row in range(600):
        text, ids, end = words_in(words, sequences, row)
        prompt, response = text[: end - 1], text[end:]
        at = [i for i, word in enumerate(prompt) if word in values]
        bits = [int(prompt[i]) for i in at]
        prefixes = [str(sum(bits[: i + 1]) % modulus) for i in range(len(bits))]
        assert (text[end - 1], len(prompt), len(at)) == ("=", length_B[row], k_B[row])
        assert response == (prefixes if scratchpad else prefixes[-1:])
        assert ids == [*range(end), *(at if scratchpad else [end])]
        bits_seen.update(bits)
        noise_seen.update(word for word in prompt if word not in values)
    assert set(bits_seen) == set(range(modulus)) and set(noise_seen) == {"n0", "n1", "n2", "n3"}
    for seen in (bits_seen, noise_seen):
        assert chisquare(list(seen.values())).pvalue > 1e-3


@pytest.mark.parametrize("scratchpad", [False, True])
def test_a_variable_sequence_read_as_words_is_solved_by_looking_up(scratchpad: bool) -> None:
    rng, settings = np.random.default_rng(4), config(task="variables", num_names=12, scratchpad=scratchpad).synthetic
    length_B, k_B = rng.integers(8, 23, 600), rng.integers(1, 5, 600)
    sequences, words = variable_sequences(rng, settings, length_B, k_B, row_len=30), words_of(settings)
    names: Counter[str] = Counter()
    for row, (n, k) in enumerate(zip((length_B // 2).tolist(), k_B.tolist(), strict=True)):
        text, ids, end = words_in(words, sequences, row)
        left, right, queried = text[0 : 2 * n : 2], text[1 : 2 * n : 2], text[2 * n + 1]
        assert text[2 * n] == "?" and end == 2 * n + 2 and len(set(left)) == n

        def chain_of(name: str, left: list[str] = left, right: list[str] = right) -> list[int]:
            """Where the assignments of the chain from a name are written."""
            at = [left.index(name)]
            while right[at[-1]] not in VALUES:
                at.append(left.index(right[at[-1]]))
            return at

        at = chain_of(queried)
        assert len(at) == k and text[end:] == [right[i] for i in (at if scratchpad else at[-1:])]
        assert ids == [*(i // 2 for i in range(end)), *(at if scratchpad else [n + 1])]
        # Distractors are chains of the same length, but for what is left over.
        lengths = sorted((len(chain_of(name)) for name in left if name not in right), reverse=True)
        assert lengths == [k] * (n // k) + [n % k] * (n % k > 0)
        names.update(left)
    assert len(names) == 12 and chisquare(list(names.values())).pvalue > 1e-3


def test_assignments_are_written_in_any_order() -> None:
    settings, rng = (
        config(task="variables", num_names=4, train_lengths=[6, 8], test_lengths=[8]).synthetic,
        np.random.default_rng(5),
    )
    sequences = variable_sequences(rng, settings, np.full(NUM, 6), np.full(NUM, 3), row_len=12)
    orders = Counter(map(tuple, sequences.ids_BT[:, 8:11].tolist()))
    assert len(orders) == 6 and chisquare(list(orders.values())).pvalue > 1e-3


@pytest.mark.parametrize("task", ["parity", "variables"])
@pytest.mark.parametrize("positions", WAYS)
def test_a_batch_trains_the_response_and_its_shares_are_the_whole(task: str, positions: str) -> None:
    experiment = config(positions, task=task)
    batch = training_batch(experiment, num_rows=400, seed=[0, 3])
    shares = [
        training_batch(experiment, num_rows=400, seed=[0, 3], rows=slice(*ends)) for ends in ((0, 150), (150, 400))
    ]
    for number, field in enumerate(batch.fields):
        assert np.concatenate([share.fields[number] for share in shares]).tolist() == field.tolist()
    tokens, ids, targets = (field.numpy() for field in batch.fields[:3])
    is_target = targets != IGNORE_INDEX
    assert {share.num_targets for share in shares} == {batch.num_targets} == {int(is_target.sum())}
    assert (tokens[:, 1:][is_target[:, :-1]] == targets[:, :-1][is_target[:, :-1]]).all()
    queries, ks = is_target.argmax(axis=1), Counter(is_target.sum(axis=1).tolist())
    assert (tokens[np.arange(400), queries - (task == "variables")] == 1).all()
    assert set(ks) == {1, 2, 3} and chisquare(list(ks.values())).pvalue > 1e-3
    if task == "parity":
        lengths = Counter(queries.tolist())
        assert set(lengths) == {6, 7, 8, 9, 10} and chisquare(list(lengths.values())).pvalue > 1e-3
    assert (batch.target_positions_BT is None) == (positions != "predicted")
    if batch.target_positions_BT is not None:
        target_ids = batch.target_positions_BT.numpy()
        assert ((target_ids != IGNORE_INDEX) == is_target).all()
        assert (ids[:, 1:][is_target[:, :-1]] == target_ids[:, :-1][is_target[:, :-1]]).all()
    other = training_batch(config("coupled", task=task), num_rows=400, seed=[0, 3])
    assert other.tokens_BT.tolist() == batch.tokens_BT.tolist()  # whatever their positions


@pytest.mark.parametrize("positions", WAYS)
def test_position_ids_are_as_the_method_says(positions: str) -> None:
    """In training and in evaluation, where PoSE has none; a row's own length bounds its gaps and its shift."""
    experiment = config(positions)
    batch = training_batch(experiment, num_rows=NUM, seed=[1])
    read = training_batch(config("coupled", max_position=10**6), num_rows=NUM, seed=[1]).positions_BT.numpy()
    is_target = (batch.targets_BT != IGNORE_INDEX).numpy()
    length_B = is_target.shape[1] - is_target[:, ::-1].argmax(axis=1)  # without the last token, a target alone
    shifts: Counter[int] = Counter()
    num_gaps = []
    for row, length, base in zip(batch.positions_BT.numpy(), length_B.tolist(), read, strict=True):
        ids, steps = row[:length], np.diff(row[:length])
        assert ids.max() < 30 and not row[length + 1 :].any()
        num_gaps.append(int((steps > 1).sum()))
        if positions in ("pose", "randpos"):
            assert (steps >= 1).all() and (positions == "randpos" or (ids[0] == 0 and num_gaps[-1] <= 1))
        else:
            shape = np.arange(length) if positions == "shifted" else base[:length] - base[0]
            assert (ids - ids[0] == shape).all()
            shifts[int(ids[0])] += length == 13
    if positions == "randpos":
        assert np.mean(np.array(num_gaps) > 1) > 0.9
    if positions == "shifted":  # rows of 14 tokens have room for 17 shifts
        counts = [shifts[shift] for shift in range(30)]
        assert not any(counts[17:]) and chisquare(counts[:17]).pvalue > 1e-3
    evaluated = evaluated_sequences(experiment, 12, 3)
    assert set(evaluated.prompt_len_B.tolist()) == {13} and evaluated.ids_BT.max() < 30
    if positions == "pose":
        assert (evaluated.ids_BT == np.arange(16)).all()
    else:
        assert len(set(map(tuple, evaluated.ids_BT.tolist()))) > 10
    other = replace(experiment, training=replace(experiment.training, seed=9))
    assert (evaluated_sequences(other, 12, 3).tokens_BT == evaluated.tokens_BT).all()


MODULUS, ROW, LENGTH = 4, 7, 16
# Documents without a token in common; one is too short for the longest prompt.
DOCUMENTS = [list(range(1 + 40 * i, 1 + 40 * i + length)) for i, length in enumerate((30, 17, 12, 25))]


def planted_in_text(sequences: Sequences, row: int) -> list[int]:
    """Return where values lie in a prompt, read off its tokens, after comparing everything else with the documents."""
    query = int(sequences.prompt_len_B[row]) - 1
    tokens = sequences.tokens_BT[row].tolist()
    at = [i for i, token in enumerate(tokens[:query]) if FIRST_ID <= token < FIRST_ID + MODULUS]
    text = [(i, token - FIRST_ID - MODULUS) for i, token in enumerate(tokens[:query]) if i not in at]
    begins = [(document, begin) for document in DOCUMENTS for begin in range(len(document) - query + 1)]
    assert any(all(document[begin + i] == token for i, token in text) for document, begin in begins)
    assert tokens[query:] == [1, FIRST_ID + sum(tokens[i] - FIRST_ID for i in at) % MODULUS]
    return at


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(
    ("length", "place", "expected"),
    [
        (ROW, "inside", range(ROW)),
        (LENGTH, "inside", range(LENGTH - ROW, LENGTH)),
        (LENGTH, "beyond", range(LENGTH - ROW)),
        (LENGTH, None, range(LENGTH)),
    ],
)
def test_values_in_text_lie_inside_the_row_or_beyond_it(length: int, place: Any, expected: range, k: int) -> None:
    """The other tokens are consecutive tokens of one document."""
    keys: dict[str, Any] = {
        "background": "text",
        "scratchpad": False,
        "test_lengths": [ROW, LENGTH],
        "test_row_len": ROW,
    }
    experiment = config(modulus=MODULUS, test_rows=300, train_lengths=[4, ROW], **keys)
    background = text_background(tiny_store(DOCUMENTS), 200)
    evaluated = evaluated_sequences(experiment, length, k, place=place, background=background)
    planted = [planted_in_text(evaluated, row) for row in range(300)]
    assert {len(at) for at in planted} == {k} and {i for at in planted for i in at} == set(expected)
    others: tuple[Any, ...] = ("inside", "beyond", None)
    of_places = [evaluated_sequences(experiment, LENGTH, k, place=one, background=background) for one in others]
    assert len({tuple(of.tokens_BT[:, -1].tolist()) for of in of_places}) == 3  # places are drawn independently
    rng, within = np.random.default_rng([0, 1_000_004, LENGTH, 3, 2]), (0, LENGTH - ROW)
    lengths, ks, task = np.full(300, LENGTH), np.full(300, 3), experiment.synthetic
    asked = parity_sequences(rng, task, lengths, ks, row_len=LENGTH + 2, background=background, within=within)
    again = evaluated_sequences(experiment, LENGTH, 3, place="beyond", background=background)
    assert again.tokens_BT.tolist() == asked.tokens_BT.tolist()


def test_a_word_is_a_token_and_held_out_rows_depend_on_no_seed() -> None:
    experiment = config(modulus=3)
    data, other = (open_task(replace(experiment, training=replace(experiment.training, seed=seed))) for seed in (0, 1))
    everything = slice(None)
    assert (data.vocab_size, data.eos_id, data.num_bos) == (2 + 3 + 4, 0, 0)
    assert data.row_len == data.draw(0, everything).tokens_BT.shape[1] == 10 + 1 + 3 - 1
    held_out, held_out_of_other = (one.draw_held_out(everything)[0] for one in (data, other))
    assert held_out.tokens_BT.tolist() == held_out_of_other.tokens_BT.tolist()
    assert data.draw(5, everything).tokens_BT.tolist() != other.draw(5, everything).tokens_BT.tolist()
    expected = training_batch(experiment, num_rows=experiment.training.eval_rows, seed=[1_000_003, 0])
    assert held_out.tokens_BT.tolist() == expected.tokens_BT.tolist()
    expected = training_batch(experiment, num_rows=experiment.training.batch_rows, seed=[0, 5], rows=slice(3, 9))
    assert data.draw(5, slice(3, 9)).targets_BT.tolist() == expected.targets_BT.tolist()
    background, rng = text_background(tiny_store(DOCUMENTS), 200), np.random.default_rng(0)
    assert len({background.draw(rng, 50, ROW).tobytes() for _ in range(200)}) == 200  # no rows come again
    seed = int(np.random.default_rng(0).integers(2**62))
    source = row_source(tiny_store(DOCUMENTS), row_len=ROW, max_position=ROW)
    rows = batch_at(source, PoseConfig(num_chunks=1), num_rows=50, seed=seed, step=0)  # as published
    assert background.draw(np.random.default_rng(0), 50, ROW).tolist() == rows.tokens_BT.tolist()
