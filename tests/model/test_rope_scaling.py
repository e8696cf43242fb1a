"""Scaled rotary positions: frequencies against their formulas, paths against the masked definition, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Optional

import pytest
import torch
import transformers
from transformers_models import BOS, VOCAB, build_raw, save

from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.fit import FitCheck, check_fit
from olmo_sparsity.measure.visible_sets import with_anchor
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.pretrained import PretrainedModel, open_pretrained
from olmo_sparsity.model.rope_scaling import check_scaled, rope_parameters, scale

ROW, FACTOR, WIDTH, BASE = 12, 4.0, 8, 10_000.0  # tokens of a row; of heads of 8 dimensions
LOCAL, FULL = 10, 24
CPU = torch.device("cpu")


def windows(num: int) -> torch.Tensor:
    return torch.randint(3, VOCAB, (num, FULL + 1), generator=torch.Generator().manual_seed(1))


def fit(model: CausalLM, *, anchor_id: Optional[int] = None) -> list[FitCheck]:
    return check_fit(model, windows(6), name="tiny", local_len=LOCAL, anchor_id=anchor_id)


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


def by_formula(raw: Any, tokens: torch.Tensor, positions: torch.Tensor, *, method: str) -> torch.Tensor:
    """Return the logits of a Llama whose rotary tables are replaced by those of the formula, for texts as long as the rows."""
    angles = positions[0].double()[:, None] * torch.tensor(frequencies(method)).double()
    sharpness = 0.1 * math.log(FACTOR) + 1 if method == "yarn" else 1.0
    tables = torch.cat([angles, angles], dim=-1)[None].expand(len(tokens), -1, -1)
    raw.model.rotary_emb.forward = lambda x, position_ids: (
        (sharpness * tables.cos()).to(x.dtype),
        (sharpness * tables.sin()).to(x.dtype),
    )
    mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril().expand(len(tokens), 1, -1, -1)
    logits: torch.Tensor = raw(tokens, position_ids=positions, attention_mask=mask, use_cache=False).logits[:, -1]
    return logits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "llama"
    save(folder)
    return folder


def opened(
    folder: Path, method: str, *, row_len: Optional[int] = ROW, longest: Optional[int] = None
) -> PretrainedModel:
    factor = None if method == "none" else FACTOR
    settings = PretrainedConfig(str(folder), train_len=row_len, rope_scaling=method, rope_factor=factor)  # type: ignore[arg-type]
    return open_pretrained(settings, device=CPU, precision="fp32", longest=longest)


@pytest.mark.parametrize("method", ["none", "linear", "yarn"])
@torch.no_grad()
def test_logits_are_those_of_the_formula(folder: Path, method: str) -> None:
    model = opened(folder, method).model
    tokens = windows(3)[:, :-1]
    for length in (FULL, ROW, FULL - 5, FULL):  # longer and shorter ones: no pass depends on those before it
        positions = torch.arange(length).expand(3, -1)
        expected = by_formula(build_raw("llama").eval(), tokens[:, :length], positions, method=method)
        found = model.logits(tokens[:, :length], positions)
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
        if method != "none":
            plain = by_formula(build_raw("llama").eval(), tokens[:, :length], positions, method="none")
            assert (expected - plain).abs().max() > 1e-3


@pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
@pytest.mark.parametrize("method", ["linear", "yarn"])
def test_compact_and_prefix_paths_are_the_masked_definition(
    folder: Path, method: str, anchor_id: Optional[int]
) -> None:
    checks = fit(opened(folder, method).model, anchor_id=anchor_id)
    found = {check.name: check.found for check in checks}
    assert found["compact against masked (hidden), nats"] < 1e-5
    assert found["compact against masked (contextual), nats"] < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_model_that_is_scaled_by_the_length_is_measured_within_its_original_positions(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    """There it is that of transformers; a stated row does not change it."""
    scaled = {"rope_type": kind, "factor": FACTOR, "rope_theta": BASE, "original_max_position_embeddings": 18}
    if kind == "longrope":
        scaled |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.5, 4.0, 8.0]}
    save(tmp_path / kind, rope_parameters=dict(scaled), max_position_embeddings=18)
    found = opened(tmp_path / kind, "none", longest=200)
    assert (found.model.max_position, found.record.max_position, found.can_be_longer) == (18, 18, False)
    raw = build_raw("llama", rope_parameters=dict(scaled), max_position_embeddings=18).eval()
    tokens, positions = with_anchor(windows(2)[:, :-1], None)
    for length in (18, 5, 17):
        expected = raw(tokens[:, :length]).logits[:, -1]
        actual = found.model.logits(tokens[:, :length], positions[:, :length])
        torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0)
    with pytest.raises(UserError, match=rf"its rotary positions are scaled already \({kind}\)"):
        opened(tmp_path / kind, "yarn")


def test_layers_with_a_window_are_not_scaled() -> None:
    config = build_raw("gemma-3").config
    before = dict(config.rope_parameters["sliding_attention"])
    scale(config, name="gemma", method="yarn", factor=2.0, row_len=ROW)
    assert config.rope_parameters["sliding_attention"] == before
    full = config.rope_parameters["full_attention"]
    assert (full["rope_type"], full["factor"], full["original_max_position_embeddings"]) == ("yarn", 2.0, ROW)


def test_without_a_stated_row_scaling_begins_at_the_models_positions(folder: Path) -> None:
    found = opened(folder, "yarn", row_len=None)
    assert rope_parameters(found.model.raw.config)["original_max_position_embeddings"] == 64  # type: ignore[index]
    assert (found.record.rope_scaling, found.record.max_position, found.can_be_longer) == ("yarn:4", 64, False)


def test_rows_are_longer_than_the_models_positions_only_where_a_row_is_stated(folder: Path) -> None:
    longer = opened(folder, "none", longest=200)
    assert (longer.model.max_position, longer.record.max_position, longer.can_be_longer) == (200, 64, True)
    assert opened(folder, "none", row_len=None, longest=200).model.max_position == 64
    assert opened(folder, "none", longest=30).model.max_position == 64


def test_what_cannot_be_scaled_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    save(tmp_path / "gpt-2", "gpt-2")
    llama3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": BASE}
    save(tmp_path / "scaled", rope_parameters={**llama3, "original_max_position_embeddings": 16})
    for model, said in (
        ("gpt-2", r"such a model \(GPT2Config\) has no rotary positions to scale"),
        ("scaled", r"its rotary positions are scaled already \(llama3\); leave them as they are \(none\)$"),
    ):
        with pytest.raises(UserError, match=rf"^[^\n]*rope_scaling = yarn: {said}[^\n]*$"):
            opened(tmp_path / model, "yarn")
    assert not opened(tmp_path / "gpt-2", "none", longest=200).can_be_longer  # learned positions
    for raw in (build_raw("llama"), build_raw("gpt-2")):  # what was built takes no notice of the scaling
        said = f"^tiny: pretrained.rope_scaling = yarn: transformers does not scale .* such a model \\({type(raw).__name__}\\)$"
        with pytest.raises(UserError, match=said):
            check_scaled(raw, name="tiny", method="yarn")
    for given, said in (
        ({"rope_scaling": "yarn"}, "rope_factor = None with pretrained.rope_scaling = yarn"),
        ({"rope_factor": 2.0}, "rope_factor = 2.0 with pretrained.rope_scaling = none"),
    ):
        with pytest.raises(
            UserError,
            match=rf"{said}: give both, such as pretrained.rope_scaling=yarn pretrained.rope_factor=4, or neither$",
        ):
            PretrainedConfig("model", **given)  # type: ignore[arg-type]
    assert isinstance(opened(folder, "none").model.raw, transformers.LlamaForCausalLM)
