"""Windows with many long-range tokens: memory against their number, and what first-order estimates need of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import pytest
import torch
import transformers_models
from tiny_models import NORMED, build
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from olmo_sparsity.measure.visible import losses
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import all_but_one_losses, gate_gradients, log_probs, single_losses
from olmo_sparsity.measure.visible.visibility import Visibility
from olmo_sparsity.model.attribution import AttentionProbes, first_order
from olmo_sparsity.model.causal_model import CausalModel

LOCAL, VOCAB, ANCHOR = 8, 90, 5


class TensorMemory(TorchDispatchMode):
    """Records the bytes of the largest tensor that is made in its context; the model's weights are not."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in given:  # a view of what was given is no new memory
                self.largest = max(self.largest, storage.nbytes())
        return result


def _storages(values: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def windows(num_long_range: int, num: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(1, VOCAB, (num, num_long_range + LOCAL), generator=generator)


def loss_of(tokens_WT: torch.Tensor) -> losses.LossFunction:
    def loss(rows: slice, logits_wV: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits_wV, tokens_WT[rows, 0], reduction="sum")

    return loss


def singles(evaluator: Evaluator, tokens_WT: torch.Tensor) -> torch.Tensor:
    """Unmask every candidate, and read the divergences, too."""
    everything_WM = torch.arange(tokens_WT.shape[1] - LOCAL).expand(len(tokens_WT), -1)
    log_p_WV = log_probs(evaluator, tokens_WT, visible_WS=everything_WM)
    return single_losses(
        evaluator, tokens_WT, targets_W=tokens_WT[:, 0], candidates_WJ=everything_WM, reference_WV=log_p_WV
    )[0]


def estimates(evaluator: Evaluator, tokens_WT: torch.Tensor) -> torch.Tensor:
    return gate_gradients(evaluator, tokens_WT, loss_function=loss_of(tokens_WT))


def all_but_one(evaluator: Evaluator, tokens_WT: torch.Tensor) -> torch.Tensor:
    return all_but_one_losses(evaluator, tokens_WT, labels_WA=tokens_WT[:, :1])[:, :, 0]


def long_model(kind: str, vocab_size: int) -> CausalModel:
    if kind == "olmo":
        small = dataclasses.replace(NORMED, n_layers=2, mlp_ratio=4)
        return build(small, positions=1200, vocab_size=vocab_size).eval().requires_grad_(False)
    return transformers_models.build("llama", max_position_embeddings=1200, vocab_size=vocab_size)


def largest_bytes(
    measure: Callable[[Evaluator, torch.Tensor], torch.Tensor], evaluator: Evaluator, num_long_range: int
) -> int:
    with TensorMemory() as recorded:
        found_WM = measure(evaluator, windows(num_long_range))
    assert found_WM.shape == (1, num_long_range)
    return recorded.largest


@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
@pytest.mark.parametrize("kind", ["olmo", "llama"])
@pytest.mark.parametrize("measure", [singles, all_but_one])
def test_no_tensor_has_two_dimensions_of_the_window(
    measure: Callable[[Evaluator, torch.Tensor], torch.Tensor], kind: str, visibility: Visibility
) -> None:
    """An [M, M] or [T, T] would grow fourfold where the window doubles; where the vocabulary is large, an [M, V] twofold."""
    for vocab_size, growth in ((VOCAB, 2.2), (8000, 1.2)):
        model = long_model(kind, vocab_size)
        evaluator = Evaluator(model, LOCAL, batch_tokens=64, visibility=visibility, anchor_id=ANCHOR)
        short, long = (largest_bytes(measure, evaluator, size) for size in (24, 48))
        assert short <= long <= growth * short


@pytest.mark.parametrize("anchor_id", [None, ANCHOR])
@pytest.mark.parametrize("kind", ["olmo", "llama"])
def test_memory_of_first_order_estimates_is_flat(kind: str, anchor_id: Optional[int]) -> None:
    evaluator = Evaluator(long_model(kind, VOCAB), LOCAL, batch_tokens=64, anchor_id=anchor_id)
    assert largest_bytes(estimates, evaluator, 600) == largest_bytes(estimates, evaluator, 1100)


@pytest.mark.parametrize("anchor_id", [None, ANCHOR], ids=["no anchor", "anchor"])
@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
@pytest.mark.parametrize("kind", transformers_models.FITTING)
def test_gates_of_any_model_are_those_of_the_masked_path(
    kind: str, visibility: Visibility, anchor_id: Optional[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "FAR_TOKENS", 5)  # several blocks
    monkeypatch.setattr(losses, "attention_elements", lambda device: 5 * 3 * 4 * LOCAL)
    model, tokens_WT = transformers_models.build(kind), windows(12, num=3)
    found_WM, expected_WM = (
        gate_gradients(
            Evaluator(model, LOCAL, path=path, batch_tokens=80, visibility=visibility, anchor_id=anchor_id),
            tokens_WT,
            loss_function=loss_of(tokens_WT),
        )
        for path in ("compact", "masked")
    )
    # In fp32 a gate of e^-23 leaves the masked path with an error of 3e-4; against float64, the compact one has 3e-6.
    assert (found_WM - expected_WM).abs().max() < 5e-4 * expected_WM.abs().max()
    assert expected_WM.abs().max() > 1e-3


@pytest.mark.parametrize("kind", transformers_models.FITTING)
def test_which_models_attention_can_be_read(kind: str) -> None:
    model, tokens_WT = transformers_models.build(kind), windows(2)
    positions_WT = torch.arange(tokens_WT.shape[1])[None]
    states = model.attention_states(tokens_WT, positions_WT, prefix=None, loss=lambda logits: logits[:, 3].sum())
    assert (states is None) == (kind in ("gemma-2", "gpt-oss"))  # capped scores, sinks
    short = transformers_models.build("mistral", sliding_window=10)
    assert len(short.attention_states(tokens_WT, positions_WT, prefix=None, loss=torch.sum) or []) == 2
    assert short.attention_states(tokens_WT, positions_WT + 1, prefix=None, loss=torch.sum) is None


def test_first_order_of_one_attention_is_what_a_far_token_does_to_it() -> None:
    """The loss is linear in the output, so that patching is exact, and a gate's derivative is a difference quotient."""
    generator = np.random.default_rng(0)
    heads, keys, queries, width, far = 4, 2, 3, 5, 6

    def drawn(*shape: int) -> torch.Tensor:
        return torch.from_numpy(generator.normal(size=shape))

    q, k, v = drawn(2, heads, queries, width), drawn(2, keys, queries + 1, width), drawn(2, keys, queries + 1, width)
    k_far, v_far, slope = drawn(2, keys, far, width), drawn(2, keys, far, width), drawn(2, heads, queries, width)
    probes = AttentionProbes()
    loss = (probes.attend(q, k, v, scaling=0.7) * slope).sum()
    states = probes.states(loss)

    def gain(j: int, log_gate: float) -> torch.Tensor:
        """The loss with far token j visible through a gate, for each row."""
        allowed = torch.ones(queries, queries + 1, dtype=torch.bool).tril(1)
        scores = 0.7 * q @ k.repeat_interleave(heads // keys, dim=1).transpose(2, 3)
        scores = scores.masked_fill(~allowed, -math.inf)
        one = 0.7 * q @ k_far[:, :, j : j + 1].repeat_interleave(heads // keys, dim=1).transpose(2, 3) + log_gate
        weights = torch.cat([scores, one], dim=3).softmax(dim=3)
        values = torch.cat([v, v_far[:, :, j : j + 1]], dim=2).repeat_interleave(heads // keys, dim=1)
        return ((weights @ values) * slope).sum(dim=(1, 2, 3))

    nothing = gain(0, -math.inf)
    assert nothing.sum() == pytest.approx(loss.item())
    for attribution, log_gate, scale in (("patching", 0.0, 1.0), ("gradient", math.log(1e-9), 1e9)):
        found = first_order(states, [(k_far, v_far)], attribution=attribution)  # type: ignore[arg-type]
        for j in range(far):
            assert found[:, j].numpy() == pytest.approx(((gain(j, log_gate) - nothing) * scale).numpy(), rel=1e-5)


@pytest.mark.parametrize("path", ["compact", "masked"])
def test_gradients_of_several_losses_are_those_of_each(path: str) -> None:
    evaluator = dataclasses.replace(Evaluator(long_model("olmo", VOCAB), LOCAL, batch_tokens=64), path=path)
    tokens_WT = windows(6, num=5)
    of_each = [loss_of(tokens_WT.roll(label, dims=1)) for label in range(3)]

    def losses_of_all(rows: slice, logits_wV: torch.Tensor) -> torch.Tensor:
        return torch.stack([loss(rows, logits_wV) for loss in of_each])

    together_LWM = gate_gradients(evaluator, tokens_WT, loss_function=losses_of_all)
    for found_WM, loss in zip(together_LWM, of_each, strict=True):
        torch.testing.assert_close(found_WM, gate_gradients(evaluator, tokens_WT, loss_function=loss))
    assert (together_LWM[0] - together_LWM[1]).abs().max() > 0.01
