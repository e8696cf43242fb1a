"""Visible sets by layer and head against an attention mask by head: in transformers, in float64, and in the reference of OLMo."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest
import reference
import tiny_models
import tiny_windows
import torch
import transformers_models
from scipy.stats import binom
from transformers_models import VOCAB

from olmo_sparsity import api
from olmo_sparsity.config import InfluenceConfig, ModelConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.window_influence import run_selectors, try_selectors
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import read_sets, short_log_probs
from olmo_sparsity.measure.visible.passes import VisibleSets
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.records.policies import best_entries, share_of_heads
from olmo_sparsity.records.selectors import SELECTORS, by_head, names_where, rank

W, FULL, LOCAL, M = 3, 22, 6, 16
TEXT = "the river of the garden was quiet " * 8
VARIANTS = names_where(lambda selector: selector.entries_by_head)
ONE_SET = {f"{name}-heads": name for name in ("h2o", "snapkv", "vatp", "key-norm", "quest", "magicpig")}


def random_entries(num_layers: int, num_heads: int, size: int, *, num_rows: int = W) -> torch.Tensor:
    scores = np.random.default_rng(8).random((num_rows, num_layers, num_heads, M))
    return torch.from_numpy(rank(scores)[..., :size].copy())


def drawn_tokens(num: int = W) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.randint(3, VOCAB, (num, FULL + 1), generator=torch.Generator().manual_seed(6))
    return drawn[:, :-1].contiguous(), drawn[:, -1].contiguous()


def layers_of(raw: Any) -> Any:
    return raw.gpt_neox.layers if hasattr(raw, "gpt_neox") else raw.model.layers


def loss_under_masks(
    kind: str, row: list[int], target: int, entries: np.ndarray, *, first: int, num_heads: int
) -> float:
    """Return the loss of the target under a mask for each layer and head of queries, by the plain implementation in float64.

    Args:
        kind: of the model.
        row: the tokens, the anchor among them.
        target: the token behind them.
        entries: of each layer and head of keys, long-range positions [layers, H, S].
        first: the number of anchors.
        num_heads: of queries.
    """
    raw = transformers_models.build(kind).raw.double()
    raw.set_attn_implementation("eager")
    length, sharing = len(row), num_heads // entries.shape[1]

    def mask_of(layer: int) -> torch.Tensor:
        mask = torch.full((1, num_heads, length, length), torch.finfo(torch.float64).min, dtype=torch.float64)
        for head in range(num_heads):
            kept = {*range(first), *(first + entries[layer, head // sharing]).tolist()}
            for i in range(length):
                for j in range(i + 1):
                    if i < first + M or j >= first + M or j in kept:
                        mask[0, head, i, j] = 0
        return mask

    def masked(number: int) -> Any:
        mask = mask_of(number)
        return lambda _, args, kwargs: (args, kwargs | {"attention_mask": mask})

    for number, layer in enumerate(layers_of(raw)):
        layer.register_forward_pre_hook(masked(number), with_kwargs=True)
    with torch.no_grad():
        logits = raw(torch.tensor([row]), use_cache=False).logits[0, -1]
    return -float(logits.log_softmax(dim=-1)[target])


def losses_of(evaluator: Evaluator, tokens: torch.Tensor, targets: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    sets = [VisibleSets(torch.arange(len(tokens)), visible)]
    (readout,) = read_sets(evaluator, tokens, labels_WA=targets[:, None], sets=sets)
    return readout.losses_RA[:, 0]


@pytest.mark.parametrize("path", ["compact", "plain"])
@pytest.mark.parametrize("anchor_id", [None, 1])
@pytest.mark.parametrize(
    ("kind", "key_heads"), [("llama", 2), ("qwen-3", 2), ("gpt-neox", 4), ("olmo", 4), ("gemma-3", 2)]
)
def test_sets_by_head_are_a_mask_by_head(kind: str, key_heads: int, anchor_id: Optional[int], path: Any) -> None:
    (tokens, targets), entries = drawn_tokens(), random_entries(2, key_heads, 3)
    evaluator = Evaluator(
        transformers_models.build(kind), LOCAL, visibility="contextual", anchor_id=anchor_id, path=path
    )
    found = losses_of(evaluator, tokens, targets, entries)
    anchors = [] if anchor_id is None else [anchor_id]
    for w in range(W):
        row, target = [*anchors, *tokens[w].tolist()], int(targets[w])
        expected = loss_under_masks(kind, row, target, entries[w].numpy(), first=len(anchors), num_heads=4)
        assert float(found[w]) == pytest.approx(expected, abs=1e-5)
    others = losses_of(evaluator, tokens, targets, entries.flip(1))  # the sets of the layers exchanged
    exchanged = losses_of(evaluator, tokens, targets, entries.flip(2))  # those of the heads
    assert (others - found).abs().min() > 1e-4 and (exchanged - found).abs().min() > 1e-4


@tiny_models.KINDS
@pytest.mark.parametrize("path", ["compact", "plain"])
@pytest.mark.parametrize("anchor_id", [None, 5])
def test_sets_by_head_of_olmo_are_the_definition(kind: ModelConfig, anchor_id: Optional[int], path: Any) -> None:
    model = tiny_models.build(kind).eval()
    tokens, targets = tiny_windows.windows(2)
    entries = random_entries(kind.n_layers, kind.n_heads, 4, num_rows=2)
    evaluator = Evaluator(model, LOCAL, visibility="contextual", anchor_id=anchor_id, path=path)
    found = losses_of(evaluator, tokens, targets, entries)
    anchors = [] if anchor_id is None else [anchor_id]
    first = len(anchors)
    for w in range(2):
        row = [*anchors, *tokens[w].tolist()]
        of_heads = [
            [{*range(first), *(first + kept).tolist(), *range(first + M, len(row))} for kept in of_layer]
            for of_layer in entries[w].numpy()
        ]
        log_p, _ = reference.evaluate(
            model, row, list(range(len(row))), set(), first_reader=first + M, of_heads=of_heads
        )
        assert float(found[w]) == pytest.approx(-log_p[int(targets[w])], abs=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 10**6])
def test_the_same_set_in_every_head_is_the_set(batch_tokens: int) -> None:
    """Also next to sets of another size in the same question, whatever a pass holds."""
    tokens, targets = drawn_tokens()
    evaluator = Evaluator(transformers_models.build("llama"), LOCAL, visibility="contextual", batch_tokens=batch_tokens)
    one_set = random_entries(1, 1, 5)[:, 0, 0]
    everywhere = one_set[:, None, None].expand(-1, 2, 2, -1)
    windows = torch.arange(W)
    sets = [VisibleSets(windows, one_set), VisibleSets(windows, everywhere), VisibleSets(windows, everywhere[..., :2])]
    readouts = read_sets(evaluator, tokens, labels_WA=targets[:, None], sets=sets)
    assert torch.allclose(readouts[0].losses_RA, readouts[1].losses_RA, atol=1e-6)
    assert (readouts[0].losses_RA - readouts[2].losses_RA).abs().min() > 1e-4


# --- what the selectors choose


def scores_of(*, max_k: int = 4, context: str = "real", seed: int = 0) -> WindowScores:
    tokens, targets = drawn_tokens()
    evaluator = Evaluator(transformers_models.build("llama"), LOCAL, visibility="contextual", anchor_id=1)
    batch = WindowBatch(tokens, targets, window_ids_W=np.arange(W), context=context, seed=seed)
    predictions = Predictions(evaluator, batch, log_p_short_WV=short_log_probs(evaluator, tokens), with_kl=True)
    return WindowScores(predictions, max_k=max_k)


def scores_of_heads(name: str, scores: WindowScores) -> np.ndarray:
    """Return the scores of each window, layer and head of queries (here 4), by the formulas that `test_policies` checks."""
    needs = ("accumulated_attention", "observed_attention", "values", "keys", "queries")
    found = []
    for window in scores.inputs(needs):
        keys, values = window.keys.repeat(2, axis=1), window.values.repeat(2, axis=1)
        if name == "h2o":
            of_heads = window.accumulated_attention
        elif name == "snapkv":
            votes = np.pad(window.observed_attention, [(0, 0), (0, 0), (2, 2)])
            of_heads = np.stack([votes[..., j : j + 5].sum(axis=-1) for j in range(M)], axis=-1)
        elif name == "vatp":
            of_heads = window.accumulated_attention * np.abs(values).sum(axis=-1)
        elif name == "key-norm":
            of_heads = -np.sqrt((keys**2).sum(axis=-1))
        elif name == "magicpig":
            centred = keys - keys.mean(axis=2, keepdims=True)
            query = window.queries[:, :, None]
            cosines = (centred * query).sum(-1) / np.linalg.norm(centred, axis=-1) / np.linalg.norm(query, axis=-1)
            of_heads = binom.sf(1, 150, (1 - np.arccos(cosines) / np.pi) ** 10)
        else:  # one page of 16 tokens holds all of them
            query = window.queries[:, :, None]
            highest, lowest = keys.max(axis=2, keepdims=True), keys.min(axis=2, keepdims=True)
            of_heads = np.maximum(query * highest, query * lowest).sum(axis=-1).repeat(M, axis=-1)
        found.append(of_heads)
    return np.stack(found)


@pytest.mark.parametrize("variant", ONE_SET)
def test_a_variant_keeps_the_best_entries_of_each_head_of_keys(variant: str) -> None:
    scores = scores_of()
    of_heads, entries = scores_of_heads(ONE_SET[variant], scores), SELECTORS[variant].entries_by_head
    assert entries is not None
    found = entries(scores)
    assert found.shape == (W, 2, 2, 4)
    for w, layer, head in np.ndindex(W, 2, 2):
        of_keys = of_heads[w, layer, 2 * head : 2 * head + 2].mean(axis=0)  # two heads of queries share one of keys
        best = sorted(range(M), key=lambda j: (-round(float(of_keys[j]), 6), -j))[:4]
        assert found[w, layer, head].tolist() == best
    if variant != "quest-heads":
        assert any(len({tuple(sorted(kept)) for kept in of.reshape(4, 4).tolist()}) > 1 for of in found)


def test_random_entries_depend_on_seed_window_and_context_alone() -> None:
    choose = SELECTORS["random-heads"].entries_by_head
    assert choose is not None
    found = choose(scores_of())
    assert (np.diff(np.sort(found, axis=-1), axis=-1) > 0).all() and found.min() >= 0 and found.max() < M
    assert len({tuple(kept) for kept in found.reshape(-1, 4).tolist()}) == W * 4  # another draw in each
    assert (choose(scores_of(max_k=2)) == found[..., :2]).all()
    for w, layer, head in np.ndindex(found.shape[:3]):
        drawn = np.random.default_rng([0, 23, w, 0]).random((2, 2, M))[layer, head]  # 23: its purpose
        assert found[w, layer, head].tolist() == np.argsort(-drawn)[:4].tolist()
    assert not (choose(scores_of(seed=1)) == found).all() and not (choose(scores_of(context="null")) == found).all()
    many = [best_entries(np.random.default_rng(i).random((1, 1, M)), 1, num_key_heads=1).item() for i in range(800)]
    assert np.bincount(many, minlength=M) == pytest.approx(np.full(M, 50), abs=30)


def test_a_head_of_keys_keeps_the_best_by_the_mean_of_the_queries_that_share_it() -> None:
    """Three heads of queries share one of two heads of keys, which follow each other."""
    scores = np.random.default_rng(2).random((4, 6, M))
    kept = best_entries(scores, 5, num_key_heads=2)
    assert kept.shape == (4, 2, 5)
    for layer in range(4):
        for head in range(2):
            mean_M = sum(scores[layer, 3 * head + query] for query in range(3)) / 3
            assert kept[layer, head].tolist() == sorted(range(M), key=lambda entry: -mean_M[entry])[:5]


def test_the_measured_losses_are_those_of_the_entries_that_heads_keep() -> None:
    settings = InfluenceConfig(selectors=["h2o", *VARIANTS], k=[1, 4, M], visibility="contextual")
    scores = scores_of(max_k=M)
    outcomes = run_selectors(scores, settings, selectors=settings.selectors, with_kl=True)
    log_p = scores.predictions.log_p_long_WV.double()
    for name in VARIANTS:
        outcome, choose = outcomes[name], SELECTORS[name].entries_by_head
        assert choose is not None and outcome.kl_sparse_WK is not None and outcome.num_entries_WK is not None
        entries = choose(scores)
        for w in range(W):
            row, target = [1, *scores.windows.tokens_WT[w].tolist()], int(scores.labels_W[w])
            for number, k in enumerate((1, 4)):
                kept = entries[w, :, :, :k]
                expected = loss_under_masks("llama", row, target, kept, first=1, num_heads=4)
                assert outcome.loss_sparse_WK[w, number] == pytest.approx(expected, abs=1e-5)
                assert outcome.num_entries_WK[w, number] == len(set(kept.ravel().tolist()))
        assert outcome.loss_sparse_WK[:, 2] == pytest.approx(scores.loss_long_W, abs=1e-6)
        assert (outcome.kl_sparse_WK[:, 2] == 0).all() and (outcome.num_entries_WK[:, 2] == M).all()
        sets = [VisibleSets(torch.arange(W), torch.from_numpy(entries[..., :4].copy()))]
        (readout,) = read_sets(
            scores.evaluator, scores.windows.tokens_WT, labels_WA=torch.arange(VOCAB).expand(W, -1), sets=sets
        )
        divergence = (log_p.exp() * (log_p + readout.losses_RA.double())).sum(dim=1)
        assert outcome.kl_sparse_WK[:, 1] == pytest.approx(divergence.numpy(), abs=1e-5)


def test_shares_and_ranks_count_the_heads_that_keep_an_entry() -> None:
    entries = np.array([[[[3, 0], [3, 1]], [[2, 3], [5, 1]]]])  # one window, two layers of two heads, two entries each
    shares = share_of_heads(entries, 6)
    assert shares.tolist() == [[0.25, 0.5, 0.25, 0.75, 0.0, 0.25]]
    assert rank(shares)[0, :3].tolist() == [3, 1, 5]


# --- in the tables, and what is refused


def test_tables_say_what_one_row_can_say(tiny_run: Path) -> None:
    model = api.open_model(tiny_run, visibility="contextual")
    windows = api.windows_from_texts(model, [TEXT], num_windows=3)
    names = ["h2o", "random", "h2o-heads", "random-heads"]
    results = api.measure(model, windows, selectors=names, k=[1, 3], resampled_draws=1)
    selections = results.selections
    for row in selections.to_dict("records"):
        counts, num_long_range = list(row["num_tokens"]), len(row["scores"])
        if row["selector"] in by_head(names):
            kept = np.asarray(row["scores"]) * model.config.model.n_layers * model.config.model.n_heads
            assert row["context"] in ("real", "null")
            assert row["scores"].sum() == pytest.approx(3, rel=1e-5) and kept == pytest.approx(kept.round(), abs=1e-4)
            ranked = sorted(range(num_long_range), key=lambda j: (-row["scores"][j], -j))
            assert list(row["positions"]) == ranked[:3]
            assert counts[1] == int((kept > 0).sum()) and 1 <= counts[0] <= counts[1]
        else:
            assert counts == [1, 3]
    summary = results.summarize()
    assert summary.at("h2o", "real", 3).mean_tokens == 3 < summary.at("random-heads", "real", 3).mean_tokens


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"visibility": "hidden"}, "chooses entries"),
        ({"unit": "word"}, "heads keep single entries; leave it out, or influence.unit = word$"),
        ({"path": "masked"}, "the same for all heads"),
        ({"selectors": ["snapkv-heads", "random"]}, "name a selector beside it"),
        ({"selectors": ["snapkv-heads", "unmask-one"]}, "name a selector beside it"),
    ],
)
def test_what_cannot_be_measured_by_head_is_refused(changes: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"selectors": ["h2o", "snapkv-heads"], "visibility": "contextual"}
    assert InfluenceConfig(**given).selectors == ["h2o", "snapkv-heads"]
    with pytest.raises(UserError, match=words):
        InfluenceConfig(**given | changes)


def test_layers_with_a_window_are_refused_where_it_cuts() -> None:
    tokens, targets = drawn_tokens()
    evaluator = Evaluator(transformers_models.build("gemma-3, window of 7"), LOCAL, visibility="contextual")
    with pytest.raises(UserError, match="some layers see the latest 7 positions only"):
        losses_of(evaluator, tokens, targets, random_entries(2, 2, 3))


class DrawnWindows:
    """Windows whose null context is their own text; which of them are asked for is kept."""

    store = None

    def __init__(self, num: int) -> None:
        tokens, targets = drawn_tokens(num)
        self.rows, self.asked = torch.cat([tokens, targets[:, None]], dim=1).numpy(), []  # type: ignore[var-annotated]

    def __len__(self) -> int:
        return len(self.rows)

    def tokens(self, numbers: np.ndarray) -> np.ndarray:
        self.asked.append(numbers.tolist())
        return self.rows[numbers]


def test_what_a_model_cannot_run_is_found_on_the_first_window() -> None:
    """Before anything long: sets by head as well as what is read of the layers."""

    def tried(kind: str, *selectors: str, num: int = W) -> list[list[int]]:
        windows = DrawnWindows(num)
        given: Any = SimpleNamespace(windows=windows, num_long_range=M, window_tokens=lambda ids: windows.rows[ids])
        settings = InfluenceConfig(selectors=list(selectors), visibility="contextual", k=[3])
        evaluator = Evaluator(transformers_models.build(kind), LOCAL, visibility="contextual")
        try_selectors(evaluator, given, settings=settings, tokenizer=None)  # type: ignore[arg-type]
        return windows.asked

    with pytest.raises(UserError, match="some layers see the latest 7 positions only"):
        tried("gemma-3, window of 7", "streaming-llm", "random-heads")
    with pytest.raises(UserError, match="cannot be read of such a model"):
        tried("gemma-2", "h2o")
    for name in ("h2o-heads", "random-heads"):
        with pytest.raises(
            UserError, match=r"have 1 to 2 heads of keys, .*; leave out the selectors whose names end in -heads$"
        ):
            tried("gemma-4", "kl", name)
    assert tried("gemma-4", "h2o", "snapkv") == [[0]]
    assert tried("llama", "kl", "h2o", "h2o-heads") == [[0]]
    assert tried("gemma-2", "kl", "streaming-llm") == tried("gemma-2", "h2o", num=0) == []  # nothing that could fail


def test_no_window_of_one_set_is_shown(tiny_run: Path) -> None:
    model = api.open_model(tiny_run, visibility="contextual")
    with pytest.raises(UserError, match="explore: h2o-heads chooses by head"):
        api.explore(model, TEXT, selectors=["h2o", "h2o-heads"])
