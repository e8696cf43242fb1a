"""Precision and recall against brute force, with a model that needs exactly the planted tokens, and end to end."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from brute_force import Choice, Definition, assert_same_row, expected_scores
from conftest import Messages

from olmo_sparsity.config import Config, ValidationConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.planted import NEEDLES, PlantedWindows, needle_windows
from olmo_sparsity.measure.validation import find_planted, validate
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.model.checkpoint import load_model
from olmo_sparsity.records.selectors import LASSO_ALPHA
from olmo_sparsity.statistics.detection import LOSSES, _suite, detection, hits
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.text.store import open_store
from olmo_sparsity.text.vocabulary import read_tokenizer
from olmo_sparsity.text.windows import sample_windows
from olmo_sparsity.view.as_json import detection_json

NUM = 12  # windows of each of the 4 suites of the validation
NOISE, VALUES, FIRST_SUM = (
    4,
    4,
    10,
)  # tokens below NOISE are noise, the next 4 the values 0 to 3, and FIRST_SUM + s the sum s


def test_hits_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    ranked = np.stack([rng.permutation(9) for _ in range(40)])
    truth = [rng.permutation(9)[: rng.integers(1, 5)] for _ in range(40)]
    found = hits(ranked, truth)
    for w in range(40):
        for r in range(1, 10):
            assert found[w, r - 1] == len(set(ranked[w, :r].tolist()) & set(truth[w].tolist()))


def mean(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.mean


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
    both = {name: hits(found[name], truth)[:, 1] == 2 for name in selectors}
    assert both["mask-one"].all()  # without either of them the sum is not known
    # Of two values in 0..3 one alone tells something of every sum but 3, which 4 of 16 pairs make and 1 of 4 partners.
    is_told = planted.rows_WT[:, -1] != FIRST_SUM + 3
    assert 0 < is_told.sum() < 40
    for name in ("unmask-one", "kl"):
        assert both[name][is_told].all(), name


@pytest.fixture(scope="module")
def validated(tiny_config: Config, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Path]:
    settings = ValidationConfig(num_windows=NUM, k=[1, 2, 4, 8], needle_copies=[1, 2], seed=6)
    influence = dataclasses.replace(tiny_config.influence, seed=2, lasso_masks=20)
    config = dataclasses.replace(tiny_config, validation=settings, influence=influence)
    run = Path(shutil.copytree(tiny_run, tmp_path_factory.mktemp("validation") / "run", symlinks=True))
    return config, validate(config, run)


def test_validation_end_to_end(validated: tuple[Config, Path]) -> None:
    _, tables = validated
    planted, found = (read_table(tables, name).to_pandas() for name in ("planted", "found"))
    assert len(planted) == NUM * 4
    assert len(found) == NUM * 4 * 10
    assert all(sorted(ranked) == list(range(12)) for ranked in found["ranked_positions"])
    numbers = detection(tables)
    cells = [(suite.suite, suite.num_planted) for suite in numbers.suites]
    assert cells == [("needle-name", 1), ("needle-name", 2), ("needle-number", 1), ("needle-number", 2)]
    json.dumps(detection_json(numbers), allow_nan=False)
    for suite in numbers.suites:
        of = planted[(planted["suite"] == suite.suite) & (planted["num_planted"] == suite.num_planted)]
        for name in ("loss_short_nats", "loss_long_nats", "loss_planted_nats"):
            assert getattr(suite, name).mean == pytest.approx(of[name].mean(), abs=1e-6)
        assert suite.long_gain_nats.mean == pytest.approx(suite.loss_short_nats.mean - suite.loss_long_nats.mean)
        assert suite.chance == pytest.approx(of["planted_positions"].str.len().mean() / 12)
        for entry in suite.selectors:
            ranked = found[found["selector"] == entry.selector].set_index("window_id")["ranked_positions"]
            at_truth, precision, recall = [], [], []
            for window_id, truth in zip(of["window_id"], of["planted_positions"], strict=True):
                wanted = set(truth)
                at_truth.append(len(wanted & set(ranked[window_id][: len(wanted)])) / len(wanted))
                precision.append(len(wanted & set(ranked[window_id][:4])) / 4)
                recall.append(len(wanted & set(ranked[window_id][:4])) / len(wanted))
            assert mean(entry.precision_at_truth) == pytest.approx(np.mean(at_truth))
            (at_4,) = (at_k for at_k in entry.at_k if at_k.k == 4)
            assert mean(at_4.precision) == pytest.approx(np.mean(precision))
            assert mean(at_4.recall) == pytest.approx(np.mean(recall))
            local, full = 8, 20
            assert (suite.local_len, suite.full_len) == (local, full)
            distances = [full - np.mean(truth) for truth in of["planted_positions"]]
            for i, third in enumerate(entry.by_distance):
                low, high = (local + (full - local) * j / 3 for j in (i, i + 1))
                inside = [a for a, d in zip(at_truth, distances, strict=True) if low < d <= high]
                assert third.num_windows == len(inside)
                assert (third.precision_at_truth is not None) == bool(inside)
                if inside:
                    assert mean(third.precision_at_truth) == pytest.approx(np.mean(inside))


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


def test_a_third_with_many_windows_of_few_documents_has_no_interval() -> None:
    """The near third has 60 windows of 30 documents, the far one 60 windows of as many."""
    rng, num = np.random.default_rng(0), 120
    is_near = np.arange(num) < 60
    truth = [[int(position)] for position in np.where(is_near, 9, 2)]
    rows = pd.DataFrame(
        {
            "window_id": np.arange(num),
            "doc_id": [f"near {w // 2}" if near else f"far {w}" for w, near in enumerate(is_near)],
            "planted_positions": truth,
            "planted_distance_tokens": [20.0 - positions[0] for positions in truth],
            **{name: rng.random(num) for name in LOSSES},
        }
    )
    ranked = pd.DataFrame(
        {
            "window_id": np.arange(num),
            "selector": "kl",
            "ranked_positions": [np.roll(np.arange(12), -positions[0] + rng.integers(2)) for positions in truth],
        }
    )
    record = {"suite": "needle-name", "num_planted": 1, "local_len": 8, "full_len": 20}
    suite = _suite(rows, ranked, record=record, ks=[1])
    assert (suite.num_windows, suite.num_documents) == (120, 90)
    (of,) = suite.selectors
    near, middle, far = of.by_distance
    assert (near.num_windows, middle.num_windows, far.num_windows) == (60, 0, 60)
    assert near.precision_at_truth is not None and not near.precision_at_truth.has_interval
    assert far.precision_at_truth is not None and far.precision_at_truth.has_interval
