"""Precision and recall from a made-up validation, by loops over its windows; no two of its numbers are alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from drawn_documents import expected_mean, expected_share, numbers
from made_up import LENGTHS

from olmo_sparsity.statistics.detection import LOSSES, Detection, _suite, detection
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import write_part
from olmo_sparsity.tables.schemas import schemas_of

LOCAL, FULL, M, KS = 8, 20, 12, [1, 3, 5]
# By suite: L_short - L_long, and L_short - the loss with what was planted. The gate is of the first.
GAINS = {("needle-name", 1): (0.0, 0.6), ("needle-number", 2): (0.6, 0.0), ("needle-number", 1): (0.5, 0.2)}
GAP_COST = {("needle-name", 1): -0.4, ("needle-number", 2): 0.1, ("needle-number", 1): 0.47}  # what the gate takes off
NUM = 200  # windows of a suite
NUM_DOCUMENTS = 90


@pytest.mark.parametrize("num_true", [1, 4])
def test_what_is_found_in_all_50_documents_is_no_certainty(num_true: int) -> None:
    """The ends are shares of what k positions can find: of 4 planted ones two hold a half, and of one they are half wrong."""
    rng, num = np.random.default_rng(3), 50
    truth = [np.arange(w % 3, w % 3 + num_true) for w in range(num)]
    rows = pd.DataFrame(
        {
            "window_id": np.arange(num), "doc_id": [f"{w:016x}" for w in range(num)], "planted_positions": truth,
            "planted_distance_tokens": [FULL - of.mean() for of in truth], **{name: rng.random(num) for name in LOSSES},
        }
    )  # fmt: skip
    ranked = [np.r_[of, np.setdiff1d(np.arange(M), of)] for of in truth]
    rankings = pd.DataFrame({"window_id": np.arange(num), "selector": "kl", "ranked_positions": ranked})
    record = {"suite": "needle-name", "num_planted": 1, "local_len": LOCAL, "full_len": FULL}
    (of,) = _suite(rows, rankings, record=record, ks=[1, 2, M]).selectors
    lowest = 0.025 ** (1 / num)
    assert numbers(of.precision_at_truth) == numbers(of.by_distance[2].precision_at_truth)
    assert numbers(of.precision_at_truth) == pytest.approx([1.0, lowest, 1.0])
    one, two, every = of.at_k
    for at_k in (one, two):
        found = min(at_k.k, num_true)
        assert numbers(at_k.precision) == pytest.approx([found / at_k.k * end for end in (1, lowest, 1)])
        assert numbers(at_k.recall) == pytest.approx([found / num_true * end for end in (1, lowest, 1)])
    assert every.recall == Estimate(1.0, 1.0, 1.0, 0.0)
    assert numbers(every.precision) == pytest.approx([num_true / M] * 3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Detection, list[dict[str, Any]], dict[Any, list[int]]]:
    """A validation, its windows, and what each selector ranked in them; rows of ``found`` are in no order."""
    rng = np.random.default_rng(8)
    planted, found = [], []
    for number, ((suite, copies), (gain, planted_gain)) in enumerate(GAINS.items()):
        document = np.r_[np.arange(NUM_DOCUMENTS), rng.integers(0, NUM_DOCUMENTS, NUM - NUM_DOCUMENTS)]
        for w in range(NUM):
            truth = sorted(rng.choice(M, int(rng.integers(1, 5)), replace=False).tolist())
            if w < 12:
                truth = [w]  # distances at both ends of each third
            short = rng.normal(3, 0.4)
            row = {
                "window_id": 1000 * number + w, "suite": suite, "doc_id": f"{document[w]:016x}", "num_planted": copies,
                "planted_positions": truth, "planted_distance_tokens": FULL - float(np.mean(truth)),
                "token_texts": ["a"] * FULL, "target_text": "b", "loss_short_nats": short,
                "loss_short_no_gap_nats": short - rng.normal(GAP_COST[suite, copies], 0.1),
                "loss_long_nats": short - rng.normal(gain, 0.5), "loss_planted_nats": short - rng.normal(planted_gain, 0.5),
            }  # fmt: skip
            planted.append(row)
            for selector, strength in (("kl", 3.0), ("attention", 1.0)):
                scores = rng.random(M) + strength * np.isin(np.arange(M), truth) * rng.random(M)
                ranked = np.argsort(-scores).tolist()
                found.append({"window_id": row["window_id"], "selector": selector, "ranked_positions": ranked})
    records = [{"suite": suite, "num_planted": copies, "local_len": LOCAL, "full_len": FULL} for suite, copies in GAINS]
    manifest: dict[str, Any] = {
        "kind": "validation", "status": "complete", "run_id": "id", "run": "the run", "source": "a text", "split": "held-out",
        "num_parts": 1, "suites": records[::-1], "validation": {"k": KS}, "context": LENGTHS,
        "visibility": "contextual", "positions": "compact",
    }  # fmt: skip
    folder: Path = tmp_path_factory.mktemp("validation") / "tables"
    schemas = schemas_of(manifest)
    for table, rows in (("planted", planted), ("found", [found[i] for i in rng.permutation(len(found))])):
        content = pa.Table.from_pylist(rows, schema=schemas[table])
        write_part(folder, table, part=0, content=content, metadata={"run_id": "id"})
    write_manifest(folder, manifest)
    return detection(folder), planted, {(row["window_id"], row["selector"]): row["ranked_positions"] for row in found}


def test_each_number_of_a_suite_is_of_its_own_windows(
    made: tuple[Detection, list[dict[str, Any]], dict[Any, list[int]]],
) -> None:
    of, planted, ranked_of = made
    assert (of.run, of.run_id, of.source, of.split) == ("the run", "id", "a text", "held-out")
    assert of.setup.label == "contextual, compact positions, no anchor"
    assert [(suite.suite, suite.num_planted) for suite in of.suites] == list(GAINS)
    for suite in of.suites:
        key = (suite.suite, suite.num_planted)
        rows = [row for row in planted if (row["suite"], row["num_planted"]) == key]
        doc_ids, ones = [row["doc_id"] for row in rows], np.ones(len(rows))
        assert (suite.local_len, suite.full_len, suite.num_windows, suite.num_documents) == (
            LOCAL,
            FULL,
            NUM,
            NUM_DOCUMENTS,
        )
        sizes = [len(row["planted_positions"]) for row in rows]
        assert suite.mean_planted_tokens == pytest.approx(np.mean(sizes))
        assert suite.chance == pytest.approx(np.mean(sizes) / M)
        names = ("short", "short_no_gap", "long", "planted")
        losses = {name: np.array([row[f"loss_{name}_nats"] for row in rows]) for name in names}
        gains = {f"{name}_gain": losses["short"] - losses[name] for name in ("long", "planted")}
        for name, values in {**{f"loss_{name}": of for name, of in losses.items()}, **gains}.items():
            found = numbers(getattr(suite, f"{name}_nats"))
            assert found == pytest.approx(expected_mean(values, ones, doc_ids=doc_ids), abs=1e-6)
        lower = losses["short_no_gap"] if GAP_COST[key] > 0 else losses["short"]
        expected = expected_mean(lower - losses["long"], ones, doc_ids=doc_ids)
        assert numbers(suite.gate_gain_nats) == pytest.approx(expected, abs=1e-6)
        assert suite.long_gain_nats.is_above_zero == (suite.suite == "needle-number")
        assert suite.gate == (
            "passed" if key == ("needle-number", 2) else "failed"
        )  # of one copy the gap's cost is left
        assert {entry.selector for entry in suite.selectors} == {"kl", "attention"} and len(suite.selectors) == 2
        for entry in suite.selectors:
            truths = [set(row["planted_positions"]) for row in rows]
            ranked = [ranked_of[row["window_id"], entry.selector] for row in rows]
            at_truth = [len(t & set(of[: len(t)])) / len(t) for t, of in zip(truths, ranked, strict=True)]
            expected = expected_share(at_truth, ones, doc_ids=doc_ids)
            assert numbers(entry.precision_at_truth) == pytest.approx(expected)
            assert [at_k.k for at_k in entry.at_k] == KS
            for at_k in entry.at_k:
                hits = np.array([len(t & set(of[: at_k.k])) for t, of in zip(truths, ranked, strict=True)])
                most = np.minimum(sizes, at_k.k)
                for estimate, by in ((at_k.precision, at_k.k), (at_k.recall, np.array(sizes))):
                    expected = expected_share(hits / most, most / by, doc_ids=doc_ids)  # of what can be found
                    assert numbers(estimate) == pytest.approx(np.mean(most / by) * np.array(expected))
            for third, (low, high) in zip(entry.by_distance, ((8, 12), (12, 16), (16, 20)), strict=True):
                assert (third.distance_above_tokens, third.distance_to_tokens) == (low, high)
                inside = np.array([low < row["planted_distance_tokens"] <= high for row in rows])
                assert third.num_windows == inside.sum()
                expected = expected_share(at_truth, inside, doc_ids=doc_ids)
                assert third.precision_at_truth is not None
                assert third.precision_at_truth.mean == pytest.approx(expected[0])
                assert third.precision_at_truth.has_interval == (np.unique(np.array(doc_ids)[inside]).size >= 50)
                if third.precision_at_truth.has_interval:
                    assert numbers(third.precision_at_truth) == pytest.approx(expected)
