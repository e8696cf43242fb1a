"""Attention that is summed block by block, against its definition."""

from __future__ import annotations

import pytest
import torch

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.devices import attention_elements
from olmo_sparsity.model.taps import Observer, attention_sums

ROWS, HEADS, SHARED, TOKENS, QUERIES, WIDTH = 2, 6, 3, 300, 280, 4
FAR, SCALING = slice(20, 150), 0.7


@pytest.mark.parametrize("kind", ["causal", "of tokens", "added"])
def test_sums_of_attention_are_those_of_the_whole_softmax(kind: str) -> None:
    """Two heads share one head of keys; more weights than are kept at once; masks that hide tokens, or weaken them."""
    assert attention_elements(torch.device("cpu")) < ROWS * HEADS * TOKENS * QUERIES
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(ROWS, HEADS, QUERIES, WIDTH, generator=generator)
    k = torch.randn(ROWS, SHARED, TOKENS, WIDTH, generator=generator)
    visible = torch.rand(ROWS, 1, TOKENS, TOKENS, generator=generator) < 0.6
    visible[..., 0] = True
    noise = torch.randn(ROWS, 1, TOKENS, TOKENS, generator=generator)
    masks = {"causal": None, "of tokens": visible, "added": noise.masked_fill(~visible, -1e9)}
    nothing = torch.zeros_like(noise)
    added = {"causal": nothing, "of tokens": nothing.masked_fill(~visible, -1e9), "added": masks["added"]}[kind]
    scores = torch.einsum("bhqe,bhte->bhqt", q, k.repeat_interleave(HEADS // SHARED, dim=1)) * SCALING
    scores = scores + added[:, :, -QUERIES:]
    is_later = torch.arange(TOKENS) > torch.arange(TOKENS - QUERIES, TOKENS)[:, None]
    expected = scores.masked_fill(is_later, -torch.inf).softmax(dim=-1)[..., FAR].sum(dim=2)
    torch.testing.assert_close(attention_sums(q, k, masks[kind], SCALING, FAR), expected, atol=1e-4, rtol=1e-4)


def test_an_observer_sums_the_last_32_queries_and_refuses_layers_of_different_shapes() -> None:
    x = torch.randn(1, 2, 60, 4, generator=torch.Generator().manual_seed(0))
    observer = Observer({"observed_attention", "keys"}, slice(0, 20), local_len=40)
    observer(x, x, x, None, SCALING)
    last = attention_sums(x[:, :, -32:], x, None, SCALING, slice(0, 20))
    torch.testing.assert_close(observer.collected["observed_attention"][0], last)
    observer(x, x[:, :1], x[:, :1], None, SCALING)
    with pytest.raises(UserError, match="have keys of different shapes; leave out the selectors that need keys"):
        observer.result()
