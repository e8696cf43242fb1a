"""Groups of tokens and pairs: every number by loops over the rows of made-up tables.

Groups differ in size, and their number differs by window and context; windows weigh 1 to 3 and share documents.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from drawn_documents import expected_of, numbers
from made_up import LENGTHS, M

from olmo_sparsity.statistics.single.breakdowns import by_distance
from olmo_sparsity.statistics.single.measurement import Measurement, SelectionKey, load
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import write_part
from olmo_sparsity.tables.schemas import schemas_of

KS, NUM, NUM_DOCUMENTS = [1, 2, 4], 90, 60
SELECTORS = {"kl": False, "unmask-one": True, "random": False}
CONTEXTS = ("real", "null")


class Written(NamedTuple):
    """Tables, and their rows by window."""

    folder: Path
    measurement: Measurement
    windows: list[dict[str, Any]]
    selections: dict[tuple[int, str, str], dict[str, Any]]
    sampled: list[dict[str, Any]]

    def weights(self, ids: Any = range(NUM)) -> np.ndarray:
        return np.array([self.windows[w]["weight"] for w in ids])

    def doc_ids(self, ids: Any = range(NUM)) -> list[str]:
        return [self.windows[w]["doc_id"] for w in ids]


def first_positions(rng: np.random.Generator) -> list[int]:
    """Return where 2 to 7 groups of the long-range tokens begin."""
    return [0, *sorted(rng.choice(np.arange(1, M), rng.integers(1, 7), replace=False).tolist())]


def selection(rng: np.random.Generator, window: dict[str, Any], selector: str, context: str) -> dict[str, Any]:
    """Return a row of ``selections`` with random scores, some of which are tied."""
    firsts = window["group_first" if context == "real" else "null_group_first"]
    ends = [*firsts[1:], M]
    scores = rng.integers(0, 4, len(firsts)).astype(float)
    if selector == "kl" and window["window_id"] % 7 == 0:
        scores[:] = 1.0
    order = np.argsort(-scores, kind="stable")[: KS[-1]].tolist()
    positions = [position for g in order for position in range(firsts[g], ends[g])]
    short = window["loss_short_nats"]
    gains = rng.normal(0.2, 0.3, len(KS))
    return {
        "window_id": window["window_id"], "doc_id": window["doc_id"], "selector": selector, "context": context, "draw": 0,
        "sees_target": SELECTORS[selector], "num_evaluations": int(rng.integers(5, 100)), "positions": positions,
        "distance_tokens": [20 - position for position in positions], "group_first": [firsts[g] for g in order],
        "group_last": [ends[g] - 1 for g in order], "scores": scores, "k": KS,
        "num_tokens": [sum(ends[g] - firsts[g] for g in order[:k]) for k in KS], "loss_sparse_nats": short - gains,
        "gain_sparse_nats": gains, "kl_sparse_nats": rng.gamma(1.0, 0.1, len(KS)), "kl_short_to_sparse_nats": None,
    }  # fmt: skip


def written(folder: Path, select: Callable[..., dict[str, Any]] = selection, **influence: Any) -> Written:
    """Write tables of groups, or of tokens where ``influence`` has no unit; ``select`` makes the rows of ``selections``."""
    rng = np.random.default_rng(5)
    documents = np.r_[np.arange(NUM_DOCUMENTS), rng.integers(0, NUM_DOCUMENTS, NUM - NUM_DOCUMENTS)]
    rng.shuffle(documents)
    has_groups = "unit" in influence
    windows = []
    for w in range(NUM):
        short, gain, null_gain = rng.normal(4, 0.5), rng.normal(0.5, 0.3), rng.normal(-0.1, 0.3)
        groups = [first_positions(rng), first_positions(rng)] if has_groups else [list(range(M))] * 2
        windows.append(
            {
                "window_id": w, "doc_id": f"{documents[w]:016x}", "weight": float(rng.integers(1, 4)), "source": "s",
                "split": "validation", "train_overlap": None, "start_token": 0, "token_ids": list(range(20)),
                "token_texts": ["a"] * 20, "target_id": 1, "target_text": "b", "target_class": "other",
                "null_doc_id": "0", "null_token_ids": list(range(M)), "group_first": groups[0],
                "null_group_first": groups[1], "loss_short_nats": short, "loss_short_no_gap_nats": short + 0.01,
                "loss_long_nats": short - gain, "gain_long_nats": gain, "null_loss_long_nats": short - null_gain,
                "null_gain_long_nats": null_gain, "null_target_class": "other", "kl_short_nats": rng.gamma(2.0, 0.1),
                "null_kl_short_nats": rng.gamma(2.0, 0.2), "resampled_target_ids": [], "resampled_loss_short_nats": [],
                "resampled_loss_long_nats": [], "entropy_short_nats": short, "loss_train_len_nats": short,
                "loss_train_len_no_gap_nats": short,
            }
        )  # fmt: skip
    selections = {
        (w, name, context): select(rng, windows[w], name, context)
        for w in range(NUM)
        for name in SELECTORS
        for context in CONTEXTS
    }
    manifest: dict[str, Any] = {
        "kind": "influence", "status": "complete", "run_id": "0", "run": "made-up", "source": "s", "split": "validation",
        "num_parts": 2, "context": LENGTHS, "influence": influence,
    }  # fmt: skip
    rows_of = {
        "windows": windows,
        "selections": list(selections.values()),
    }
    schemas = schemas_of(manifest)
    for table in ("windows", "selections", *(name for name in ("pairs",) if name in schemas)):
        rows = [rows_of[table][i] for i in rng.permutation(len(rows_of[table]))]
        for part in (0, 1):
            of_part = [row for row in rows if (row["window_id"] < 60) == (part == 0)]
            content = pa.Table.from_pylist(
                [{name: row.get(name) for name in schemas[table].names} for row in of_part], schema=schemas[table]
            )
            write_part(folder, table, part=part, content=content, metadata={"run_id": "0"})
    write_manifest(folder, manifest)
    return Written(folder, load(folder), windows, selections, sampled)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return written(tmp_path_factory.mktemp("groups") / "tables", unit="word")


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Written:
    return written(tmp_path_factory.mktemp("sampled") / "tables", unit="word")


def num_groups(written: Written, context: str) -> np.ndarray:
    column = "group_first" if context == "real" else "null_group_first"
    return np.array([len(window[column]) for window in written.windows])


def test_groups_are_counted_by_window_and_context(words: Written) -> None:
    measurement, weights = words.measurement, words.weights()
    assert (measurement.unit, measurement.ks, measurement.estimand) == ("word", KS, "targets")
    assert {name: info.sees_target for name, info in measurement.selectors.items()} == SELECTORS
    assert measurement.num_tokens is not None and measurement.optimisms.empty  # no label was drawn
    for context in CONTEXTS:
        assert measurement.num_groups_W(context).tolist() == num_groups(words, context).tolist()
        for selector in SELECTORS:
            rows = [words.selections[w, selector, context] for w in range(NUM)]
            for i, k in enumerate(KS):
                key = SelectionKey(selector, context, k)
                num_tokens = [row["num_tokens"][i] for row in rows]
                assert measurement.num_tokens[key].tolist() == num_tokens
                assert measurement.mean_tokens(key) == pytest.approx(np.average(num_tokens, weights=weights))
                is_all = [n <= k for n in num_groups(words, context)]
                assert measurement.all_visible_share(key) == pytest.approx(np.average(is_all, weights=weights))
    assert (num_groups(words, "real") == 4).any() and (num_groups(words, "real") < 4).any()
    assert measurement.num_units == pytest.approx(np.average(num_groups(words, "real"), weights=weights), abs=1e-6)


def test_the_cost_of_a_selector_is_its_mean_over_parts_and_contexts(words: Written) -> None:
    for selector, info in words.measurement.selectors.items():
        means = [
            np.mean([words.selections[w, selector, context]["num_evaluations"] for w in of_part])
            for of_part in (range(60), range(60, NUM))
            for context in CONTEXTS
        ]
        assert info.num_evaluations == round(np.mean(means))


def test_some_windows_and_selectors_keep_their_numbers(words: Written) -> None:
    every = words.measurement
    some = every.restrict(np.arange(NUM) % 3 == 1).restrict_selectors({"unmask-one": "one", "random": "random"})
    assert list(some.selectors) == ["one", "random"] and some.selectors["one"] == every.selectors["unmask-one"]
    assert some.windows["window_id"].tolist() == list(range(1, NUM, 3))
    for frame, whole in ((some.gains, every.gains), (some.divergences, every.divergences)):
        assert frame["one", "null", 2].tolist() == whole["unmask-one", "null", 2].tolist()[1::3]
        assert set(frame.columns.get_level_values("selector")) == {"one", "random"}
    assert some.num_tokens is not None and every.num_tokens is not None
    assert some.num_tokens["one", "real", 4].tolist() == every.num_tokens["unmask-one", "real", 4].tolist()[1::3]


def test_distances_of_groups_are_of_all_their_tokens(words: Written) -> None:
    entries = by_distance(words.folder, words.measurement)
    assert {(entry.selector, entry.context, entry.k) for entry in entries} == set(words.measurement.keys)
    for entry in entries[::5]:
        i, bins = KS.index(entry.k), {}
        rows = [words.selections[w, entry.selector, entry.context] for w in range(NUM)]
        chosen = [row["distance_tokens"][: row["num_tokens"][i]] for row in rows]
        total = [weight * len(of) for weight, of in zip(words.weights(), chosen, strict=True)]
        for b in (entry.bins[0], entry.bins[-4]):
            bins[b] = [weight * of.count(b.to_tokens) for weight, of in zip(words.weights(), chosen, strict=True)]
            expected = expected_of(lambda of, every: of / every, bins[b], total, doc_ids=words.doc_ids())
            assert numbers(b.share) == pytest.approx(expected)
            assert b.uniform == pytest.approx(1 / M) and b.center_tokens == b.from_tokens == b.to_tokens
            assert numbers(b.relative_share) == pytest.approx([M * number for number in expected])


def test_a_summary_of_groups_counts_them(words: Written) -> None:
    summary = summarize(words.measurement)
    assert (summary.unit, summary.num_units) == ("word", words.measurement.num_units)
    for entry in summary.selections:
        assert entry.mean_tokens == words.measurement.mean_tokens(entry.key)
        assert entry.all_visible_share == words.measurement.all_visible_share(entry.key)
