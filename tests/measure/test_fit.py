"""Which models can be measured, found by experiment: one that is made to fail a check is refused in one line that says why."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest
import torch
from conftest import Messages
from defined import FULL, LOCAL, M, kl, log_probs, random_sets, windows
from scored import measurement
from transformers_models import BOS, VOCAB, build, build_raw

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.engine import Engine
from olmo_sparsity.measure.fit import (
    Anchor,
    check_fit,
    compare_first_tokens,
    lower_choice,
    num_compared_windows,
    varied_windows,
)
from olmo_sparsity.model.causal_lm import CausalLM

anchored = pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
visible = pytest.mark.parametrize("visibility", ["hidden", "contextual"])


def with_targets(num: int = 4) -> torch.Tensor:
    tokens_WT, targets_W = windows(num)
    return torch.cat([tokens_WT, targets_W[:, None]], dim=1)


def fit(
    model: CausalLM,
    tokens_WT: Optional[torch.Tensor] = None,
    *,
    anchor_id: Optional[int] = None,
    local_len: int = LOCAL,
) -> list[dict[str, Any]]:
    tokens_WT = with_targets() if tokens_WT is None else tokens_WT
    return check_fit(model, tokens_WT, name="tiny", local_len=local_len, anchor_id=anchor_id)


# Architecture -> what is said of it; None: it is measured.
ARCHITECTURES: dict[str, Optional[str]] = {
    **dict.fromkeys(
        ["llama", "olmo", "olmo-2", "olmo-3, window of 9", "qwen-2", "qwen-3", "mistral, window of 10", "gemma-2", "gemma-3",
         "gemma-4", "phi-3", "falcon", "gpt-neox", "gpt-2", "gpt-oss", "gpt-oss, window of 10", "ctrl"]
    ),
    "deepseek 3.2": r"it keeps more than keys and values of its own in layer 0 \(DynamicIndexedLayer\)",
    "falcon with ALiBi": r"it ignores position IDs \(as with ALiBi",
    "mamba": "takes no position IDs",
    "qwen 3 next": "hidden tokens change its prediction, so something besides attention carries them",
}  # fmt: skip


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_an_architecture_is_measured_as_defined_or_refused_in_one_line(kind: str) -> None:
    said = ARCHITECTURES[kind]
    if said is not None:
        with pytest.raises(UserError, match=rf"^[^\n]*cannot be measured: [^\n]*{said}[^\n]*$"):
            fit(build(kind))
        return
    model, (tokens_WT, targets_W) = build(kind), windows(4)
    fit(model, anchor_id=BOS)
    for visibility in ("hidden", "contextual"):
        found = Engine(model, LOCAL, visibility, BOS).log_probs(tokens_WT, torch.arange(4), random_sets(4))
        defined = log_probs(model.raw, tokens_WT, random_sets(4), visibility=visibility, anchor_id=BOS)
        for rows, log_p_rV in found:
            losses, expected = (-of.gather(1, targets_W[rows, None]) for of in (log_p_rV, defined[rows]))
            torch.testing.assert_close(losses, expected, atol=1e-5, rtol=1e-6)
            assert kl(defined[rows], log_p_rV).max() < 1e-5


def test_weights_in_bf16_fit() -> None:
    for kind in ("llama", "gpt-2"):
        raw = build_raw(kind)
        with torch.no_grad():
            for parameter in raw.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(0.3)  # of such size that predictions are no surer than those of real models
        limits = {check["limit"] for check in fit(CausalLM(raw).in_dtype(torch.bfloat16))}
        assert sorted(limits) == pytest.approx([0, 1e-37, 0.015, 0.15, 1.01], rel=1e-9, abs=0)


class Changed:
    """Wraps the forward pass of a model of transformers; the class and its signature stay."""

    def __init__(self, kind: str = "gpt-2", **changes: Any) -> None:
        self.raw = build_raw(kind, **changes)
        self.forward, self.raw.forward = self.raw.forward, self.call
        self.model = CausalLM(self.raw)

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        return self.forward(input_ids=input_ids, **given)


class NotANumber(Changed):
    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        output = super().call(input_ids, **given)
        output.logits = output.logits * torch.nan
        return output


class OneNotANumber(Changed):
    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        output = super().call(input_ids, **given)
        output.logits[0, ..., 7] = torch.nan
        return output


class NoToken(Changed):
    """No entry of the vocabulary has a probability."""

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        output = super().call(input_ids, **given)
        output.logits[:] = -torch.inf
        return output


class NoWeight(Changed):
    """One weight, of an entry that no window has, is no number."""

    def __init__(self) -> None:
        super().__init__()
        self.raw.transformer.wte.weight.data[0, 0] = torch.nan


class Offset(Changed):
    """The plain call counts from 2, as RoBERTa does."""

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        if given.get("position_ids") is None:
            given["position_ids"] = 2 + torch.arange(input_ids.shape[1]).expand_as(input_ids)
        return super().call(input_ids, **given)


class NoWindow(Changed):
    """The configuration names a window that no layer has."""

    def __init__(self) -> None:
        super().__init__(sliding_window=LOCAL)


class SeesAhead(Changed):
    """Every token reads the mean of the row besides."""

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        output = super().call(input_ids, **given)
        output.logits = output.logits + 0.1 * self.raw.lm_head(self.raw.transformer.wte(input_ids).mean(dim=1))[:, None]
        return output


class IgnoresPositions(Changed):
    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        return super().call(input_ids, **(given | {"position_ids": torch.zeros_like(input_ids)}))


class Carries(Changed):
    """A state besides attention carries the first tokens of a row to its end."""

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        output = super().call(input_ids, **given)
        carried = self.raw.lm_head(self.raw.transformer.wte(input_ids).cumsum(dim=1) / 10)
        output.logits = output.logits + carried[:, -output.logits.shape[1] :]
        return output


class CutsAtGaps(Changed):
    """Without a mask transformers takes gaps in position IDs for borders between texts."""

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        if not given.get("use_cache") and given.get("attention_mask") is not None and given["attention_mask"].ndim == 2:
            given["attention_mask"] = None
        return super().call(input_ids, **given)


class ForgetsAKey(Changed):
    """The first of the chosen entries is not seen."""

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        cache = given.get("past_key_values")
        if cache is not None and cache.get_seq_length() > 0:
            given["attention_mask"] = given["attention_mask"].clone()
            given["attention_mask"][..., 0] = 0
        return super().call(input_ids, **given)


class NoDerivative(Changed):
    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        if given.get("attention_mask") is not None and given["attention_mask"].requires_grad:
            given["attention_mask"] = given["attention_mask"].detach() + 0 * given["attention_mask"].clamp(-1, 1)
        return super().call(input_ids, **given)


class ReportsTooMuch(Changed):
    """The attention that it returns sums to 1.5."""

    def __init__(self) -> None:
        super().__init__("gemma-2")

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        output = super().call(input_ids, **given)
        output.attentions = output.attentions and tuple(1.5 * of for of in output.attentions)
        return output


class Unread(Changed):
    """Attention does not depend on the mask by a derivative at all."""

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        if given.get("attention_mask") is not None:
            given["attention_mask"] = given["attention_mask"].detach()
        return super().call(input_ids, **given)


class WrongTaps(Changed):
    """Logits change where attention is called by another name than that which the model was loaded with."""

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        output = super().call(input_ids, **given)
        if self.raw.config._attn_implementation not in ("sdpa", "eager"):
            output.logits = output.logits * 1.1
        return output


class CannotBeRun(Changed):
    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        if given.get("past_key_values") is not None:
            raise ValueError("first line\nsecond line")
        return super().call(input_ids, **given)


@pytest.mark.parametrize(
    ("defect", "said"),
    [
        (NotANumber, "its logits are not all numbers"),
        (OneNotANumber, "its logits are not all numbers"),
        (NoToken, "its logits are not all numbers"),
        (NoWeight, "its weights are not all numbers"),
        (Offset, r"position IDs from 0 are not its own \(it counts them otherwise\)"),
        (NoWindow, "its layers see another window than its configuration says"),
        (SeesAhead, "it is not causal"),
        (IgnoresPositions, "it ignores position IDs"),
        (Carries, "hidden tokens change its prediction"),
        (CutsAtGaps, "it does not honour gaps in position IDs"),
        (ForgetsAKey, "it does not honour gaps in position IDs: .* behind chosen keys and values"),
        (NoDerivative, "its attention has no derivative"),
        (Unread, "its attention has no derivative"),
        (ReportsTooMuch, "the attention that it reports is not a distribution over its tokens"),
        (WrongTaps, "its logits change where its attention is read"),
        (CannotBeRun, r"it cannot be run to measure rows with gaps against masked, nats \(ValueError: first line\)"),
    ],
)  # fmt: skip
def test_a_defect_is_found_and_named(defect: type[Changed], said: str) -> None:
    with pytest.raises(UserError, match=rf"^tiny cannot be measured: ({said})[^\n]*$"):
        fit(defect().model)


def test_layers_that_are_not_those_of_their_family_are_found() -> None:
    """A rotary table that the compact path reads, and the model's own layers do not."""
    raw = build_raw("llama")
    for layer in raw.model.layers:
        layer.self_attn.register_forward_hook(lambda module, inputs, output: (output[0] * 1.1, *output[1:]))
    with pytest.raises(UserError, match=r"its layers are not those of its family; use influence.path=plain"):
        fit(CausalLM(raw))


class Padded(Changed):
    """Entries of a padded vocabulary have no probability; the model is valid."""

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        output = super().call(input_ids, **given)
        output.logits[..., VOCAB - 8 :] = -torch.inf
        return output


@visible
def test_entries_of_a_padded_vocabulary_change_no_number(visibility: Any) -> None:
    names = ["kl", "unmask-one", "gradient", "mask-one", *(["greedy-patching"] if visibility == "contextual" else [])]
    padded, cut = (measurement(of, visibility=visibility, selectors=names) for of in (Padded().model, Cut().model))
    fit(padded.engine.model)
    for table in ("windows", "selections"):
        for ours, theirs in zip(*(of.tables_of(np.arange(3))[table].to_pylist() for of in (padded, cut)), strict=True):
            for name, value in theirs.items():
                if name != "resampled_target_ids" and isinstance(value, (float, list)) and "text" not in name:
                    assert ours[name] == pytest.approx(value, abs=2e-4), name


class Cut(Changed):
    """The same model with so low a logit there that it has no probability."""

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        output = super().call(input_ids, **given)
        output.logits[..., VOCAB - 8 :] = -1e4
        return output


@pytest.mark.parametrize("window", [2, LOCAL, FULL - 1, FULL])
@anchored
def test_a_window_that_the_configuration_does_not_tell(window: int, anchor_id: Optional[int]) -> None:
    """What the model attends to is measured."""
    raw = build_raw("gpt-2")
    banned = torch.ones(64, 64, dtype=torch.bool).tril(-window)
    for block in raw.transformer.h:

        def narrowed(hidden: torch.Tensor, *rest: Any, own: Any = block.attn.forward, **given: Any) -> Any:
            mask = given.get("attention_mask")
            if mask is None or mask.ndim == 2:
                length = hidden.shape[1]
                given["attention_mask"] = ~(
                    banned[:length, :length] | torch.ones(length, length, dtype=torch.bool).triu(1)
                )[None, None]
            return own(hidden, *rest, **given)

        block.attn.forward = narrowed
    if window == FULL and anchor_id is None:
        fit(CausalLM(raw))
        return
    with pytest.raises(UserError, match=r"its last token does not attend to a whole window"):
        fit(CausalLM(raw), anchor_id=anchor_id)


def test_a_window_of_text_and_its_anchor_need_as_many_positions() -> None:
    fit(build("gpt-2", n_positions=FULL))
    with pytest.raises(
        UserError, match=f"it has {FULL} positions, and a window takes {FULL + 1}; choose a shorter influence.full_len"
    ):
        fit(build("gpt-2", n_positions=FULL), anchor_id=BOS)


@anchored
@pytest.mark.parametrize("local_len", [1, FULL - 1])
def test_the_shortest_and_the_longest_local_context(local_len: int, anchor_id: Optional[int]) -> None:
    fit(build("llama"), local_len=local_len, anchor_id=anchor_id)


def test_windows_of_two_tokens_tell_whether_positions_are_used() -> None:
    fit(build("llama"), with_targets()[:, -3:], local_len=1)
    with pytest.raises(UserError, match="it ignores position IDs"):
        fit(build("falcon with ALiBi"), with_targets()[:, -3:], local_len=1)


@pytest.mark.parametrize("tokens", [[7], [7, 8], [*range(20, 31)]], ids=["one", "two in turn", "every second"])
def test_windows_in_which_nothing_can_be_told_apart_are_replaced(tokens: list[int]) -> None:
    """A model that fits is not refused because of them, and one that does not fit does not pass."""
    row = torch.tensor(tokens).repeat(FULL + 1)[: FULL + 1]
    if len(tokens) > 2:
        row[1::2] = 7
    alike_WT = row.expand(3, -1)
    fit(build("llama"), alike_WT)
    with pytest.raises(UserError, match="it ignores position IDs"):
        fit(build("falcon with ALiBi"), alike_WT)
    mixed = torch.cat([with_targets(1), alike_WT])[:, :-1]
    varied = varied_windows(mixed, VOCAB)
    assert torch.equal(varied[0], mixed[0]) and all(len(row_T.unique()) == FULL for row_T in varied[1:])
    assert torch.equal(varied_windows(mixed, VOCAB), varied) and int(varied_windows(mixed, 5)[1:].max()) < 5


def test_the_manifest_has_every_check() -> None:
    checks = fit(build("gpt-2"))
    assert len(checks) == len({check["name"] for check in checks}) > 10
    for check in checks:
        found, limit = check["found"], check["limit"]
        assert isinstance(found, (int, float)) and (found >= limit if check["at_least"] else found <= limit)
    assert sorted({check["limit"] for check in checks}) == pytest.approx([0, 1e-37, 1e-5, 1e-4, 1.01], rel=1e-9, abs=0)


def test_windows_that_are_longer_than_what_is_checked_are_told(messages: Messages) -> None:
    raw = build_raw("llama", max_position_embeddings=9_000)
    next(raw.parameters()).data[0, 0] = torch.nan  # the first check ends them
    for length, number in ((8_000, 0), (8_500, 1)):
        with pytest.raises(UserError, match="its weights are not all numbers"):
            fit(CausalLM(raw), torch.arange(length)[None] % VOCAB)
        assert len([line for line in messages if "longer than 8,192 tokens would not be noticed" in line]) == number


# First tokens.


@anchored
def test_losses_with_a_bos_and_without(anchor_id: Optional[int]) -> None:
    model, (tokens_WT, targets_W) = build("llama"), windows(6)
    tokens = torch.cat([tokens_WT, targets_W[:, None]], dim=1)
    check = compare_first_tokens(model, tokens, np.arange(6), bos=Anchor(BOS, "<s>"), chosen=anchor_id, local_len=LOCAL)
    assert (check["text"], check["num_windows"]) == ("<s>", 6) and check["chosen"] == ("bos" if anchor_id else "none")
    for gate, length in ((0, "short"), (1, "long")):
        for choice, bos in (("bos", BOS), ("none", None)):
            log_p_WV = log_probs(model.raw, tokens_WT, torch.full((6, M), gate), anchor_id=bos)
            loss = -log_p_WV.gather(1, targets_W[:, None]).mean()
            assert check[f"loss_{length}_nats"][choice] == pytest.approx(float(loss), abs=1e-5)


def test_which_loss_is_lower_by_three_standard_errors() -> None:
    """Windows of one document are no evidence of their own."""
    values = np.random.default_rng(0).normal(size=20)
    values = (values - values.mean()) / values.std(ddof=1) * np.sqrt(20)  # of standard error 1
    for times, expected in ((3.01, "none"), (-3.01, "bos"), (2.99, None), (-2.99, None)):
        assert lower_choice(values + times, np.arange(20)) == expected
        assert lower_choice(np.tile(values + times, 4), np.tile(np.arange(20), 4)) == expected
    assert lower_choice(values + 99, np.zeros(20)) is None
    assert [lower_choice(np.full(2, mean), np.arange(2)) for mean in (-0.1, 0.1)] == ["bos", "none"]
    assert lower_choice(np.zeros(3), np.arange(3)) is None


class HelpedByBos(Changed):
    """The target 5 is likelier by so many nats behind a BOS: in rows of the local tokens alone, and in longer ones."""

    short, long = 0.0, 0.0

    def call(self, input_ids: torch.Tensor, **given: Any) -> Any:
        output = super().call(input_ids, **given)
        bonus = self.short if input_ids.shape[1] <= LOCAL + 1 else self.long
        noise = (input_ids.sum(dim=1).float() % 7 - 3) / 10  # of the row; the same for no two of them
        output.logits = torch.zeros_like(output.logits)
        output.logits[..., 5] = (noise + bonus * (input_ids[:, 0] == BOS))[:, None]
        return output


@pytest.mark.parametrize(
    ("short", "long", "lower"),
    [(2, 2, ("bos", "bos")), (0, 0, (None, None)), (2, 0, ("bos", None)), (2, -2, ("bos", "none"))],
)
def test_which_first_token_has_the_lower_loss(
    short: float, long: float, lower: tuple[Optional[str], Optional[str]]
) -> None:
    """A missing BOS that costs the local tokens alone passes for a long gain; the loss with all tokens says nothing of it."""
    changed = HelpedByBos()
    changed.short, changed.long = short, long
    tokens_WT = with_targets(64)
    tokens_WT[:, -1] = 5

    def lower_with(document_W: np.ndarray) -> Any:
        return compare_first_tokens(
            changed.model, tokens_WT, document_W, bos=Anchor(BOS, "<s>"), chosen=None, local_len=LOCAL
        )["lower_with"]

    assert lower_with(np.arange(64)) == {"short": lower[0], "long": lower[1]}
    assert lower_with(np.zeros(64)) == {"short": None, "long": None}


def test_about_as_many_tokens_are_compared_at_every_length() -> None:
    found = {length: num_compared_windows(length) for length in (16, 256, 257, 2048, 8128)}
    assert found == {16: 64, 256: 64, 257: 63, 2048: 8, 8128: 8}
