"""Which models can be measured, and what is said of the others."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest
import torch
from conftest import Messages
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


class Recording:
    """A model that answers every question with other random logits, and keeps what it was asked and what it said."""

    vocab_size, max_position, device = 30, 99, torch.device("cpu")

    def __init__(self) -> None:
        self.rng = torch.Generator().manual_seed(0)
        self.asked: list[tuple[str, torch.Tensor, torch.Tensor, Any]] = []
        self.said: list[np.ndarray] = []
        self.prefix: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.slope_TV = torch.randn(99, 30, generator=self.rng)

    def _say(self, name: str, tokens: torch.Tensor, positions: torch.Tensor, given: Any) -> torch.Tensor:
        logits = torch.randn(len(tokens), 30, generator=self.rng) * 2
        self.asked.append((name, tokens.clone(), positions.clone(), given))
        self.said.append(logits.log_softmax(-1).double().numpy())
        return logits

    def last_logits(self, tokens: torch.Tensor, positions: torch.Tensor, *, bias_BTT: Any = None) -> torch.Tensor:
        logits = self._say("masked", tokens, positions, bias_BTT)
        if bias_BTT is not None and bias_BTT.requires_grad:
            logits = logits + bias_BTT[:, -1] @ self.slope_TV[: bias_BTT.shape[-1]]
        return logits

    def own_last_logits(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self._say("own", tokens, positions, None)

    def last_logits_and_attention(self, tokens: torch.Tensor, positions: torch.Tensor) -> tuple[Any, torch.Tensor]:
        attention = torch.rand(tokens.shape, generator=self.rng)
        return self._say("attention", tokens, positions, attention), attention

    def keys_values(self, tokens: torch.Tensor, positions: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
        self._say("prefix", tokens, positions, None)
        shape = (len(tokens), 2, tokens.shape[1], 3)
        layers = torch.randn(2, 2, *shape, generator=self.rng)
        self.prefix = [(keys, values) for keys, values in layers]
        return self.prefix

    def last_logits_after(
        self, tokens: torch.Tensor, positions: torch.Tensor, *, prefix: Any, prefix_positions_BP: torch.Tensor
    ) -> torch.Tensor:
        return self._say("after", tokens, positions, (prefix, prefix_positions_BP))

    def difference(self, first: int = -2, second: int = -1) -> float:
        """Return the expected difference of two answers as the module defines it."""
        log_p, log_q = self.said[first], self.said[second]
        return float(max((np.exp(p) * np.abs(p - q)).sum() for p, q in zip(log_p, log_q, strict=True)))


@pytest.fixture(params=[None, BOS], ids=["no anchor", "anchor"])
def anchor_id(request: pytest.FixtureRequest) -> Optional[int]:
    return request.param  # type: ignore[no-any-return]


def recorded(
    anchor_id: Optional[int], *, full_len: int = FULL, local_len: int = LOCAL
) -> tuple[Recording, CheckedWindows]:
    model = Recording()
    tokens = torch.randint(3, 30, (3, full_len), generator=torch.Generator().manual_seed(2))
    of_model: Any = model
    return model, CheckedWindows(of_model, tokens, local_len=local_len, anchor_id=anchor_id, tolerance=0.25)


def rows_of(checked: CheckedWindows, anchor_id: Optional[int]) -> tuple[list[list[int]], list[int]]:
    """Return the rows with their anchor, and the indices that are visible: every second long-range token of 14."""
    rows = checked.tokens_WT.tolist()
    first = 0 if anchor_id is None else 1
    assert all(row[:first] == [anchor_id][:first] and len(row) == first + FULL for row in rows)
    visible = [
        *range(first),
        *(first + j for j in range(0, FULL - LOCAL, 2)),
        *range(first + FULL - LOCAL, first + FULL),
    ]
    return rows, visible


def allowed(length: int, visible: list[int], *, contextual: bool = False) -> list[list[bool]]:
    """Who may attend to whom: under ``contextual`` the local tokens alone do not see what is hidden."""
    free = length - LOCAL if contextual else 0
    return [[j <= i and (j in visible or i == j or i < free) for j in range(length)] for i in range(length)]


def test_positions_are_halved_in_rows_of_every_second_token(anchor_id: Optional[int]) -> None:
    model, checked = recorded(anchor_id)
    rows, _ = rows_of(checked, anchor_id)
    check = checked.effect_of_positions()
    (_, tokens, apart, none), (_, same, near, _) = model.asked
    places = list(range(len(rows[0]) - 1, -1, -2))[::-1]  # up to the last token
    assert tokens.tolist() == same.tolist() == [[row[i] for i in places] for row in rows] and none is None
    assert apart.tolist() == [places] * 3 and near.tolist() == [[i // 2 for i in places]] * 3
    assert check.found == pytest.approx(model.difference(), rel=1e-5)
    assert (check.limit, check.at_least) == (0.025, True)


def test_hidden_tokens_are_replaced_under_the_mask(anchor_id: Optional[int]) -> None:
    model, checked = recorded(anchor_id)
    rows, visible = rows_of(checked, anchor_id)
    check = checked.effect_of_hidden_tokens()
    (_, tokens, positions, mask), (_, replaced, same, same_mask) = model.asked
    length = len(rows[0])
    assert tokens.tolist() == rows and positions.tolist() == same.tolist() == [list(range(length))] * 3
    assert replaced.tolist() == [[row[i] if i in visible else row[-1 - i] for i in range(length)] for row in rows]
    assert mask.tolist() == same_mask.tolist() == [allowed(length, visible)] * 3
    assert check.found == pytest.approx(model.difference(), rel=1e-5) and (check.limit, check.at_least) == (0.25, False)


def test_rows_of_the_visible_tokens_are_compared_with_the_mask(anchor_id: Optional[int]) -> None:
    model, checked = recorded(anchor_id)
    rows, visible = rows_of(checked, anchor_id)
    check = checked.compact_against_masked()
    (_, tokens, _, mask), (_, seen, positions, none) = model.asked
    assert tokens.tolist() == rows and mask.tolist() == [allowed(len(rows[0]), visible)] * 3 and none is None
    assert seen.tolist() == [[row[i] for i in visible] for row in rows] and positions.tolist() == [visible] * 3
    assert check.found == pytest.approx(model.difference(), rel=1e-5) and (check.limit, check.at_least) == (0.25, False)


def test_keys_and_values_are_chosen_and_compared_with_the_contextual_mask(anchor_id: Optional[int]) -> None:
    model, checked = recorded(anchor_id)
    rows, visible = rows_of(checked, anchor_id)
    check = checked.cached_against_masked()
    (name, before, before_positions, _), (_, local, local_positions, (prefix, prefix_positions)), masked = model.asked
    cut, kept = len(rows[0]) - LOCAL, [i for i in visible if i < len(rows[0]) - LOCAL]
    assert name == "prefix" and before.tolist() == [row[:cut] for row in rows]
    assert before_positions.tolist() == [list(range(cut))] * 3
    assert (
        local.tolist() == [row[cut:] for row in rows]
        and local_positions.tolist() == [list(range(cut, cut + LOCAL))] * 3
    )
    assert prefix_positions.tolist() == [kept] * 3
    for entries, chosen in zip(model.prefix, prefix, strict=True):
        assert all(torch.equal(of_kept, every[:, :, kept]) for every, of_kept in zip(entries, chosen, strict=True))
    assert masked[1].tolist() == rows and masked[3].tolist() == [allowed(len(rows[0]), visible, contextual=True)] * 3
    assert check.found == pytest.approx(model.difference(2, 1), rel=1e-5) and (check.limit, check.at_least) == (
        0.25,
        False,
    )


def test_the_models_own_attention_is_compared_with_a_causal_mask(anchor_id: Optional[int]) -> None:
    model, checked = recorded(anchor_id)
    rows, _ = rows_of(checked, anchor_id)
    check = checked.full_context_against_mask()
    (_, tokens, positions, mask), (name, same, same_positions, _) = model.asked
    length = len(rows[0])
    assert name == "own" and tokens.tolist() == same.tolist() == rows
    assert positions.tolist() == same_positions.tolist() == [list(range(length))] * 3
    assert mask.tolist() == [allowed(length, list(range(length)))] * 3
    assert check.found == pytest.approx(model.difference(), rel=1e-5) and (check.limit, check.at_least) == (0.25, False)
    model.asked.clear()
    checked._own_against_causal(7)
    (_, tokens, positions, mask), _ = model.asked
    assert tokens.tolist() == [row[-7:] for row in rows] and positions.tolist() == [list(range(length - 7, length))] * 3
    assert mask.shape == (3, 7, 7)


def test_gates_are_closed_on_what_is_hidden_and_the_derivative_is_at_open_ones(anchor_id: Optional[int]) -> None:
    model, checked = recorded(anchor_id)
    rows, visible = rows_of(checked, anchor_id)
    check = checked.gates_against_masked()
    bias, mask = (
        next(given for *_, given in model.asked if given.dtype == dtype) for dtype in (torch.float, torch.bool)
    )
    assert mask.tolist() == [allowed(len(rows[0]), visible)] * 3
    assert torch.equal(bias, torch.where(mask, 0.0, torch.finfo(torch.float32).min))
    order = [given.dtype for *_, given in model.asked]
    of_mask = order.index(torch.bool)
    assert check.found == pytest.approx(model.difference(of_mask, 1 - of_mask), rel=1e-5)
    assert (check.limit, check.at_least) == (0.25, False)
    check = checked.gradient_of_gates()
    last, slope = (
        np.exp(model.said[-1]),
        model.slope_TV[: len(rows[0]) - 1].double().numpy(),
    )  # its own gate is always open
    expected = max(np.abs(slope[:, p.argmax()] - slope @ p).max() for p in last)
    assert check.found == pytest.approx(expected, rel=1e-4)
    assert (check.limit, check.at_least) == (torch.finfo(torch.float32).tiny, True)
    check = checked.sum_of_attention()
    assert model.asked[-1][1].tolist() == rows
    assert check.found == pytest.approx(float(model.asked[-1][3].sum(1).max()), rel=1e-6) and check.limit == 1.01


@pytest.mark.parametrize(
    ("full_len", "local_len", "visible"),
    [
        (70, 10, [0, 7, 15, 22, 30, 37, 45, 52]),
        (26, 10, list(range(0, 16, 2))),
        (25, 10, [0, 2, 4, 6, 8, 10, 12]),
        (11, 10, [0]),
    ],
)
def test_visible_tokens_are_as_far_apart_as_the_window_allows(
    full_len: int, local_len: int, visible: list[int]
) -> None:
    _, checked = recorded(None, full_len=full_len, local_len=local_len)
    assert checked.visible_WS.tolist() == [visible] * 3


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


@pytest.mark.parametrize(("batch_tokens", "num"), [(4096, 4), (100, 4), (99, 3), (50, 2), (49, 1), (3, 1)])
def test_as_many_windows_are_checked_as_a_pass_holds(
    batch_tokens: int, num: int, seen: list[tuple[torch.Tensor, dict[str, Any]]]
) -> None:
    checks = fit(build("llama"), batch_tokens=batch_tokens)
    ((tokens, made),) = seen
    assert torch.equal(tokens, windows()[:num, :-1]) and made["tolerance"] == 1e-4
    assert [(check.name, check.found, check.limit) for check in checks[:1]] == [("position IDs in use", FULL, 64)]
    assert fit(build("llama"), anchor_id=BOS)[0].found == FULL + 1
    fit(build("llama").in_dtype(torch.bfloat16), dtype=torch.bfloat16)
    assert seen[-1][1]["tolerance"] == 0.15
    assert len(checks) == 1 + len(fit_module.CHECKS) == 9


@pytest.mark.parametrize("kind", WINDOWED)
def test_the_longest_row_of_a_curve(kind: str, anchor_id: Optional[int]) -> None:
    number = int(kind.split()[-1])
    options: dict[str, Any] = {"name": "tiny", "local_len": LOCAL, "dtype": torch.float32, "anchor_id": anchor_id}
    check = check_longest_row(build(kind), windows(), **options)
    assert check.name == "longest row against a causal mask, nats" and check.found <= check.limit == 1e-4
    taken = number - (anchor_id is not None)
    with pytest.raises(
        UserError,
        match=rf"^tiny cannot be measured: it attends to the last {number} tokens only \(a sliding window\), fewer than the "
        rf"{FULL + (anchor_id is not None)} of the longest row; use context_curve.max_visible, or --full-len, {taken} or "
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


class Drawn:
    """Windows of drawn tokens, in documents with the numbers 100, 103, 106, ..., two windows of each."""

    def __init__(self, num: int, full_len: int) -> None:
        self.num, self.full_len = num, full_len
        self.rows_WT = np.random.default_rng(full_len).integers(3, VOCAB, (num, full_len + 1))
        self.document_W = np.arange(num) // 2 * 3
        self.store = SimpleNamespace(doc_ids_G=100 + np.arange(num * 2))

    def __len__(self) -> int:
        return self.num

    def tokens(self, numbers: np.ndarray) -> np.ndarray:
        return self.rows_WT[numbers]


@dataclasses.dataclass
class Asked:
    """What ``fit_entries`` asked of the checks, of the comparison of the first tokens, and of the text."""

    checked: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    longest: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)
    compared: list[tuple[Any, ...]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Found:
    number: int


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    found = Asked()

    def check(model: Any, tokens: torch.Tensor, **options: Any) -> list[FitCheck]:
        found.checked.append((model, tokens.tolist(), options))
        return [FitCheck("a", 1, 2)]

    def longest(model: Any, tokens: torch.Tensor, **options: Any) -> FitCheck:
        found.longest.append((model, tokens.tolist(), options))
        return FitCheck("b", 3, 4)

    def compare(model: Any, tokens: torch.Tensor, documents: np.ndarray, **options: Any) -> Found:
        found.compared.append((model, tokens.tolist(), documents.tolist(), options))
        return Found(7)

    monkeypatch.setattr(fit_module, "check_fit", check)
    monkeypatch.setattr(fit_module, "check_longest_row", longest)
    monkeypatch.setattr(fit_module, "compare_first_tokens", compare)
    monkeypatch.setattr(fit_module, "num_compared_windows", lambda full_len: full_len // 2)
    return found


def opened_as(asked: Asked, **fields: Any) -> Any:
    """A pretrained model of 10 local tokens among 24, with an anchor."""

    given = {
        "record": SimpleNamespace(name="of record"), "name": "of folder", "precision": "bf16", "anchor_id": 5, "bos": "bos",
        "device": torch.device("cpu"), "lengths": SimpleNamespace(full_len=FULL, local_len=LOCAL),
        "model": SimpleNamespace(max_position=FULL + 1),
    }  # fmt: skip
    return SimpleNamespace(**(given | fields))


@pytest.mark.parametrize("longer", [0, 6])
@pytest.mark.parametrize("num", [3, 9, 40])
def test_what_is_checked_and_compared(asked: Asked, num: int, longer: int, messages: Messages) -> None:
    """Rows of a curve are longer than a window; of those the last tokens are the window."""
    opened = opened_as(asked)
    windows: Any = Drawn(num, FULL + longer)
    entries = fit_module.fit_entries(opened, windows)
    rows = windows.rows_WT[:4]
    assert messages.lines == [f"of record: checking on {len(rows)} windows of {FULL} tokens whether it can be measured"]
    options = {"name": "of record", "local_len": LOCAL, "dtype": torch.bfloat16, "anchor_id": 5}
    assert asked.checked == [(opened.model, rows[:, longer:].tolist(), options)]
    assert asked.longest == ([(opened.model, rows.tolist(), options)] if longer else [])
    names = ["a", "b"] if longer else ["a"]
    assert [check["name"] for check in entries["fit"]["checks"]] == names and entries["fit"]["anchor"] == {"number": 7}
    ((model, tokens, documents, compared_as),) = asked.compared
    assert model is opened.model and tokens == windows.rows_WT[:12, longer:].tolist()
    assert documents == [100 + w // 2 * 3 for w in range(min(num, 12))]
    assert compared_as == {
        "bos": "bos", "chosen": 5, "local_len": LOCAL,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("num_tokens", "in_checks", "compared"), [(LOCAL + 2, LOCAL, LOCAL), (LOCAL, LOCAL - 1, LOCAL), (7, 6, 7)]
)
def test_a_curve_may_end_at_the_local_tokens_or_before(
    asked: Asked, num_tokens: int, in_checks: int, compared: int, messages: Messages
) -> None:
    """The checks need a token that is not local. All tokens are local where the first tokens are compared."""
    fit_module.fit_entries(opened_as(asked), Drawn(9, num_tokens))  # type: ignore[arg-type]
    assert messages.lines == [f"of record: checking on 4 windows of {num_tokens} tokens whether it can be measured"]
    assert [options["local_len"] for *_, options in asked.checked] == [in_checks] and not asked.longest
    assert [options["local_len"] for *_, options in asked.compared] == [compared]


@pytest.mark.parametrize(
    ("masked", "checked", "longer", "row"),
    [
        (FULL, 27, 0, None), (FULL, 27, 6, 27), (FULL, 30, 6, 30), (FULL, 31, 6, 30),
        (7, 20, 0, 20), (7, FULL, 0, FULL), (7, 25, 6, 25), (FULL - 1, 30, 0, FULL),
    ],
)  # fmt: skip
def test_rows_are_checked_as_far_as_a_small_mask_reaches(
    asked: Asked,
    masked: int,
    checked: int,
    longer: int,
    row: Optional[int],
    messages: Messages,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of more than the longest row that a mask is made for, the last tokens; the warning says how many."""
    monkeypatch.setattr(fit_module, "LONGEST_MASKED", masked)
    monkeypatch.setattr(fit_module, "LONGEST_CHECKED", checked)
    windows = Drawn(9, FULL + longer)
    fit_module.fit_entries(opened_as(asked), windows)  # type: ignore[arg-type]
    said = f"of record: rows are checked up to {checked} tokens; a sliding window longer than that would not be seen"
    assert messages.lines[1:] == ([said] if FULL + longer > checked else [])
    rows = [tokens for _, tokens, _ in asked.longest]
    assert rows == ([] if row is None else [windows.rows_WT[:4, -1 - row :].tolist()])


def test_visible_sets_are_checked_on_the_last_tokens_of_long_windows(
    seen: list[tuple[torch.Tensor, dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The square of a long window takes much memory. As many position IDs must be there as the whole window takes."""
    monkeypatch.setattr(fit_module, "LONGEST_MASKED", 16)
    checks = fit(build("llama"))
    ((tokens, made),) = seen
    assert torch.equal(tokens, windows()[:4, -17:-1]) and made["local_len"] == 8 < LOCAL
    assert checks[0].found == FULL


def test_the_longest_row_may_be_cut_to_fewer_tokens_than_are_local(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of the last 9 tokens are local where 10 are; nothing is hidden in the row."""
    monkeypatch.setattr(fit_module, "LONGEST_MASKED", 8)
    check = check_longest_row(
        build("llama"), windows()[:, -10:], name="tiny", local_len=LOCAL, dtype=torch.float32, anchor_id=None
    )
    assert check.found <= check.limit


def test_where_nothing_is_compared(asked: Asked) -> None:
    windows: Any = Drawn(9, FULL)
    tried: list[int] = []
    nothing = fit_module.fit_entries(opened_as(asked, record=None), windows, before_comparing=lambda: tried.append(1))
    assert nothing == {} and tried == [1]
    without_room = opened_as(asked, model=SimpleNamespace(max_position=FULL))
    assert fit_module.fit_entries(without_room, windows)["fit"]["anchor"] is None
    assert not asked.compared
    assert fit_module.fit_entries(opened_as(asked, precision="fp32", anchor_id=None), windows)["fit"]["anchor"] == {
        "number": 7
    }
    assert len(asked.compared[0][1]) == 9
    assert asked.checked[-1][2]["dtype"] == torch.float32 and asked.compared[0][3]["chosen"] is None


@pytest.mark.parametrize(
    ("compared", "lower", "num", "again"),
    [(6, None, 9, True), (9, None, 9, False), (12, None, 40, False), (6, "none", 9, True), (11, None, 40, True)],
)
def test_more_windows_compare_the_first_tokens_again(
    asked: Asked, compared: int, lower: Optional[str], num: int, again: bool
) -> None:
    losses = {"bos": 1.0, "none": 1.0}
    anchor = {
        "chosen": "bos", "text": "<s>", "num_windows": compared, "loss_short_nats": losses, "loss_long_nats": losses,
        "standard_error_short_nats": 0.1, "standard_error_nats": 0.1, "lower_with": {"short": lower, "long": None},
    }  # fmt: skip
    known, windows = {"fit": {"checks": ["kept"], "anchor": anchor}}, Drawn(num, FULL)
    found = fit_module.refreshed_fit_entries(opened_as(asked), windows, known=known)  # type: ignore[arg-type]
    assert found == ({"fit": {"checks": ["kept"], "anchor": {"number": 7}}} if again else known)
    assert [len(tokens) for _, tokens, *_ in asked.compared] == ([min(num, 12)] if again else [])
    nothing = {"fit": {"checks": [], "anchor": None}}
    assert fit_module.refreshed_fit_entries(opened_as(asked), windows, known=nothing) is nothing  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [1, 2, FULL - 1, FULL])
def test_how_many_tokens_are_attended_to(window: int) -> None:
    """From the last one alone up to all but one; a window and its anchor are one token longer than the full context."""
    model = build("mistral", sliding_window=window)
    model._window = None  # it is not known
    options: dict[str, Any] = {"local_len": LOCAL, "anchor_id": BOS, "tolerance": 1e-4}
    with torch.no_grad():
        assert CheckedWindows(model, windows()[:, :-1], **options).attended_tokens() == window
