"""What a selector of one's own gets, against an independent implementation; and what becomes of what it returns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Optional

import numpy as np
import pytest
import torch
from known_selectors import only_here as only_here
from scored_windows import W, make_scores
from tiny_models import NORMED, build
from tiny_windows import FULL, LOCAL, M, windows
from transformers_models import FITTING, VOCAB
from transformers_models import build as build_transformers

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.selection import window_inputs
from olmo_sparsity.measure.selection.window_inputs import observed, token_counts
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.window_batch import TokenGroups
from olmo_sparsity.model import observation
from olmo_sparsity.records.own_selectors import OwnSelector, names_of
from olmo_sparsity.records.selector import by_window
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.records.window_input import OF_PASS, WindowInput
from olmo_sparsity.text.store import TokenStore

pytestmark = pytest.mark.usefixtures("only_here")


def score_of(function: Callable[[WindowInput], Any], scores: Any, **declared: Any) -> np.ndarray:
    (name,) = names_of([OwnSelector(function, name="mine", **declared)])
    found: np.ndarray = SELECTORS[name].score(scores)
    return found


def test_what_a_selector_changes_through_torch_is_seen_by_no_other() -> None:
    """numpy refuses, torch only warns."""
    scores, needs = make_scores(build(NORMED).eval()), ["token_ids", "keys", "long_prediction"]

    def sums(window: WindowInput) -> np.ndarray:
        return window.keys.sum(axis=(0, 1, 3)) + window.token_ids[:M] + window.long_prediction[:M]

    def spoil(window: WindowInput) -> np.ndarray:
        for need in needs:
            torch.from_numpy(getattr(window, need)).fill_(1)
        return window.token_ids[:M]

    expected = score_of(sums, scores, needs=needs)
    with pytest.warns(UserWarning, match="not writable"):
        assert (score_of(spoil, scores, needs=needs) == 1).all()
    assert (score_of(sums, scores, needs=needs) == expected).all()
    assert scores.windows.tokens_WT.equal(windows(W)[0])


def test_masked_scores_are_none() -> None:
    mask = np.arange(M) % 3 == 1
    found = score_of(lambda window: np.ma.masked_array(np.arange(M), mask), make_scores(build(NORMED).eval()))
    assert (np.isnan(found) == mask).all() and found[0, ~mask].tolist() == np.arange(M)[~mask].tolist()


def test_the_long_prediction_is_that_of_the_context_of_the_window() -> None:
    scores = make_scores(build(NORMED).eval())
    expected = scores.predictions.log_p_long_WV.numpy()
    seen: list[np.ndarray] = []

    def keep(window: WindowInput) -> np.ndarray:
        seen.append(window.long_prediction)
        return np.arange(window.num_long_range)

    score_of(keep, scores, needs=["long_prediction"])
    assert np.stack(seen) == pytest.approx(expected, abs=1e-6)


def eager(raw: Any, tokens: torch.Tensor) -> Any:
    """Run a model of transformers in its plain implementation, which returns its attention, and its keys and values."""
    raw.set_attn_implementation("eager")
    with torch.no_grad():
        output = raw(input_ids=tokens, output_attentions=True, output_hidden_states=True, use_cache=True)
    raw.set_attn_implementation("sdpa")
    return output


@pytest.mark.parametrize("anchor_id", [None, 1])
@pytest.mark.parametrize("kind", FITTING)
def test_layers_of_transformers_models_are_those_of_their_plain_implementation(
    kind: str, anchor_id: Optional[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_transformers(kind)
    tokens = torch.randint(3, VOCAB, (2, 20), generator=torch.Generator().manual_seed(1))
    evaluator = Evaluator(model, 8, anchor_id=anchor_id, batch_tokens=25)  # a window at a time
    monkeypatch.setattr(observation, "attention_elements", lambda device: 4 * 21 * 3)  # three queries at a time
    if kind in ("gemma-2", "gpt-oss"):  # capped scores, and a sink
        with pytest.raises(UserError, match="cannot be read of such a model"):
            observed(evaluator, tokens, needs=["attention"])
        return
    found = observed(evaluator, tokens, needs=OF_PASS)
    whole = tokens if anchor_id is None else torch.nn.functional.pad(tokens, (1, 0), value=anchor_id)
    first = 0 if anchor_id is None else 1
    far = slice(first, first + 12)
    output = eager(model.raw, whole)
    attention = torch.stack(output.attentions, dim=1).numpy()  # [W, layers, H, T, T]
    assert found["attention"] == pytest.approx(attention[..., -1, far], abs=1e-5)
    assert found["observed_attention"] == pytest.approx(attention[..., -8:, far].sum(axis=3), abs=1e-5)
    assert found["accumulated_attention"] == pytest.approx(attention[..., far].sum(axis=3), abs=1e-5)
    states = torch.stack(output.hidden_states, dim=1).numpy()
    assert found["hidden_states"] == pytest.approx(states[:, :, far], rel=1e-5, abs=1e-5)
    for layer, of_layer in enumerate(output.past_key_values.layers):
        assert found["keys"][:, layer] == pytest.approx(of_layer.keys[:, :, far].numpy(), rel=1e-5, abs=1e-5)
        assert found["values"][:, layer] == pytest.approx(of_layer.values[:, :, far].numpy(), rel=1e-5, abs=1e-5)


def test_layers_with_other_heads_than_one_another_give_what_is_one_array() -> None:
    """As in Gemma 4; the rest is refused in words."""
    evaluator = Evaluator(build_transformers("gemma-4"), LOCAL, visibility="contextual")
    tokens = torch.randint(3, VOCAB, (2, FULL), generator=torch.Generator().manual_seed(1))
    for name in OF_PASS:
        if name in ("queries", "keys", "values"):
            with pytest.raises(
                UserError, match=f"^the layers .* {name} of different shapes.*; leave out .* need {name}$"
            ):
                observed(evaluator, tokens, needs=["attention", name])
        else:
            assert observed(evaluator, tokens, needs=[name])[name].shape[0] == 2


def test_a_group_has_the_sum_of_its_tokens() -> None:
    groups = TokenGroups(np.broadcast_to(np.arange(M) // 5, (W, M)))
    found = score_of(
        lambda window: np.arange(M) ** 2, make_scores(build(NORMED).eval(), groups=groups), needs=["token_ids"]
    )
    assert found[0].tolist() == [sum(j**2 for j in range(M) if j // 5 == i) for i in range(4)]
    large = np.where(np.arange(M) % 5 == 0, 2**24, 1).astype(np.float32)  # which added to 1 in fp32 stays as it is
    summed = by_window(lambda window: large, ["token_ids"])(make_scores(build(NORMED).eval(), groups=groups))
    assert summed[0].tolist() == [2**24 + 4] * 3 + [2**24]


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda window: 1 / 0, ": selector mine: ZeroDivisionError: division by zero"),
        (lambda window: window.keys, r": selector mine: keys was not asked for; declare it: Selector\(..., needs="),
        (lambda window: window.target, ": selector mine: target was not asked for"),
        (lambda window: np.zeros(M - 1), r": selector mine returned scores of shape \(15,\)"),
        (lambda window: "high", ": selector mine returned str, not numbers"),
        (lambda window: None, r": selector mine returned scores of shape \(\)"),
        (lambda window: np.full(M, np.nan), ": selector mine returned NaN for every long-range token of a window"),
        (
            lambda window: np.full(M, np.inf),
            r": selector mine returned an infinite score \(a score, and the sum of a group, is at most 3\.4e\+38, the largest "
            r"float32\); NaN says that a token has none$",
        ),
        (lambda window: np.where(np.arange(M) == 3, -np.inf, 0), ": selector mine returned an infinite score "),
        (lambda window: np.where(np.arange(M) == 3, np.finfo(float).min, 0), ": selector mine returned an infinite "),
        (
            lambda window: np.zeros(M, complex),
            ": selector mine returned ndarray, not numbers: TypeError: complex numbers have no order$",
        ),
        (
            lambda window: torch.ones(M, requires_grad=True),
            ": selector mine returned Tensor, not numbers: RuntimeError: Can't call numpy.* requires grad",
        ),
        (
            lambda window: [10**400] * M,
            ": selector mine returned list, not numbers: OverflowError: int too large to convert to float$",
        ),
        (lambda window: sys.exit(3), ": selector mine: SystemExit: 3$"),
    ],
)
def test_what_fails_is_one_line_with_file_and_line(function: Callable[[WindowInput], Any], line: str) -> None:
    where = f"test_window_inputs.py:{function.__code__.co_firstlineno}"
    with pytest.raises(UserError, match=f"^{where}{line}") as error:
        score_of(function, make_scores(build(NORMED).eval()), needs=["token_ids"])
    assert "\n" not in str(error.value)


def test_a_group_whose_sum_float32_cannot_hold_is_one_line() -> None:
    """Each of its tokens can be held: 5 times 1e38 is more than 3.4e38, 3 times is not."""
    large = np.full(M, -1e38)
    groups = TokenGroups(np.broadcast_to(np.arange(M) // 5, (W, M)))
    with pytest.raises(UserError, match=r"^test_window_inputs.py:\d+: selector mine returned an infinite score "):
        score_of(lambda window: large, make_scores(build(NORMED).eval(), groups=groups))
    groups = TokenGroups(np.broadcast_to(np.arange(M) // 3, (W, M)))
    found = score_of(lambda window: large, make_scores(build(NORMED).eval(), groups=groups))
    assert found[0].tolist() == pytest.approx([-3e38] * 5 + [-1e38])


def test_a_group_has_the_sum_of_the_tokens_that_have_a_score() -> None:
    """One without any has none, and neither has a group that a window does not have."""
    scored = np.array([np.nan, 1, 2, np.nan, np.nan, -4, 8, np.nan, 16, 32, 64, np.nan, 0, 0, 0, 0])
    of_window = [[2, 3, 2, 9], [5, 11], [16]]
    groups_WM = np.stack([np.repeat(np.arange(len(sizes)), sizes) for sizes in of_window])
    assert groups_WM.shape == (W, M)
    scores = make_scores(build(NORMED).eval(), groups=TokenGroups(groups_WM))
    found = score_of(lambda window: scored, scores, needs=["token_ids"])
    none = np.nan
    expected = np.array([[1, 2, 4, 112], [3, 116, none, none], [119, none, none, none]])
    assert np.array_equal(found, expected, equal_nan=True)
    left_out = score_of(lambda window: np.where(np.arange(M) < 5, np.nan, scored), scores, needs=["token_ids"])
    expected = np.array([[none, none, 4, 112], [none, 116, none, none], [116, none, none, none]])
    assert np.array_equal(left_out, expected, equal_nan=True)


def test_tokens_without_a_score_are_chosen_last() -> None:
    some = np.where(np.arange(M) == 3, 1.0, np.nan)
    found = score_of(lambda window: some, make_scores(build(NORMED).eval()), needs=["token_ids"])
    assert np.array_equal(found[0], some, equal_nan=True)


def test_frequencies_are_those_of_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens between documents belong to another split."""
    monkeypatch.setattr(window_inputs, "COUNTED_AT_ONCE", 2)  # the first span takes two times
    tokens = np.array([5, 5, 1, 9, 9, 9, 5, 2, 0, 0, 3, 3], dtype=np.uint16)
    begins, ends = np.array([0, 2, 6, 10]), np.array([2, 3, 8, 12])
    store = TokenStore(tokens, begins, ends, np.arange(4), ["a"], np.array([4]), "validation", "unlike any other")
    own = np.concatenate(
        [tokens[begin : end - 1] for begin, end in zip(begins, ends, strict=True)]
    ).tolist()  # the last is EOS
    counts = token_counts(store).tolist()
    assert counts == [own.count(token) for token in range(len(counts))] and len(counts) > max(own)
