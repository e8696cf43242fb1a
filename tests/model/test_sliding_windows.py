"""Layers that see a window of the latest positions: every path against masks that transformers itself makes."""

from __future__ import annotations

from typing import Any, Optional

import pytest
import torch
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask
from transformers_models import BOS, VOCAB, WINDOWED, build, build_raw, build_unaware

from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import (
    all_but_one_losses,
    gate_gradients,
    log_probs,
    long_log_probs_and_attention,
    single_losses,
    surprisal,
)
from olmo_sparsity.measure.visible.visibility import Visibility, compact_rows, visible_mask, with_anchor
from olmo_sparsity.model.transformers_model import TransformersModel

LOCAL, FULL, M = 8, 20, 12
TOLERANCE = 1e-5  # nats, fp32
VISIBLE = torch.tensor([[2, 7, 11], [0, 1, 5], [3, 4, 9]])
ANCHORS = pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
VISIBILITIES = pytest.mark.parametrize("visibility", ["hidden", "contextual"])


def windows() -> torch.Tensor:
    return torch.randint(3, VOCAB, (3, FULL), generator=torch.Generator().manual_seed(1))


def by_their_masks(
    kind: str, visible: torch.Tensor, *, visibility: Visibility, anchor_id: Optional[int]
) -> torch.Tensor:
    """Return log-probabilities under masks that transformers makes of its causal and its sliding rule and the visible sets."""
    raw = build_raw(kind).eval()
    tokens, positions = with_anchor(windows(), anchor_id)
    seen = visible_mask(visible, FULL, local_len=LOCAL, has_anchor=anchor_id is not None)
    first_reader = tokens.shape[1] - LOCAL if visibility == "contextual" else 0

    def rule(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return seen[batch, key] | (query == key) | (query < first_reader)

    options: dict[str, Any] = {
        "config": raw.config,
        "inputs_embeds": raw.get_input_embeddings()(tokens),
        "attention_mask": torch.ones_like(tokens),
        "past_key_values": None,
        "position_ids": positions,
        "and_mask_function": rule,
    }
    sliding = create_sliding_window_causal_mask(**options)
    full = create_causal_mask(**options)
    assert not torch.equal(sliding, full) or visible.shape[1] == 0  # the local tokens alone may lie within the window
    mask = sliding if kind.startswith("mistral") else {"full_attention": full, "sliding_attention": sliding}
    logits: torch.Tensor = raw(tokens, position_ids=positions, attention_mask=mask, use_cache=False).logits[:, -1]
    return logits.log_softmax(dim=-1)


def evaluator(kind: str, path: str, *, visibility: Visibility, anchor_id: Optional[int]) -> Evaluator:
    return Evaluator(build(kind), LOCAL, path=path, visibility=visibility, anchor_id=anchor_id)


@ANCHORS
@VISIBILITIES
@pytest.mark.parametrize("kind", WINDOWED)
@torch.no_grad()
def test_every_path_is_what_the_set_and_the_window_allow(
    kind: str, visibility: Visibility, anchor_id: Optional[int]
) -> None:
    everything = torch.arange(M).expand(3, -1)
    for visible in (VISIBLE, VISIBLE[:, :0], everything):
        expected = by_their_masks(kind, visible, visibility=visibility, anchor_id=anchor_id)
        for path in ("masked", "plain", "compact"):
            model = evaluator(kind, path, visibility=visibility, anchor_id=anchor_id)
            found = log_probs(model, windows(), visible_WS=visible)
            assert (found - expected).abs().max() < 2 * TOLERANCE, path
            assert surprisal(found - expected, windows()[:, 0]).abs().max() < TOLERANCE, path


@pytest.mark.parametrize("kind", WINDOWED)
@torch.no_grad()
def test_the_window_is_counted_in_position_ids(kind: str) -> None:
    """transformers counts it in tokens: with gaps it would see farther, which the definition does not."""
    rows, positions = compact_rows(windows(), VISIBLE, local_len=LOCAL)
    expected = by_their_masks(kind, VISIBLE, visibility="hidden", anchor_id=None)
    in_tokens = build_unaware(kind).last_logits(rows, positions).log_softmax(dim=-1)
    assert (in_tokens - expected).abs().max() > 0.01


@VISIBILITIES
@pytest.mark.parametrize("kind", WINDOWED)
def test_what_selectors_ask_for_is_the_masked_definition(kind: str, visibility: Visibility) -> None:
    tokens, targets = windows(), windows()[:, 0]
    compact, masked = (evaluator(kind, path, visibility=visibility, anchor_id=BOS) for path in ("compact", "masked"))

    def loss(_: slice, logits: torch.Tensor) -> torch.Tensor:
        return surprisal(logits.log_softmax(dim=-1), targets).sum()

    everything = torch.arange(M).expand(3, -1)
    for found, expected in (
        (all_but_one_losses(one, tokens, labels_WA=targets[:, None]) for one in (compact, masked)),
        (single_losses(one, tokens, targets_W=targets, candidates_WJ=everything)[0] for one in (compact, masked)),
        (long_log_probs_and_attention(compact, tokens)[0], log_probs(masked, tokens, visible_WS=everything)),
    ):
        assert (found - expected).abs().max() < 2 * TOLERANCE
    found, expected = (gate_gradients(one, tokens, loss_function=loss) for one in (compact, masked))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)
    assert expected.abs().max() > 1e-3


@torch.no_grad()
def test_attention_to_tokens_that_a_window_hides_is_that_of_the_other_layers() -> None:
    """Of two layers one has a window, so that a token before it gets at most half of the mean attention, and some."""
    model = build("olmo-3, window of 9")
    tokens, positions = with_anchor(windows(), None)
    raw = build_raw("olmo-3, window of 9").eval()
    raw.set_attn_implementation("eager")
    layers = raw(tokens, output_attentions=True, use_cache=False).attentions
    _, attention = model.last_logits_and_attention(tokens, positions)
    torch.testing.assert_close(attention, torch.stack(layers).mean(dim=(0, 2))[:, -1], atol=1e-6, rtol=0)
    assert layers[0][:, :, -1, : FULL - 9].abs().max() == 0 < attention[:, : FULL - 9].min()


@torch.no_grad()
def test_rows_within_the_window_are_run_as_before() -> None:
    """No mask is made for them: their numbers are those of a model without windows, to the last bit."""
    tokens, positions = with_anchor(windows()[:, :10], None)
    windowed, plain = (build("mistral", sliding_window=size) for size in (10, None))
    assert torch.equal(windowed.last_logits(tokens, positions), plain.last_logits(tokens, positions))
    prefix = windowed.keys_values(tokens[:, :4], positions[:, :4])
    after = windowed.last_logits_after(tokens[:, 4:], positions[:, 4:], prefix=prefix)
    assert torch.equal(after, plain.last_logits_after(tokens[:, 4:], positions[:, 4:], prefix=prefix))
    assert isinstance(windowed, TransformersModel)
