"""Every column of the influence tables, row by row, against its definition.

All lengths differ (local, full, training row, M), seeds are not 0, several windows of a document carry weights, and the text
holds every document several times, in one source and in two, documents of the training text, and parts of them.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from brute_force import (
    DRAWN_LABELS,
    SEES_TARGET,
    Definition,
    assert_forward_selection,
    assert_same_row,
    choices,
    expected_evaluations,
    expected_scores,
    kl,
    tokens_under,
)
from conftest import write_corpus
from tokenizers import Tokenizer

from olmo_sparsity.config import Config
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.model.checkpoint import load_model
from olmo_sparsity.records.selectors import ALL_SELECTORS
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.merging import check_tables
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.text.corpus import make_document
from olmo_sparsity.text.null_contexts import draw_null_contexts
from olmo_sparsity.text.preparation import prepare
from olmo_sparsity.text.store import TokenStore, open_store
from olmo_sparsity.text.target_classes import target_class
from olmo_sparsity.text.vocabulary import read_tokenizer
from olmo_sparsity.text.windows import sample_windows

LOCAL, FULL, TRAIN_LEN, M = 5, 18, 11, 13
KS, SEED, NUM_WINDOWS, MASKS, DRAWS = [1, 3, 4], 4, 10, 20, 2
LASSO_ALPHA = 0.01  # of ContextCite, on standardised masks


def training_documents(run: Path) -> list[list[int]]:
    """Return the tokens of the training documents of a run, without EOS."""
    store = open_store(Path(read_json(run / "manifest.json")["token_store"]), "train")
    return [store.tokens[begin : end - 1].tolist() for begin, end in zip(store.begins_G, store.ends_G, strict=True)]


@pytest.fixture(scope="module")
def tokenizer(tiny_run: Path) -> Tokenizer:
    return read_tokenizer(tiny_run / "tokenizer.json")


@pytest.fixture(scope="module")
def texts(tiny_run: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The texts of two sources: five in the first and three in the second, of which two are in both; each several times.

    One of them holds a stretch of training text, and a document of the training text is in both sources.
    """
    trained = [tokenizer.decode(tokens) for tokens in training_documents(tiny_run) if len(tokens) > FULL + 20]
    new = [
        json.loads(line)["text"]
        for line in write_corpus(tmp_path_factory.mktemp("new") / "x.jsonl", 40, seed=97).open()
    ]
    # With quotation marks: whether one closes depends on how many the window holds before it.
    long = [text.replace(" ", '" ') for text in new if len(text) > 220][:6]
    long[1] = f"{long[1]} {trained[1]}"
    return {"a.jsonl": [*long[:5], trained[0]] * 3, "b.jsonl": [*long[3:], trained[0]] * 2}


@pytest.fixture(scope="module")
def config(tiny_config: Config, texts: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("sources")
    for name, of_file in texts.items():
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in of_file))
    influence = dataclasses.replace(
        tiny_config.influence,
        local_len=LOCAL,
        full_len=FULL,
        data=str(folder),
        num_windows=NUM_WINDOWS,
        windows_per_part=4,
        max_windows_per_document=1,
        seed=SEED,
        k=KS,
        selectors=list(ALL_SELECTORS),
        resampled_draws=DRAWS,
        lasso_masks=MASKS,
    )
    context = dataclasses.replace(tiny_config.context, train_len=TRAIN_LEN)
    return dataclasses.replace(tiny_config, influence=influence, context=context)


@pytest.fixture(scope="module")
def exact(config: Config, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measure(config, tiny_run, out=tmp_path_factory.mktemp("columns") / "exact")


@pytest.fixture(scope="module")
def definition(tiny_run: Path) -> Definition:
    return Definition(load_model(tiny_run / "checkpoints" / "latest", torch.device("cpu")), LOCAL)


@pytest.fixture(scope="module")
def store(config: Config, tiny_run: Path) -> TokenStore:
    """The measured text as it is prepared; what a window is drawn from has tests of its own."""
    data = dataclasses.replace(config.data, source=str(config.influence.data))
    return open_store(prepare(data, tokenizer_file=tiny_run / "tokenizer.json"), "measured")


def rows_of(folder: Path, table: str, **equal: object) -> list[dict[str, Any]]:
    rows = read_table(folder, table).to_pylist()
    return [row for row in rows if all(row[name] == value for name, value in equal.items())]


def test_windows(
    exact: Path,
    tiny_run: Path,
    texts: dict[str, list[str]],
    tokenizer: Tokenizer,
    store: TokenStore,
    definition: Definition,
) -> None:
    trained = training_documents(tiny_run)
    stretches = {tuple(tokens[i : i + 13]) for tokens in trained for i in range(len(tokens) - 12)}
    documents = {f"{make_document(text, '').doc_id:016x}": text for of_file in texts.values() for text in of_file}
    is_trained = np.array([store.tokens[a : b - 1].tolist() in trained for a, b in zip(store.begins_G, store.ends_G)])  # noqa: B905
    assert is_trained.sum() == 5
    drawn = sample_windows(
        store, FULL, num_windows=NUM_WINDOWS, max_per_document=1, seed=SEED, exclude_ids=store.doc_ids_G[is_trained]
    )
    null = draw_null_contexts(drawn, M, kind="document", seed=SEED)
    sources = store.source_of(drawn.document_W)
    windows, numbers = rows_of(exact, "windows"), np.arange(NUM_WINDOWS)
    assert len(windows) == NUM_WINDOWS
    for w, window in enumerate(windows):
        ids = tokenizer.encode(documents[window["doc_id"]]).ids
        start = int(drawn.start_W[w] - store.begins_G[drawn.document_W[w]])
        tokens, target = ids[start : start + FULL], ids[start + FULL]
        words = [tokenizer.decode([token]) for token in [*tokens, target]]
        null_tokens = null.tokens(numbers[[w]])[0].tolist()
        null_words = [tokenizer.decode([token]) for token in null_tokens] + words[M:-1]
        of_target = {"target_id": target, "target_text": words[-1], "num_long_range": M}
        others = [[*null_tokens, *tokens[M:]], tokens]
        p_all_null, p_all = (definition.log_q(row, [range(M)])[0] for row in others)
        p_short = definition.log_q(tokens, [[]])[0]
        p_recent = definition.log_q(tokens, [range(M - (TRAIN_LEN - LOCAL), M)])[0]
        draws = [
            np.random.default_rng([SEED, DRAWN_LABELS, w, draw]).standard_exponential(len(p_short)) for draw in (0, 1)
        ]
        labels = [int(np.argmin(race / np.exp(p_short))) for race in draws]
        with_target = [*tokens, target]
        expected = {
            "window_id": w,
            "doc_id": drawn.doc_ids(numbers)[w],
            "weight": float(drawn.weight_W[w]),
            "source": sources[w],
            "split": "held-out",
            "train_overlap": any(tuple(with_target[i : i + 13]) in stretches for i in range(FULL + 1 - 12)),
            "start_token": start,
            "token_ids": tokens,
            "token_texts": words[:-1],
            "target_id": target,
            "target_text": words[-1],
            "target_class": target_class(tokens, words[:-1], **of_target),  # type: ignore[arg-type]
            "null_doc_id": null.doc_ids(numbers)[w],
            "null_token_ids": null_tokens,
            "loss_short_nats": -p_short[target],
            "loss_long_nats": -p_all[target],
            "gain_long_nats": p_all[target] - p_short[target],
            "null_loss_long_nats": -p_all_null[target],
            "null_gain_long_nats": p_all_null[target] - p_short[target],
            "null_target_class": target_class(others[0], null_words, **of_target),  # type: ignore[arg-type]
            # Without an anchor rotary attention reads recent tokens alike in place and from position 0 on.
            "loss_short_no_gap_nats": -p_short[target],
            "loss_train_len_nats": -p_recent[target],
            "loss_train_len_no_gap_nats": -p_recent[target],
            "gain_beyond_nats": p_all[target] - p_recent[target],
            "kl_short_nats": kl(p_all, p_short),
            "null_kl_short_nats": kl(p_all_null, p_short),
            "resampled_target_ids": labels,
            "resampled_loss_short_nats": -p_short[labels],
            "resampled_loss_long_nats": -p_all[labels],
            "kl_short_to_long_nats": kl(p_short, p_all),
            "entropy_short_nats": -(np.exp(p_short) * p_short).sum(),
        }
        assert_same_row(window, expected)
        null_text = documents[window["null_doc_id"]]
        assert null_text != documents[window["doc_id"]] and window["source"] in texts
        assert all(text in texts[window["source"]] for text in (null_text, documents[window["doc_id"]]))
        assert " ".join(map(str, null_tokens)) in " ".join(map(str, tokenizer.encode(null_text).ids))
    assert check_tables(exact).problems == []


def test_the_windows_can_tell_one_definition_from_another(exact: Path, texts: dict[str, list[str]]) -> None:
    """Each column has several values, and none is that of a column that it could be mistaken for."""
    windows = rows_of(exact, "windows")
    for column in ("weight", "source", "train_overlap", "target_class", "start_token"):
        assert len({window[column] for window in windows}) > 1, column
    assert {window["source"] for window in windows} == set(texts)

    def class_of(window: dict[str, Any], ids: list[int], num_long_range: int) -> str:
        return target_class(
            ids,
            window["token_texts"],
            target_id=window["target_id"],
            target_text=window["target_text"],
            num_long_range=num_long_range,
        )

    assert any(window["target_class"] != class_of(window, window["token_ids"], LOCAL) for window in windows)
    assert any(window["target_class"] != window["null_target_class"] for window in windows)
    of_real_texts = [class_of(window, tokens_under(window, "null"), M) for window in windows]
    assert of_real_texts != [window["null_target_class"] for window in windows]
    losses = [name for name in windows[0] if name.startswith(("loss_", "null_loss_", "gain_", "null_gain_"))]
    losses = [name for name in losses if "_no_gap_" not in name]  # without an anchor the gap makes no difference
    for first, second in ((a, b) for i, a in enumerate(losses) for b in losses[i + 1 :]):
        assert max(abs(window[first] - window[second]) for window in windows) > 1e-3, (first, second)


def test_selections(exact: Path, definition: Definition) -> None:
    rows = iter(rows_of(exact, "selections"))
    for window in rows_of(exact, "windows"):
        for name, context, draw, choice in choices(window, definition, selectors=ALL_SELECTORS, seed=SEED):
            row = next(rows)
            scores = row["scores"]
            if name in ("greedy", "greedy-kl"):
                assert_forward_selection(name, choice, scores, max(KS))
                expected_M = np.array(scores, dtype=float)
            else:
                expected_M = expected_scores(name, choice, lasso_masks=MASKS, lasso_alpha=LASSO_ALPHA)
            best = sorted(range(M), key=lambda j, scores=scores: (-scores[j], -j))[: max(KS)]
            sets = [best[:k] for k in KS]
            losses, short = choice.losses(sets), choice.losses([[]])[0]
            expected = {
                "window_id": window["window_id"],
                "doc_id": window["doc_id"],
                "selector": name,
                "context": context,
                "draw": draw,
                "sees_target": SEES_TARGET[name],
                "num_evaluations": expected_evaluations(name, M, max_k=max(KS), lasso_masks=MASKS),
                "positions": best,
                "distance_tokens": [FULL - j for j in best],
                "scores": expected_M.tolist(),
                "k": KS,
                "loss_sparse_nats": losses,
                "gain_sparse_nats": short - losses,
                "kl_sparse_nats": None if "resampled" in context else choice.divergences(sets),
                "kl_short_to_sparse_nats": choice.costs_of_showing(sets) if "resampled" in context else None,
            }
            assert_same_row(row, expected)
    assert next(rows, None) is None


def test_lists_over_positions_have_a_fixed_length(exact: Path) -> None:
    assert read_table(exact, "selections").schema.field("scores").type == pa.list_(pa.float32(), M)


def test_losses_have_the_precision_that_is_asked_for(
    config: Config, exact: Path, tiny_run: Path, tmp_path: Path
) -> None:
    settings = {"precision": "bf16", "num_windows": 5, "selectors": ["nearest"], "resampled_draws": 0}
    influence = dataclasses.replace(config.influence, **settings)  # type: ignore[arg-type]
    folder = measure(dataclasses.replace(config, influence=influence), tiny_run, out=tmp_path / "bf16")
    assert [read_json(tables / "manifest.json")["precision"] for tables in (exact, folder)] == ["fp32", "bf16"]
    for column in ("loss_short_nats", "loss_long_nats", "null_loss_long_nats", "loss_train_len_nats"):
        pairs = zip(rows_of(folder, "windows"), rows_of(exact, "windows"), strict=False)
        differences = [abs(low[column] - high[column]) for low, high in pairs]
        assert 1e-4 < max(differences) < 0.1  # bf16 has 8 bits
