"""What is planted, and where; and whether selectors find it in a model that was trained to use it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from olmo_sparsity.config import Config, ContextConfig, InfluenceConfig, ModelConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.planted import NEEDLES, PlantedWindows, made_up_word, needle_windows
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.window_influence import measure_context
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs
from olmo_sparsity.measure.visible.visibility import compact_rows
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config
from olmo_sparsity.text.vocabulary import read_tokenizer

LOCAL, FULL, M = 2, 14, 12
# Vocabulary: 0 the query, 1..8 noise, 9..12 values of the first planted token, 13..16 of the second, 17..32 the target.
FIRST, SECOND, ANSWER, VOCAB = 9, 13, 17, 40


def planted(rng: np.random.Generator, num: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Return (tokens [num, FULL], targets [num], planted positions [num, 2]); the target encodes both planted values."""
    tokens = rng.integers(1, 9, (num, FULL))
    places = np.stack([rng.permutation(M)[:2] for _ in range(num)])
    values = rng.integers(0, 4, (num, 2))
    rows = np.arange(num)
    tokens[rows, places[:, 0]] = FIRST + values[:, 0]
    tokens[rows, places[:, 1]] = SECOND + values[:, 1]
    tokens[:, -1] = 0
    return torch.from_numpy(tokens), torch.from_numpy(ANSWER + 4 * values[:, 0] + values[:, 1]), places


@pytest.fixture(scope="module")
def solver() -> OLMoWithPositions:
    """A model trained on such sequences, with some of their long-range tokens hidden at random."""
    config = Config(
        model=ModelConfig(d_model=64, n_heads=4, n_layers=2, mlp_ratio=4, layer_norm_with_affine=True),
        context=ContextConfig(local_len=LOCAL, full_len=FULL),
        influence=InfluenceConfig(k=[1, 2]),
    )
    model = build_model(olmo_model_config(config, vocab_size=VOCAB, eos_id=0), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    rng = np.random.default_rng(0)
    for step in range(300):
        tokens, targets, _ = planted(rng, 128)
        size = int(rng.integers(0, M + 1))
        visible = torch.from_numpy(rng.random((128, M)).argsort(axis=1)[:, :size])
        logits = model(*compact_rows(tokens, visible, local_len=LOCAL), last_logits_only=True)[:, 0]
        loss = F.cross_entropy(logits, targets)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 50, (300 - step) / 100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def test_unmask_one_finds_exactly_the_planted_tokens_and_they_recover_everything(solver: OLMoWithPositions) -> None:
    tokens, targets, places = planted(np.random.default_rng(1), 200)
    evaluator = Evaluator(solver, LOCAL)
    log_p_short = short_log_probs(evaluator, tokens)
    loss_short = -log_p_short.gather(1, targets[:, None])[:, 0]
    settings = InfluenceConfig(k=[1, 2], selectors=["unmask-one", "kl", "random"])
    batch = WindowBatch(tokens, targets, window_ids_W=np.arange(200), context="real", seed=0)
    predictions = Predictions(evaluator, batch, log_p_short_WV=log_p_short, with_kl=True)
    scores = WindowScores(predictions, max_k=2)
    measured = measure_context(scores, settings)
    assert loss_short.mean() > 2.5  # nearly log 16: the local tokens carry no information
    assert measured.loss_long_W.mean() < 0.05
    for selector in ("unmask-one", "kl"):
        found = np.sort(measured.outcomes[selector].groups_WS, axis=1)
        assert (found == np.sort(places, axis=1)).all(), selector
        one, two = measured.outcomes[selector].loss_sparse_WK.mean(axis=0)
        assert two < 0.05
        assert one == pytest.approx(np.log(4), abs=0.15)  # one of two planted values is known
    assert measured.outcomes["random"].loss_sparse_WK.mean() > 2.0


@pytest.fixture(scope="module")
def tokenizer(tiny_run: Path) -> Tokenizer:
    return read_tokenizer(tiny_run / "tokenizer.json")


def base_windows(num: int, full_len: int = 40) -> np.ndarray:
    return np.random.default_rng(0).integers(1, 300, (num, full_len + 1))


def plant(
    suite: str, copies: int, rows_WT: np.ndarray, *, tokenizer: Tokenizer, num_long_range: int = 30, seed: int = 0
) -> PlantedWindows:
    return needle_windows(
        suite,
        copies,
        rows_WT=rows_WT,
        doc_ids=[f"d{i}" for i in range(len(rows_WT))],
        num_long_range=num_long_range,
        tokenizer=tokenizer,
        seed=seed,
    )


@pytest.mark.parametrize("suite", NEEDLES)
@pytest.mark.parametrize("copies", [1, 2])
def test_a_needle_is_where_the_truth_says_and_nothing_else_changed(
    tokenizer: Tokenizer, suite: str, copies: int
) -> None:
    base = base_windows(60)
    planted = plant(suite, copies, base, tokenizer=tokenizer)
    pattern = r" \d{3,5}" if suite == "needle-number" else r" [A-Z][a-z]{4,6}"
    for row, natural, truth in zip(planted.rows_WT, base, planted.truth_WM, strict=True):
        size = int(truth.sum()) // copies
        needle = row[-size:].tolist()
        assert 2 <= size <= 4
        assert re.fullmatch(pattern, tokenizer.decode(needle))
        where = np.flatnonzero(truth).reshape(copies, size)
        for copy in where:
            assert copy.tolist() == list(range(copy[0], copy[0] + size))
            assert row[copy].tolist() == needle
        unchanged = np.ones(41, dtype=bool)
        unchanged[:30] = ~truth
        unchanged[-size:] = False
        assert (row[unchanged] == natural[unchanged]).all()
    assert planted.num_planted == copies
    assert planted.doc_ids == [f"d{i}" for i in range(60)]


def test_made_up_words_have_every_length_that_they_may_have() -> None:
    rng = np.random.default_rng(0)
    numbers = [made_up_word(rng, "needle-number") for _ in range(200)]
    assert all(re.fullmatch(r" [1-9]\d*", number) for number in numbers)
    assert {len(number) - 1 for number in numbers} == {3, 4, 5}
    names = [made_up_word(rng, "needle-name") for _ in range(200)]
    assert all(re.fullmatch(r" [A-Z][a-z]+", name) for name in names)
    assert {len(name) - 1 for name in names} == {5, 7}  # two or three syllables and a consonant
    letters = [[name.lower()[begin + 1 :: 2] for name in names] for begin in (0, 1)]
    assert [set("".join(of_place)) for of_place in letters] == [set("bdfgklmnprstvz"), set("aeiou")]
    assert {number[1] for number in numbers} == set("123456789")  # every first digit, up to the largest number


def pieces_of_two() -> Tokenizer:
    """A tokenizer whose tokens are two characters each; it tells lengths only."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(".{1,2}"), "isolated")
    return tokenizer


@pytest.mark.parametrize(
    ("local_len", "num_long_range", "copies", "expected"),
    [
        (5, 30, 1, {3, 4}),  # names of 6 and 8 characters with their space
        (4, 30, 7, {3, 4}),
        (4, 30, 8, {3}),  # eight times four is more than 30
        (3, 30, 1, {3}),  # the window ends with all of a needle but its last token, and one token stands before it
        (5, 3, 1, {3}),
    ],
)
def test_a_needle_is_as_long_as_there_is_room(
    local_len: int, num_long_range: int, copies: int, expected: set[int]
) -> None:
    base = base_windows(40, local_len + num_long_range)
    truth = plant("needle-name", copies, base, tokenizer=pieces_of_two(), num_long_range=num_long_range).truth_WM
    assert truth.shape == (40, num_long_range)
    assert {num / copies for num in truth.sum(axis=1).tolist()} == expected


def test_numbers_have_two_tokens_at_least_and_a_word_of_one_is_drawn_again() -> None:
    """Of two-character tokens a number has two or three; none has fewer, and of one-token words none is planted."""
    base = base_windows(40)
    truth = plant("needle-number", 1, base, tokenizer=pieces_of_two()).truth_WM
    assert set(truth.sum(axis=1).tolist()) == {2, 3}
    whole = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))  # one token, whatever the word
    for suite in NEEDLES:
        with pytest.raises(UserError, match=f"^{suite}: with this tokenizer no made-up word has 2 to 4 tokens, "):
            plant(suite, 1, base[:1], tokenizer=whole)


@pytest.mark.parametrize("suite", NEEDLES)
def test_a_window_has_a_generator_of_its_own(tokenizer: Tokenizer, suite: str) -> None:
    """Seeded by (seed, suite, copies, window); other seeds would change the tables. It draws the word, then its places."""
    planted = plant(suite, 2, base_windows(8), tokenizer=tokenizer, seed=5)
    for w, (row, truth) in enumerate(zip(planted.rows_WT, planted.truth_WM, strict=True)):
        rng = np.random.default_rng([5, 10 + NEEDLES.index(suite), 2, w])
        words = (tokenizer.encode(made_up_word(rng, suite)).ids for _ in range(1000))
        needle = next(ids for ids in words if 2 <= len(ids) <= 4)
        assert row[-len(needle) :].tolist() == needle
        first, second = sorted(rng.permutation(30 - 2 * len(needle) + 2)[:2].tolist())
        starts = first, second + len(needle) - 1
        assert np.flatnonzero(truth).tolist() == [start + i for start in starts for i in range(len(needle))]


def test_some_of_the_windows() -> None:
    base = base_windows(6, full_len=9)
    truth = np.random.default_rng(1).random((6, 7)) < 0.5
    windows = PlantedWindows("needle-name", 3, rows_WT=base, truth_WM=truth, doc_ids=list("abcdef"))
    some = windows.subset(np.array([4, 0, 5]))
    assert (some.suite, some.num_planted, some.doc_ids) == ("needle-name", 3, ["e", "a", "f"])
    assert (some.rows_WT == base[[4, 0, 5]]).all() and (some.truth_WM == truth[[4, 0, 5]]).all()
    assert (windows.full_len, windows.num_long_range) == (9, 7)


def test_a_needle_is_a_function_of_seed_and_window_alone(tokenizer: Tokenizer) -> None:
    base = base_windows(20)
    every, again = (plant("needle-name", 1, base, tokenizer=tokenizer).rows_WT for _ in range(2))
    few = plant("needle-name", 1, base[:5], tokenizer=tokenizer).rows_WT
    other = plant("needle-name", 1, base, tokenizer=tokenizer, seed=1).rows_WT
    assert (every == again).all()
    assert (every[:5] == few).all()
    assert (every != other).any(axis=1).all()


def test_places_of_needles_are_uniform(tokenizer: Tokenizer) -> None:
    base = base_windows(3000)
    truth = plant("needle-number", 1, base, tokenizer=tokenizer).truth_WM
    assert set(truth.sum(axis=1)) == {4}  # this tokenizer makes one token of the space and of each of three digits
    counts = np.bincount(truth.argmax(axis=1), minlength=30)[:27]
    assert counts == pytest.approx(np.full(27, 3000 / 27), abs=45)
    both = plant("needle-number", 2, base, tokenizer=tokenizer, num_long_range=10).truth_WM
    places, counts = np.unique([np.flatnonzero(row)[[0, 4]] for row in both], axis=0, return_counts=True)
    assert places.tolist() == [[0, 4], [0, 5], [0, 6], [1, 5], [1, 6], [2, 6]]  # every way to place two of four in ten
    assert counts == pytest.approx(np.full(6, 500), abs=90)


def test_no_room_for_a_needle(tokenizer: Tokenizer) -> None:
    base = base_windows(2)
    with pytest.raises(UserError, match="nothing can be planted"):
        plant("needle-name", 16, base, tokenizer=tokenizer)
