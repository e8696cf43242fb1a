"""Scaled rotary positions: logits against the formulas of the papers, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Optional

import pytest
import torch
from transformers_models import VOCAB, build_raw, save

from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.compact import Compact
from olmo_sparsity.model.pretrained import PretrainedModel, open_pretrained

ROW, FACTOR, WIDTH, BASE = 12, 4.0, 8, 10_000.0  # tokens of a row; of heads of 8 dimensions
FULL = 24
TOKENS = torch.randint(3, VOCAB, (3, FULL), generator=torch.Generator().manual_seed(1))


def frequencies(method: str) -> list[float]:
    """Return the angle that each pair of dimensions turns from one position to the next, by the papers' formulas."""
    pairs = range(WIDTH // 2)
    plain = [BASE ** (-2 * i / WIDTH) for i in pairs]
    if method == "linear":
        return [one / FACTOR for one in plain]
    if method == "yarn":  # turns in a row: more than 32 stay, fewer than 1 are divided, with whole dimensions between

        def dimension(turns: float) -> float:
            return WIDTH * math.log(ROW / (turns * 2 * math.pi)) / (2 * math.log(BASE))

        low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), WIDTH - 1)
        ramp = [min(max((i - low) / max(high - low, 1e-3), 0), 1) for i in pairs]
        return [one / FACTOR * share + one * (1 - share) for one, share in zip(plain, ramp, strict=True)]
    return plain


def by_formula(tokens: torch.Tensor, method: str) -> torch.Tensor:
    """Return the logits of a Llama whose rotary tables are replaced by those of the formula, for texts as long as the rows."""
    raw, length = build_raw("llama").eval(), tokens.shape[1]
    angles = torch.arange(length).double()[:, None] * torch.tensor(frequencies(method)).double()
    sharpness = 0.1 * math.log(FACTOR) + 1 if method == "yarn" else 1.0
    tables = torch.cat([angles, angles], dim=-1)[None].expand(len(tokens), -1, -1)
    raw.model.rotary_emb.forward = lambda x, position_ids: (
        (sharpness * tables.cos()).to(x.dtype),
        (sharpness * tables.sin()).to(x.dtype),
    )
    mask = torch.ones(length, length, dtype=torch.bool).tril().expand(len(tokens), 1, -1, -1)
    logits: torch.Tensor = raw(tokens, attention_mask=mask, use_cache=False).logits[:, -1]
    return logits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "llama"
    save(folder)
    return folder


def opened(
    folder: Path, method: str, *, row_len: Optional[int] = ROW, longest: Optional[int] = None
) -> PretrainedModel:
    scaling = None if method == "none" else f"{method}:{FACTOR:g}"
    settings = PretrainedConfig(str(folder), train_len=row_len, rope_scaling=scaling)
    return open_pretrained(settings, device=torch.device("cpu"), precision="fp32", longest=longest)


@torch.no_grad()
@pytest.mark.parametrize("method", ["none", "linear", "yarn"])
def test_logits_are_those_of_the_formula(folder: Path, method: str) -> None:
    """In one row, behind a prefix, and without computing anything twice; no pass depends on the length of those before it."""
    model = opened(folder, method).model
    for length in (FULL, ROW, FULL - 5, FULL):
        tokens, positions = TOKENS[:, :length], torch.arange(length).expand(3, -1)
        expected = by_formula(tokens, method)
        prefix = model.prefix(tokens[:, :7], positions[:, :7])
        for found in (
            model.logits(tokens, positions),
            model.logits_after(tokens[:, 7:], positions[:, 7:], prefix),
            Compact(model).logits(tokens, positions),
            Compact(model).logits(tokens[:, -2:], positions[:, -2:], model.prefix(tokens[:, :-2], positions[:, :-2])),
        ):
            torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
        if method != "none":
            assert (expected - by_formula(tokens, "none")).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_model_that_is_scaled_by_the_length_is_measured_within_its_original_positions(
    kind: str, tmp_path: Path
) -> None:
    """There it is that of transformers; a stated row does not change it."""
    scaled = {"rope_type": kind, "factor": FACTOR, "rope_theta": BASE, "original_max_position_embeddings": 18}
    if kind == "longrope":
        scaled |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.5, 4.0, 8.0]}
    raw = save(tmp_path, rope_parameters=dict(scaled)).eval()
    found = opened(tmp_path, "none", longest=200)
    assert (found.model.max_position, found.record.max_position, found.can_be_longer) == (18, 18, False)
    assert CausalLM(raw).max_position == 18  # one that is in memory
    for length in (18, 5, 17):
        actual = found.model.logits(TOKENS[:, :length], torch.arange(length).expand(3, -1))
        torch.testing.assert_close(actual, raw(TOKENS[:, :length]).logits[:, -1], atol=2e-5, rtol=0)
    with pytest.raises(UserError, match=rf"its rotary positions are scaled already \({kind}\)"):
        opened(tmp_path, "yarn")


def test_layers_with_a_window_are_not_scaled(tmp_path: Path) -> None:
    save(tmp_path, "gemma-3")
    plain, scaled = (opened(tmp_path, method).model.raw.config.rope_parameters for method in ("none", "yarn"))
    assert scaled["sliding_attention"] == plain["sliding_attention"]
    full = scaled["full_attention"]
    assert (full["rope_type"], full["factor"], full["original_max_position_embeddings"]) == ("yarn", FACTOR, ROW)


def test_rows_are_longer_than_the_models_positions_only_where_a_row_is_stated(folder: Path, tmp_path: Path) -> None:
    longer = opened(folder, "none", longest=200)
    assert (longer.model.max_position, longer.record.max_position, longer.can_be_longer) == (200, 64, True)
    assert opened(folder, "none", row_len=None, longest=200).model.max_position == 64
    assert opened(folder, "none", longest=30).model.max_position == 64
    unstated = opened(folder, "yarn", row_len=None)  # scaling begins at the model's positions
    assert unstated.model.raw.config.rope_parameters["original_max_position_embeddings"] == 64
    assert (unstated.record.rope_scaling, unstated.record.max_position, unstated.can_be_longer) == ("yarn:4", 64, False)
    save(tmp_path, "gpt-2")
    assert not opened(tmp_path, "none", longest=200).can_be_longer  # learned positions


def test_what_cannot_be_scaled_is_refused_in_one_line(tmp_path: Path) -> None:
    save(tmp_path / "gpt-2", "gpt-2")
    llama3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": BASE}
    save(tmp_path / "scaled", rope_parameters={**llama3, "original_max_position_embeddings": 16})
    for model, said in (
        ("gpt-2", r"such a model \(GPT2Config\) has no rotary positions to scale"),
        ("scaled", r"its rotary positions are scaled already \(llama3\); leave them as they are \(null\)$"),
    ):
        with pytest.raises(UserError, match=rf"^[^\n]*rope_scaling = yarn:4: {said}[^\n]*$"):
            opened(tmp_path / model, "yarn")
