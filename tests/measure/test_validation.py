"""Whether planted needles are found: the tables from their definition, and a model that needs exactly what was planted."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from brute_force import Choice, Definition, assert_same_row, expected_scores
from conftest import Messages

from olmo_sparsity.config import Config, ValidationConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.planted import NEEDLES, PlantedWindows, needle_windows
from olmo_sparsity.measure.validation import check_room, find_planted, validate
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.model.checkpoint import load_model
from olmo_sparsity.records.measured import MeasuredLengths
from olmo_sparsity.records.selectors import LASSO_ALPHA
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.text.store import open_store
from olmo_sparsity.text.vocabulary import read_tokenizer, word_start_table
from olmo_sparsity.text.windows import sample_windows

NUM = 12  # windows of each of the 4 suites of ``validated``
# Tokens below NOISE are noise, the next 4 the values 0 to 3, and FIRST_SUM + s the sum s.
NOISE, VALUES, FIRST_SUM = 4, 4, 10


class Adder:
    """A model that predicts the sum of planted values from the visible ones, as well as they allow."""

    vocab_size = 24

    def __init__(self, num_terms: int) -> None:
        self.num_terms = num_terms

    def last_logits(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        logits = torch.full((len(tokens), self.vocab_size), -9.0)
        for row, ids in zip(logits, tokens.tolist(), strict=True):
            seen = [token - NOISE for token in ids if NOISE <= token < NOISE + VALUES]
            missing = self.num_terms - len(seen)
            ways = [1.0]
            for _ in range(missing):
                ways = np.convolve(ways, np.ones(VALUES)).tolist()
            for total in range(3 * self.num_terms + 1):
                left = total - sum(seen)
                probability = ways[left] / VALUES**missing if 0 <= left < len(ways) else 0.0
                row[FIRST_SUM + total] = np.log(probability + 1e-6)
        return logits


def planted_sums(num_terms: int) -> PlantedWindows:
    """Return 40 windows of noise with so many planted values, whose sum is the target."""
    rng = np.random.default_rng(num_terms)
    rows_WT = rng.integers(0, NOISE, (40, 33))
    truth_WM = rng.random((40, 24)).argsort(axis=1) < num_terms
    values_WM = np.where(truth_WM, rng.integers(0, VALUES, (40, 24)), 0)
    rows_WT[:, :24] = np.where(truth_WM, NOISE + values_WM, rows_WT[:, :24])
    rows_WT[:, -1] = FIRST_SUM + values_WM.sum(axis=1)
    doc_ids = [f"d{w}" for w in range(40)]
    return PlantedWindows("planted-sum", num_terms, rows_WT=rows_WT, truth_WM=truth_WM, doc_ids=doc_ids)


def test_selectors_find_everything_in_a_model_that_needs_exactly_what_was_planted(tiny_config: Config) -> None:
    selectors = ["unmask-one", "mask-one", "kl", "greedy", "lasso"]
    options = {
        "window_ids_W": np.arange(40),
        "settings": ValidationConfig(selectors=selectors, k=[1, 2]),
        "num_lasso_masks": tiny_config.influence.lasso_masks,
        "device": torch.device("cpu"),
    }
    planted = planted_sums(1)
    findings = find_planted(Evaluator(Adder(1), 8, path="plain"), planted, **options)  # type: ignore[arg-type]
    where = planted.truth_WM.argmax(axis=1)
    for name in selectors:
        assert (findings.ranked_WM[name][:, 0] == where).all(), name
    assert findings.loss_short_W == pytest.approx(np.full(40, np.log(4)), abs=0.01)
    assert findings.loss_long_W == pytest.approx(np.zeros(40), abs=0.01)
    assert findings.loss_planted_W == pytest.approx(findings.loss_long_W, abs=1e-6)
    planted = planted_sums(2)
    found = find_planted(Evaluator(Adder(2), 8, path="plain"), planted, **options).ranked_WM  # type: ignore[arg-type]
    truth = [np.flatnonzero(row) for row in planted.truth_WM]
    both = {
        name: np.array([set(row[:2]) == set(at) for row, at in zip(found[name].tolist(), truth, strict=True)])
        for name in selectors
    }
    assert both["mask-one"].all()  # without either of them the sum is not known
    # Of two values in 0..3 one alone tells something of every sum but 3, which 4 of 16 pairs make and 1 of 4 partners.
    is_told = planted.rows_WT[:, -1] != FIRST_SUM + 3
    assert 0 < is_told.sum() < 40
    for name in ("unmask-one", "kl"):
        assert both[name][is_told].all(), name


def test_every_column_of_planted_and_found(validated: tuple[Config, Path]) -> None:
    """A few windows of each suite by transformers; which windows they are is a function of the seeds."""
    config, tables = validated
    run = tables.parent.parent
    planted = read_table(tables, "planted").to_pylist()
    found = {(row["window_id"], row["selector"]): row for row in read_table(tables, "found").to_pylist()}
    assert len(found) == len(planted) * len(config.validation.selectors)
    tokenizer = read_tokenizer(run / "tokenizer.json")
    store = open_store(Path(read_json(run / "manifest.json")["token_store"]), "validation")
    natural = sample_windows(store, 20, num_windows=4 * NUM, max_per_document=16, seed=2)
    numbers = np.arange(4 * NUM) % len(natural)
    rows_WT, doc_ids = natural.tokens(numbers), natural.doc_ids(numbers)
    suites = [
        needle_windows(
            name, copies, rows_WT=rows_WT[first : first + NUM], doc_ids=doc_ids[first : first + NUM], num_long_range=12,
            tokenizer=tokenizer, seed=6,
        )
        for first, (name, copies) in zip(range(0, 4 * NUM, NUM), itertools.product(NEEDLES, (1, 2)), strict=True)
    ]  # fmt: skip
    definition = Definition(load_model(run / "checkpoints" / "latest", torch.device("cpu")), 8)
    for number, suite in enumerate(suites):
        for w in (0, 7):
            *tokens, target = suite.rows_WT[w].tolist()
            texts, window_id = [tokenizer.decode([token]) for token in [*tokens, target]], NUM * number + w
            truth, everything = np.flatnonzero(suite.truth_WM[w]).tolist(), range(suite.num_long_range)
            no_gap = -definition.log_q(tokens[-8:], [[]])[0, target]  # the local tokens alone, at positions from 0 on
            short, long, at_truth = -definition.log_q(tokens, [[], everything, truth])[:, target]
            expected = {
                "window_id": window_id,
                "suite": suite.suite,
                "doc_id": suite.doc_ids[w],
                "num_planted": suite.num_planted,
                "planted_positions": truth,
                "planted_distance_tokens": len(tokens) - float(np.mean(truth)),
                "token_texts": texts[:-1],
                "target_text": texts[-1],
                "loss_short_nats": short,
                "loss_short_no_gap_nats": no_gap,
                "loss_long_nats": long,
                "loss_planted_nats": at_truth,
            }
            assert_same_row(planted[window_id], expected)
            p_all = definition.log_q(tokens, [everything])[0]
            choice = Choice(definition, tokens, target, p_all, [6, 0, window_id, 0])
            for selector in config.validation.selectors:
                row = found[window_id, selector]
                assert set(row) == {"window_id", "selector", "ranked_positions"}
                assert sorted(row["ranked_positions"]) == list(everything)
                if selector not in ("greedy", "greedy-kl"):  # steps: in test_selectors
                    scores = expected_scores(selector, choice, lasso_masks=20, lasso_alpha=LASSO_ALPHA)
                    assert (np.diff(scores[row["ranked_positions"]]) < 2e-5).all(), selector


def test_greedy_goes_on_until_it_may_have_found_all_that_is_planted(validated: tuple[Config, Path]) -> None:
    """Two needles have at most eight tokens, so the first eight are the same whatever k is asked for."""
    model = load_model(validated[1].parent.parent / "checkpoints" / "latest", torch.device("cpu"))
    rng = np.random.default_rng(0)
    rows_WT, truth_WM = rng.integers(0, 100, (6, 21)), rng.random((6, 12)).argsort(axis=1) < 2
    planted = PlantedWindows("needle-name", 2, rows_WT=rows_WT, truth_WM=truth_WM, doc_ids=[f"d{w}" for w in range(6)])
    one, eight = (
        find_planted(
            Evaluator(model, 8), planted, window_ids_W=np.arange(6), num_lasso_masks=20, device=torch.device("cpu"),
            settings=ValidationConfig(selectors=["greedy"], k=[k]),
        ).ranked_WM["greedy"][:, :8]
        for k in (1, 8)
    )  # fmt: skip
    assert (one == eight).all()


def test_a_finished_validation_is_left_alone(messages: Messages, validated: tuple[Config, Path]) -> None:
    config, tables = validated
    run = tables.parent.parent
    messages.clear()
    assert validate(config, run) == tables
    assert f"already measured ({4 * NUM} windows)" in messages[-1]
    other = [dataclasses.replace(config, validation=dataclasses.replace(config.validation, seed=1))]
    changes = {"max_windows_per_document": 1, "sampling": "documents", "lasso_masks": 7, "seed": 9, "path": "masked"}
    for key, value in changes.items():
        changed = dataclasses.replace(config.influence, **{key: value})
        other.append(dataclasses.replace(config, influence=changed))
    for one in other:
        with pytest.raises(UserError, match="other settings"):
            validate(one, run, out=tables)


def test_more_found_than_there_is(tiny_config: Config, tiny_run: Path, tmp_path: Path) -> None:
    config = dataclasses.replace(tiny_config, validation=ValidationConfig(k=[1, 20]))
    with pytest.raises(UserError, match="only 12 long-range tokens"):
        validate(config, tiny_run, out=tmp_path / "v")
    assert not (tmp_path / "v").exists()


def test_there_must_be_room_for_needles_of_two_tokens() -> None:
    def room(num_long_range: int, *copies: int, local_len: int = 2) -> None:
        lengths = MeasuredLengths(local_len, local_len + num_long_range, None, None, num_long_range)
        check_room(ValidationConfig(k=[1], needle_copies=list(copies)), lengths)

    room(12, 1, 6)
    with pytest.raises(
        UserError, match=r"^validation.needle_copies = \[1, 7\]: .* the windows have only 13 long-range tokens$"
    ):
        room(13, 1, 7)
    with pytest.raises(
        UserError, match=r"^local_len = 1: .* the local ones must have room for it; use --local-len 2 or more$"
    ):
        room(12, 1, local_len=1)


def test_windows_are_used_repeatedly_where_the_text_has_too_few(
    messages: Messages, tiny_config: Config, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first suites hold each window once; parts have as many windows as their work allows.

    The keys of ``influence`` that say what `influence` measures change neither.
    """
    settings = ValidationConfig(num_windows=40, k=[1, 4], needle_copies=[1, 3], selectors=["unmask-one"], seed=6)
    influence = dataclasses.replace(
        tiny_config.influence, seed=2, max_windows_per_document=1, targets="word-start", min_preceding=26, k=[1, 2, 8],
        selectors=["kl", "greedy"], screen=9, pairs_windows=20,
    )  # fmt: skip
    monkeypatch.setattr("olmo_sparsity.measure.work.TOKENS_PER_PART", 3000)
    config = dataclasses.replace(tiny_config, validation=settings, influence=influence)
    messages.clear()
    folder = validate(config, tiny_run, out=tmp_path / "v")
    tokenizer = read_tokenizer(tiny_run / "tokenizer.json")
    store = open_store(Path(read_json(tiny_run / "manifest.json")["token_store"]), "validation")
    natural = sample_windows(
        store,
        20,
        num_windows=160,
        max_per_document=1,
        seed=2,
        min_preceding=26,
        target_table_V=word_start_table(tokenizer),
    )
    num = len(natural)
    assert 80 < num < 160
    assert any(
        f"the text has only {num} windows, and the needles need 160; windows are used" in line for line in messages
    )
    assert any(f"{folder}: 40 windows of each of 4 suites, unmask-one" in line for line in messages)
    planted = read_table(folder, "planted").to_pylist()
    assert [row["window_id"] for row in planted] == list(range(160))
    doc_ids = natural.doc_ids(np.arange(num))
    assert [row["doc_id"] for row in planted] == [doc_ids[i % num] for i in range(160)]
    assert len(read_table(folder, "found")) == 160
    manifest = read_json(folder / "manifest.json")
    assert (manifest["num_windows"], manifest["validation"]["needle_copies"]) == (160, [1, 3])
    expected = [(name, copies, 20, 8) for name in NEEDLES for copies in (1, 3)]
    assert [(s["suite"], s["num_planted"], s["full_len"], s["local_len"]) for s in manifest["suites"]] == expected
    # Under each of two contexts: single tokens, the sets of 1 and 4, all tokens; and L_short twice.
    assert manifest["windows_per_part"] == 3000 // (2 * (12 * 9 + (9 + 12) + 20) + 2 * 8)


@pytest.mark.parametrize(
    "changes", [{"targets": "word-start"}, {"min_preceding": 25}, {"precision": "bf16"}, {"visibility": "contextual"}]
)
def test_tables_of_other_windows_or_losses_have_another_fingerprint(
    validated: tuple[Config, Path], changes: dict[str, Any]
) -> None:
    config, tables = validated
    other = dataclasses.replace(config, influence=dataclasses.replace(config.influence, **changes))
    with pytest.raises(UserError, match="other settings"):
        validate(other, tables.parent.parent, out=tables)
    same = dataclasses.replace(config.influence, k=[3], selectors=["random"], windows_per_part=3, resampled_draws=0)
    assert validate(dataclasses.replace(config, influence=same), tables.parent.parent) == tables
    assert tables.name == f"planted-n{NUM}-{read_json(tables / 'manifest.json')['run_id'][:6]}"
