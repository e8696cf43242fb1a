"""Which models can be measured, and what is said of the others."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import pytest
import torch
from tiny_models import NORMED
from tiny_models import build as build_olmo
from transformers_models import BOS, FITTING, VOCAB, WINDOWED, build, build_raw, build_unaware

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.setup import fit as fit_module
from olmo_sparsity.measure.setup.fit import CheckedWindows, FitCheck, check_fit, check_longest_row, varied_windows
from olmo_sparsity.model.causal_model import CausalModel
from olmo_sparsity.model.transformers_model import TransformersModel

LOCAL, FULL = 10, 24


def windows(num: int = 6, *, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randint(3, vocab, (num, FULL + 1), generator=torch.Generator().manual_seed(1))


def fit(
    model: CausalModel, *, anchor_id: Optional[int] = None, dtype: torch.dtype = torch.float32, **changes: Any
) -> list[FitCheck]:
    options: dict[str, Any] = {"name": "tiny", "local_len": LOCAL, "dtype": dtype, "anchor_id": anchor_id}
    return check_fit(model, windows(), **(options | changes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
@pytest.mark.parametrize("kind", [*FITTING, *WINDOWED, "gemma-4"])
def test_models_that_fit(kind: str, anchor_id: Optional[int], dtype: torch.dtype) -> None:
    checks = fit(build(kind).in_dtype(dtype), anchor_id=anchor_id, dtype=dtype)
    assert all(check.holds for check in checks)
    assert [check.at_least for check in checks].count(True) == 2
    assert {check.name for check in checks} >= {
        "compact against masked (hidden), nats",
        "compact against masked (contextual), nats",
    }


def test_an_olmo_of_this_package_fits() -> None:
    model = build_olmo(NORMED).eval().requires_grad_(False)
    tokens = windows(vocab=100)[:, -23:]
    check_fit(model, tokens, name="olmo", local_len=8, dtype=torch.float32, anchor_id=0)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (
            "falcon with ALiBi",
            r"it ignores position IDs \(as with ALiBi, or without positions\)[^\n]* \(effect of other position IDs, nats: 0, "
            r"must be at least 1e-05\)",
        ),
        (
            "qwen 3 next",
            r"hidden tokens change its prediction, so something besides attention carries them \(a recurrent state\) \(effect of "
            r"hidden tokens, nats: \d[.\d]+, must be at most 0\.0001\)",
        ),
    ],
)
def test_models_that_do_not_fit(kind: str, found: str) -> None:
    with pytest.raises(UserError, match=rf"^tiny cannot be measured: {found}$"):
        fit(build(kind))


@pytest.mark.parametrize("window", [2, FULL - 1, FULL, FULL + 1])
def test_sliding_windows_of_every_length_fit(window: int) -> None:
    fit(build("mistral", sliding_window=window))
    fit(build("mistral", sliding_window=window), anchor_id=BOS)


@pytest.mark.parametrize("kind", WINDOWED)
def test_a_window_that_is_not_known_is_found(kind: str) -> None:
    """The model's own attention is compared with what is asked of it, whatever its configuration says."""
    number = int(kind.split()[-1])
    with pytest.raises(
        UserError,
        match=rf"^[^\n]*the last {number} tokens only \(a sliding window\), fewer than a window has; choose[^\n]*$",
    ):
        fit(build_unaware(kind))


class WithoutMask(TransformersModel):
    """What transformers computes if it gets no mask: tokens behind a gap in the positions do not see those before it."""

    def _run(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, **options: Any) -> Any:
        if options["attention_mask"].ndim == 2 and not options["use_cache"]:
            options["attention_mask"] = None
        return super()._run(tokens_BT, positions_BT, **options)


class ForgetsOneKey(TransformersModel):
    """The first of the chosen keys is not seen."""

    def last_logits_after(
        self, tokens_BY: torch.Tensor, positions_BY: torch.Tensor, *, prefix: Any, **_: Any
    ) -> torch.Tensor:
        return super().last_logits_after(
            tokens_BY, positions_BY, prefix=[(k[:, :, 1:], v[:, :, 1:]) for k, v in prefix]
        )


class TakesOnlyMasks(TransformersModel):
    """Every number in a mask means that a token is seen, as where a library reads masks as truth values."""

    def _mask(self, bias_BTT: torch.Tensor) -> torch.Tensor:
        return super()._mask(bias_BTT if bias_BTT.dtype == torch.bool else torch.zeros_like(bias_BTT))


class NoDerivative(TransformersModel):
    def _mask(self, bias_BTT: torch.Tensor) -> torch.Tensor:
        if bias_BTT.dtype == torch.bool:
            return super()._mask(bias_BTT)
        return super()._mask(bias_BTT.detach() + 0 * bias_BTT.clamp(-1, 1))


class NotANumber(TransformersModel):
    def last_logits(self, *arguments: Any, **options: Any) -> torch.Tensor:
        return super().last_logits(*arguments, **options) * torch.nan


class CannotBeRun(TransformersModel):
    def keys_values(self, *_: Any) -> Any:
        raise ValueError("first line\nsecond line")


@pytest.mark.parametrize(
    ("defect", "found"),
    [
        (WithoutMask, "gaps in position IDs are not honoured"),
        (ForgetsOneKey, "its keys and values cannot be chosen from"),
        (TakesOnlyMasks, "weights between seen and hidden are not honoured"),
        (NoDerivative, "its attention has no derivative"),
        (NotANumber, "it ignores position IDs"),
        (CannotBeRun, r"it cannot be run to measure the cached against masked \(ValueError: first line\)"),
    ],
)
def test_defects_are_found_and_named(defect: type[TransformersModel], found: str) -> None:
    with pytest.raises(UserError, match=rf"^tiny cannot be measured: {found}[^\n]*$"):
        fit(defect(build_raw("llama")))


def test_an_anchor_takes_a_position() -> None:
    model = build("gpt-2", n_positions=FULL)
    fit(model)
    with pytest.raises(UserError, match=f"it has {FULL} positions, and a window takes {FULL + 1}"):
        fit(model, anchor_id=BOS)


@pytest.mark.parametrize("local_len", [1, FULL - 1])
def test_the_shortest_and_the_longest_local_context(local_len: int) -> None:
    fit(build("llama"), local_len=local_len)
    fit(build("llama"), local_len=local_len, anchor_id=BOS)


@pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
def test_windows_of_two_tokens(anchor_id: Optional[int]) -> None:
    """The distance between neighbours cannot be halved; a model that uses positions is not said to ignore them."""
    options: dict[str, Any] = {"name": "tiny", "local_len": 1, "dtype": torch.float32, "anchor_id": anchor_id}
    check_fit(build("llama"), windows()[:, -3:], **options)
    with pytest.raises(UserError, match="it ignores position IDs"):
        check_fit(build("falcon with ALiBi"), windows()[:, -3:], **options)


# Rows of dashes, of dashes and dots in turn, and of dashes between any other tokens.
MONOTONOUS = {
    "one token": torch.full((1, FULL + 1), 7),
    "two in turn": torch.tensor([7, 8]).repeat(FULL // 2 + 1)[None, : FULL + 1],
    "every second": torch.stack([torch.arange(20, 20 + FULL // 2 + 1), torch.full((FULL // 2 + 1,), 7)], 1).view(1, -1)[
        :, : FULL + 1
    ],
}


@pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
@pytest.mark.parametrize("kind", MONOTONOUS)
def test_windows_in_which_nothing_can_be_told_apart(kind: str, anchor_id: Optional[int]) -> None:
    """A model that fits is not refused because of them, and one that does not fit does not pass."""
    options: dict[str, Any] = {"name": "tiny", "local_len": LOCAL, "dtype": torch.float32, "anchor_id": anchor_id}
    alike, mixed = MONOTONOUS[kind], windows(3)
    for tokens in (alike, alike.expand(3, -1), torch.cat([mixed, alike])):
        check_fit(build("llama"), tokens, **options)
        with pytest.raises(UserError, match="it ignores position IDs"):
            check_fit(build("falcon with ALiBi"), tokens, **options)
        with pytest.raises(UserError, match="the last 10 tokens only"):
            check_fit(build_unaware("mistral, window of 10"), tokens, **options)
        with pytest.raises(UserError, match="hidden tokens change its prediction"):
            check_fit(build("qwen 3 next"), tokens, **options)


def test_windows_of_text_are_checked_as_they_are() -> None:
    tokens = windows()[:, :-1]
    assert torch.equal(varied_windows(tokens, VOCAB), tokens)
    two = torch.cat([tokens[:1], MONOTONOUS["one token"][:, :-1]])
    told = varied_windows(two, VOCAB)
    assert torch.equal(told[0], two[0]) and len(told[1].unique()) == FULL
    assert torch.equal(varied_windows(two, VOCAB), told)
    assert int(varied_windows(two, 5).max()) < VOCAB and len(varied_windows(two, 5)[1].unique()) == 5


def test_what_was_found_is_plain_numbers_and_words() -> None:
    checks = [dataclasses.asdict(check) for check in fit(build("llama"))]
    assert set(checks[0]) == {"name", "found", "limit", "at_least"}
    assert all(isinstance(check["found"], (int, float)) for check in checks)


@pytest.fixture(params=[None, BOS], ids=["no anchor", "anchor"])
def anchor_id(request: pytest.FixtureRequest) -> Optional[int]:
    return request.param  # type: ignore[no-any-return]


def test_where_a_check_holds() -> None:
    for found, at_most, at_least in (
        (0.9, True, False),
        (1.0, True, True),
        (1.1, False, True),
        (float("nan"), False, False),
    ):
        assert FitCheck("x", found, 1.0).holds == at_most
        assert FitCheck("x", found, 1.0, at_least=True).holds == at_least


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    """The windows of each ``CheckedWindows`` that is made from now on, and how it is made."""
    calls = []

    class Seen(CheckedWindows):
        def __init__(self, model: Any, tokens_WT: torch.Tensor, **named: Any) -> None:
            calls.append((tokens_WT, named))
            super().__init__(model, tokens_WT, **named)

    monkeypatch.setattr(fit_module, "CheckedWindows", Seen)
    return calls


@pytest.mark.parametrize("kind", WINDOWED)
def test_the_longest_row(kind: str, anchor_id: Optional[int]) -> None:
    number = int(kind.split()[-1])
    options: dict[str, Any] = {"name": "tiny", "local_len": LOCAL, "dtype": torch.float32, "anchor_id": anchor_id}
    check = check_longest_row(build(kind), windows(), **options)
    assert check.name == "longest row against a causal mask, nats" and check.found <= check.limit == 1e-4
    taken = number - (anchor_id is not None)
    with pytest.raises(
        UserError,
        match=rf"^tiny cannot be measured: it attends to the last {number} tokens only \(a sliding window\), fewer than the "
        rf"{FULL + (anchor_id is not None)} of the longest row; use --full-len {taken} or "
        r"less \(longest",
    ):
        check_longest_row(build_unaware(kind), windows(), **options)


def test_errors_of_the_model_and_of_memory() -> None:
    def failing(error: BaseException) -> None:
        with fit_module._as_user_error("m", "x"):
            raise error

    for error in (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError):
        with pytest.raises(UserError, match=rf"^m cannot be measured: .* measure the x \({error.__name__}: \)$"):
            failing(error())
    with pytest.raises(UserError, match=r"x \(ValueError: a{160}\)$"):
        failing(ValueError("a" * 200))
    for passed in (torch.OutOfMemoryError, ZeroDivisionError):
        with pytest.raises(passed):
            failing(passed())


def test_the_longest_row_may_be_cut_to_fewer_tokens_than_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the last 9 tokens are local where 10 are; nothing is hidden in the row."""
    monkeypatch.setattr(fit_module, "LONGEST_MASKED", 8)
    check = check_longest_row(
        build("llama"), windows()[:, -10:], name="tiny", local_len=LOCAL, dtype=torch.float32, anchor_id=None
    )
    assert check.found <= check.limit


@pytest.mark.parametrize("window", [1, 2, FULL - 1, FULL])
def test_how_many_tokens_are_attended_to(window: int) -> None:
    """From the last one alone up to all but one; a window and its anchor are one token longer than the full context."""
    model = build("mistral", sliding_window=window)
    model._window = None  # it is not known
    options: dict[str, Any] = {"local_len": LOCAL, "anchor_id": BOS, "tolerance": 1e-4}
    with torch.no_grad():
        assert CheckedWindows(model, windows()[:, :-1], **options).attended_tokens() == window
