"""Every path of the engine against the definition: masks that are written out, on models of many families."""

from __future__ import annotations

import copy
import functools
import itertools
from types import SimpleNamespace
from typing import Any, Optional

import pytest
import torch
import torch.nn.functional as F
from defined import FULL, LOCAL, PATHS, M, kl, log_probs, random_sets, windows
from transformers_models import BOS, VOCAB, build

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.engine import LOGIT_ELEMENTS, Engine
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.compact import Compact
from olmo_sparsity.progress import listening

CLOSE: dict[str, Any] = {"atol": 2e-5, "rtol": 0}  # of log-probabilities of all tokens, also of very unlikely ones
W = 3
FAMILIES = [
    "llama", "olmo", "olmo-2", "qwen-3", "gpt-2", "gpt-neox", "gemma-2", "gpt-oss", "mistral, window of 10",
    "gemma-3, window of 7", "gpt-oss, window of 10",
]  # fmt: skip
family = pytest.mark.parametrize("kind", FAMILIES)
visible = pytest.mark.parametrize("visibility", ["hidden", "contextual"])
anchored = pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
in_turn = pytest.mark.parametrize(("visibility", "anchor_id"), [("hidden", BOS), ("contextual", None)])


@functools.cache
def model_of(kind: str) -> CausalLM:
    return build(kind)


def rows_of(engine: Engine, tokens_WT: torch.Tensor, windows_R: torch.Tensor, shown_RM: torch.Tensor) -> torch.Tensor:
    """The rows of all passes, each of which comes once."""
    found_RV = torch.full((len(windows_R), VOCAB), torch.nan)
    for rows, log_p_rV in engine.log_probs(tokens_WT, windows_R, shown_RM):
        assert found_RV[rows].isnan().all()
        found_RV[rows] = log_p_rV
    return found_RV


def every_set() -> tuple[torch.Tensor, torch.Tensor]:
    """Sets of all kinds for W windows: each token alone, all but it, all but some, nothing, everything, and random ones."""
    alone_MM, but_some = torch.eye(M, dtype=torch.bool), torch.ones(3, M, dtype=torch.bool)
    for number, (first, end) in enumerate([(3, 5), (9, 12), (M - 2, M)]):
        but_some[number, first:end] = False
    shown_SM = torch.cat([alone_MM, ~alone_MM, but_some, random_sets(12)])
    return torch.arange(W).repeat_interleave(len(shown_SM)), shown_SM.repeat(W, 1)


@family
@in_turn
def test_every_path_gives_what_the_definition_gives(kind: str, visibility: Any, anchor_id: Optional[int]) -> None:
    model, (tokens_WT, _), (windows_R, shown_RM) = model_of(kind), windows(W), every_set()
    defined = functools.partial(log_probs, model.raw, visibility=visibility, anchor_id=anchor_id)
    expected, ran = defined(tokens_WT[windows_R], shown_RM), {}
    for path in PATHS:
        for batch_tokens in (4096, 60):
            engine = Engine(model, LOCAL, visibility, anchor_id, path, batch_tokens)
            counts: list[int] = []
            with listening(counts.append):
                torch.testing.assert_close(rows_of(engine, tokens_WT, windows_R, shown_RM), expected, **CLOSE)
            ran[path] = sum(counts)
        for num in (1, LOCAL, FULL):  # behind the anchor, without a gap
            latest = engine.predictions(tokens_WT[:, -num:], torch.zeros(W, 0, dtype=torch.bool))
            torch.testing.assert_close(latest, defined(tokens_WT[:, -num:], torch.ones(W, 0)), **CLOSE)
    alone = int(shown_RM.sum()) + len(windows_R) * (LOCAL + int(anchor_id is not None))
    assert ran["plain"] < 0.9 * alone < alone < ran["masked"]  # a prefix is computed once for all rows of its window


@family
@in_turn
def test_attention_is_that_of_the_last_token_over_all_layers_and_heads(
    kind: str, visibility: Any, anchor_id: Optional[int]
) -> None:
    model, (tokens_WT, _) = model_of(kind), windows(W)
    front = [] if anchor_id is None else [torch.full((W, 1), anchor_id)]
    raw = copy.deepcopy(model.raw)
    raw.set_attn_implementation("eager")
    with torch.no_grad():
        output = raw(torch.cat([*front, tokens_WT], dim=1), output_attentions=True)
    expected = torch.stack([layer[:, :, -1].mean(dim=1) for layer in output.attentions]).mean(dim=0)
    for path in PATHS:
        engine = Engine(model, LOCAL, visibility, anchor_id, path, batch_tokens=60)
        log_p_WV, attention_WM = engine.long_and_attention(tokens_WT)
        torch.testing.assert_close(attention_WM, expected[:, len(front) : len(front) + M], atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(log_p_WV, output.logits[:, -1].log_softmax(dim=-1), **CLOSE)


def losses_of(labels_WA: torch.Tensor) -> Any:
    def losses(some_w: torch.Tensor, logits_wV: torch.Tensor) -> torch.Tensor:
        labels = labels_WA[some_w].unbind(1)
        return torch.stack([F.cross_entropy(logits_wV, of_label, reduction="sum") for of_label in labels])

    return losses


@visible
@anchored
def test_gradients_are_derivatives_by_gates(visibility: Any, anchor_id: Optional[int]) -> None:
    """Against finite differences in float64, which GPT-2 computes in all of its layers."""
    (tokens_WT, _), labels_WA = windows(W), torch.tensor([[5, 6], [7, 8], [9, 10]])
    exact = copy.deepcopy(model_of("gpt-2").raw).double()

    def losses(gate: float) -> torch.Tensor:
        log_p_RV = log_probs(
            exact, tokens_WT.repeat_interleave(M, dim=0), gate * torch.eye(M).repeat(W, 1).double(), visibility=visibility,
            anchor_id=anchor_id,
        )  # fmt: skip
        return -log_p_RV.gather(1, labels_WA.repeat_interleave(M, dim=0)).unflatten(0, (W, M)).permute(2, 0, 1)

    expected = (4 * losses(1e-8) - losses(2e-8) - 3 * losses(0.0)) / 2e-8
    for path in PATHS:
        engine = Engine(model_of("gpt-2"), LOCAL, visibility, anchor_id, path)
        found = engine.gradients(tokens_WT, losses_of(labels_WA))
        torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=5e-3)


@family
@in_turn
def test_gradients_of_the_local_tokens_alone_are_those_under_gates(
    kind: str, visibility: Any, anchor_id: Optional[int]
) -> None:
    (tokens_WT, _), labels_WA = windows(W), torch.tensor([[5], [7], [9]])
    plain, masked = (
        Engine(model_of(kind), LOCAL, visibility, anchor_id, path, batch_tokens=200).gradients(
            tokens_WT, losses_of(labels_WA)
        )
        for path in ("plain", "masked")
    )
    torch.testing.assert_close(
        plain, masked, atol=1e-4, rtol=2e-2
    )  # a gate of 1e-10 is not quite 0: weights differ 1e8-fold
    assert plain.shape == (1, W, M) and masked.abs().max() > 1e-3


def test_gradients_of_more_long_range_tokens_than_run_at_once() -> None:
    tokens_WT, labels_WA = 3 + torch.arange(600).view(2, 300) % (VOCAB - 3), torch.tensor([[5], [7]])
    model = build("llama", max_position_embeddings=300)
    assert Engine(model, LOCAL, path="plain").gradients(tokens_WT, losses_of(labels_WA)).shape == (1, 2, 300 - LOCAL)


@anchored
def test_patching_moves_the_output_of_attention_towards_that_with_the_token(anchor_id: Optional[int]) -> None:
    """In a model of one layer, where nothing before it moves: the slope of KL(p_all, p) along the blend of both outputs."""
    model, (tokens_WT, _) = build("gpt-2", n_layer=1), windows(2)
    exact = copy.deepcopy(model.raw).double()
    outputs: dict[str, torch.Tensor] = {}

    def run(shown_RM: torch.Tensor, out: Optional[torch.Tensor] = None) -> torch.Tensor:
        def hook(module: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            outputs["read"] = inputs[0]
            return inputs if out is None else (out,)

        with exact.transformer.h[0].attn.c_proj.register_forward_pre_hook(hook):
            rows = tokens_WT.repeat_interleave(len(shown_RM) // 2, dim=0)
            return log_probs(exact, rows, shown_RM.double(), visibility="contextual", anchor_id=anchor_id)

    long = run(torch.ones(2, M)).repeat_interleave(M, dim=0)
    shown_WM = torch.zeros(2, M, dtype=torch.bool)
    shown_WM[:, [2, 9]] = True
    beside_RM = shown_WM.repeat_interleave(M, dim=0)
    run(beside_RM)
    without = outputs["read"]
    run(beside_RM | torch.eye(M, dtype=torch.bool).repeat(2, 1))
    towards = outputs["read"] - without
    up, down = (kl(long, run(beside_RM, without + step * towards)) for step in (1e-5, -1e-5))
    expected = torch.from_numpy((up - down) / 2e-5).view(2, M)
    p_long_WV = long[::M].float().exp()
    engine = Engine(model, LOCAL, "contextual", anchor_id)
    found = engine.patching(
        tokens_WT, shown_WM, lambda some_w, logits_wV: F.cross_entropy(logits_wV, p_long_WV[some_w], reduction="sum")
    )
    # A token that is shown already is counted twice by its weight; no selector asks about it.
    torch.testing.assert_close(found[~shown_WM].double(), expected[~shown_WM], atol=1e-5, rtol=1e-3)


@anchored
def test_what_is_observed_of_layers_and_heads(anchor_id: Optional[int]) -> None:
    model, (tokens_WT, _) = model_of("llama"), windows(W)
    front = [] if anchor_id is None else [torch.full((W, 1), anchor_id)]
    raw = copy.deepcopy(model.raw)
    raw.set_attn_implementation("eager")
    with torch.no_grad():
        output = raw(torch.cat([*front, tokens_WT], dim=1), output_attentions=True)
    far = slice(len(front), len(front) + M)
    weights = torch.stack(output.attentions, dim=1)[..., far].numpy()  # [W, layers, heads, T, M]
    needs = frozenset({"attention_of_heads", "accumulated_attention", "observed_attention", "queries", "keys"})
    found = Engine(model, LOCAL, anchor_id=anchor_id, batch_tokens=60).observed(tokens_WT, needs)
    assert found["attention_of_heads"] == pytest.approx(weights[..., -1, :], abs=1e-5)
    assert found["accumulated_attention"] == pytest.approx(weights.sum(axis=-2), abs=1e-5)
    assert found["observed_attention"] == pytest.approx(weights[..., -LOCAL:, :].sum(axis=-2), abs=1e-5)
    keys = torch.from_numpy(found["keys"]).repeat_interleave(2, dim=2)  # two heads of queries share one of keys
    scores = (torch.from_numpy(found["queries"])[..., None, :] * keys).sum(dim=-1) / keys.shape[-1] ** 0.5
    among_far = weights[..., -1, :] / weights[..., -1, :].sum(axis=-1, keepdims=True)
    assert scores.softmax(dim=-1).numpy() == pytest.approx(among_far, abs=1e-4)


@pytest.mark.parametrize("kind", ["gemma-2", "gpt-oss"])
def test_attention_that_is_more_than_a_softmax_is_not_read(kind: str) -> None:
    tokens_WT, _ = windows(W)
    engine = Engine(model_of(kind), LOCAL, "contextual")
    with pytest.raises(UserError, match="cannot be read of such a model; leave out the selectors that need them"):
        engine.observed(tokens_WT, frozenset({"keys"}))
    with pytest.raises(UserError, match="cannot be read of this model"):
        engine.patching(tokens_WT, torch.zeros(W, M, dtype=torch.bool), losses_of(torch.ones(W, 1, dtype=torch.int64)))


def out_of_memory_above(model: CausalLM, most: int, error: Exception | None = None) -> list[int]:
    """Let a model run out of memory where an embedding has more tokens; the list counts how often."""
    refused: list[int] = []

    def hook(module: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        if inputs[0].numel() > most:
            refused.append(inputs[0].numel())
            raise error or torch.OutOfMemoryError

    model.raw.get_input_embeddings().register_forward_pre_hook(hook)
    return refused


PASSES: dict[str, Any] = {
    "rows": lambda engine, tokens_WT: rows_of(engine, tokens_WT, *every_set()),
    "attention": lambda engine, tokens_WT: engine.long_and_attention(tokens_WT)[1],
    "observed": lambda engine, tokens_WT: torch.from_numpy(engine.observed(tokens_WT, frozenset({"keys"}))["keys"]),
    "gradients": lambda engine, tokens_WT: engine.gradients(tokens_WT, losses_of(torch.ones(W, 1, dtype=torch.int64))),
    "patching": lambda engine, tokens_WT: engine.patching(
        tokens_WT, torch.zeros(W, M, dtype=torch.bool), losses_of(torch.ones(W, 1, dtype=torch.int64))
    ),
}


OF_THEIR_OWN = [
    (what, path, visibility)
    for what, path, visibility in itertools.product(PASSES, PATHS, ("hidden", "contextual"))
    if (what, visibility) != ("patching", "hidden") and (what, path) != ("gradients", "masked")
]


@pytest.mark.parametrize(("what", "path", "visibility"), OF_THEIR_OWN)
def test_passes_are_halved_where_memory_runs_out(what: str, path: str, visibility: Any) -> None:
    """Every kind of pass, on every path; the sizes that fit are kept. In fp64, where gradients do not depend on the size."""
    tokens_WT, _ = windows(W)
    model = build("llama").in_dtype(torch.float64)
    expected = PASSES[what](Engine(model, LOCAL, visibility, None, path), tokens_WT)
    refused, engine = out_of_memory_above(model, FULL + 2), Engine(model, LOCAL, visibility, None, path)
    torch.testing.assert_close(PASSES[what](engine, tokens_WT), expected, atol=1e-4, rtol=1e-4)
    tries = len(refused)
    assert 0 < tries < 12
    PASSES[what](engine, tokens_WT)
    assert len(refused) == tries
    out_of_memory_above(model, 1)
    with pytest.raises(torch.OutOfMemoryError):  # a single row is too much
        PASSES[what](Engine(model, LOCAL, visibility, None, path), tokens_WT)


def test_only_too_little_memory_halves_a_pass() -> None:
    tokens_WT, _ = windows(W)
    for error, is_halved in (("DefaultCPUAllocator: can't allocate memory", True), ("sizes do not match", False)):
        model = build("llama")
        refused, engine = out_of_memory_above(model, 1, RuntimeError(error)), Engine(model, LOCAL, path="plain")
        with pytest.raises(RuntimeError, match=error):
            PASSES["rows"](engine, tokens_WT)
        assert (len(refused) > 1) == is_halved


def test_a_large_vocabulary_makes_passes_smaller() -> None:
    model: Any = SimpleNamespace(vocab_size=LOGIT_ELEMENTS // 5, device=torch.device("cpu"))
    engine = Engine(model, LOCAL, "contextual", batch_tokens=10**9)
    assert (engine.rows_per_pass(10), engine.windows_per_batch(FULL), engine.rows_per_pass(10**10)) == (5, 5, 1)


def test_the_compact_path_is_for_known_layers_that_see_everything() -> None:
    compact = {kind for kind in FAMILIES if Compact.supports(model_of(kind))}
    assert compact == {"llama", "olmo", "olmo-2", "qwen-3"}
    assert Engine(model_of("gpt-2"), LOCAL).compact is None and Engine(model_of("llama"), LOCAL).compact is not None
    assert Engine(model_of("llama"), LOCAL, path="plain").compact is None
    spread = build("llama")
    for places, is_known in ((["cpu"], True), ([0, 1], False)):
        spread.raw.hf_device_map = {f"part {number}": place for number, place in enumerate(places)}
        assert Compact.supports(spread) == is_known


@pytest.mark.parametrize("kind", ["llama", "gpt-2"])
def test_bf16_weights_give_nearly_the_same(kind: str) -> None:
    tokens_WT, targets_W = windows(W)
    low, high = (
        Engine(model, LOCAL).predictions(tokens_WT, torch.zeros(W, M, dtype=torch.bool)).gather(1, targets_W[:, None])
        for model in (build(kind, initializer_range=0.02).in_dtype(torch.bfloat16), build(kind))
    )
    assert low.dtype == torch.float32 and 0 < (low - high).abs().max() < 0.5
