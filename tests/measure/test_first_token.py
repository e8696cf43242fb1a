"""Which first token has the lower losses, and on how many windows that is decided."""

from __future__ import annotations

import io
import math
import statistics
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pytest
import torch
from scipy.stats import t as student_t
from tqdm import tqdm
from transformers_models import BOS, VOCAB, build

from olmo_sparsity.measure.setup import first_token
from olmo_sparsity.measure.setup.first_token import (
    FALSE_DECISIONS,
    compare_first_tokens,
    looks_at,
    lower_choice,
    standard_error,
)
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import target_losses
from olmo_sparsity.records.measured import Anchor
from olmo_sparsity.statistics.single.model_setup import AnchorCheck

LOCAL, FULL = 10, 24


def windows(num: int = 6) -> torch.Tensor:
    return torch.randint(3, VOCAB, (num, FULL + 1), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
@pytest.mark.parametrize("batch_tokens", [1, 60, 4096])
@pytest.mark.parametrize("first_look", [2, 64])
def test_both_choices_are_compared(anchor_id: Optional[int], batch_tokens: int, first_look: int) -> None:
    """Against the masked path, and rows with a BOS that are written out."""
    model = build("olmo-2")
    check = compare_first_tokens(
        model, windows(), np.arange(6), bos=Anchor(BOS, "<s>"), chosen=anchor_id, local_len=LOCAL, first_look=first_look,
        name="tiny", batch_tokens=batch_tokens,
    )  # fmt: skip
    assert (check.text, check.chosen) == ("<s>", "none" if anchor_id is None else "bos")
    number = check.num_windows
    assert number == 6 or (first_look == 2 and check.is_settled)
    tokens, targets = windows()[:number, :-1], windows()[:number, -1]
    with torch.no_grad():
        for sizes, found, error in (
            (0, check.loss_short_nats, check.standard_error_short_nats),
            (FULL - LOCAL, check.loss_long_nats, check.standard_error_nats),
        ):
            visible = torch.arange(sizes).expand(number, 1, -1)
            expected, _ = target_losses(
                Evaluator(model, LOCAL, path="masked"), tokens, targets_W=targets, visible_WNS=visible
            )
            assert found["none"] == pytest.approx(float(expected.mean()), abs=1e-5)
            kept = torch.cat([torch.tensor([BOS]).expand(number, 1), tokens[:, FULL - LOCAL - sizes :]], dim=1)
            positions = torch.tensor([0, *range(FULL - LOCAL - sizes + 1, FULL + 1)]).expand_as(kept)
            losses_W = torch.nn.functional.cross_entropy(model.last_logits(kept, positions), targets, reduction="none")
            assert found["bos"] == pytest.approx(float(losses_W.mean()), abs=1e-5)
            deviation = statistics.stdev((losses_W - expected[:, 0]).tolist())
            assert error == pytest.approx(deviation / number**0.5, abs=1e-5)


@torch.no_grad()
def test_the_local_tokens_alone_have_the_positions_at_which_they_are_measured() -> None:
    """Compact ones begin directly behind the BOS."""
    model, (tokens, targets) = build("llama"), windows().tensor_split((FULL,), dim=1)
    row = torch.cat([torch.full((6, 1), BOS), tokens[:, FULL - LOCAL :]], dim=1)
    expected = []
    for begin, positions in ((FULL - LOCAL, "kept"), (0, "compact")):
        ids = torch.tensor([0, *range(begin + 1, begin + LOCAL + 1)]).expand(6, -1)
        expected.append(float(torch.nn.functional.cross_entropy(model.last_logits(row, ids), targets[:, 0])))
        check = compare_first_tokens(
            model, windows(), np.arange(6), bos=Anchor(BOS, "<s>"), chosen=None, local_len=LOCAL, first_look=6, name="tiny",
            positions=positions,  # type: ignore[arg-type]
        )  # fmt: skip
        assert check.loss_short_nats["bos"] == pytest.approx(expected[-1], abs=1e-5)
    assert abs(expected[0] - expected[1]) > 1e-3


@pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
def test_the_bar_of_each_look_ends_at_its_total(anchor_id: Optional[int], monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[tqdm[Any]] = []

    def shown(desc: str, unit: str, *, total: int, **options: Any) -> tqdm[Any]:
        bars.append(tqdm(desc=desc, total=total, file=io.StringIO(), **options))
        return bars[-1]

    monkeypatch.setattr(first_token, "progress_bar", shown)
    check = compare_first_tokens(
        build("llama"), windows(), np.arange(6), bos=Anchor(BOS, "<s>"), chosen=anchor_id, local_len=LOCAL, first_look=2,
        name="tiny", batch_tokens=60,
    )  # fmt: skip
    tokens_a_window = (
        2 * (LOCAL + FULL) + 2
    )  # with all and with the local tokens; a BOS before each in one of the passes
    looks = {2: [2], 4: [2, 2], 6: [2, 2, 2]}[check.num_windows]
    assert [(bar.n, bar.total) for bar in bars] == [(num * tokens_a_window, num * tokens_a_window) for num in looks]
    assert all(bar.disable for bar in bars)  # closed


def test_windows_of_one_document_are_compared_once() -> None:
    """No number of them decides."""
    check = compare_first_tokens(
        build("llama"), windows(), np.full(6, 7), bos=Anchor(BOS, "<s>"), chosen=None, local_len=LOCAL, first_look=2,
        name="tiny",
    )  # fmt: skip
    assert (check.num_windows, check.standard_error_nats, check.lower_with) == (2, None, {"short": None, "long": None})


def test_windows_of_one_document_are_no_evidence_of_their_own() -> None:
    """Copies of a document's windows leave the error as it is; of one document it is not known."""
    values = np.random.default_rng(0).normal(size=20)
    once = standard_error(values, np.arange(20))
    assert once == pytest.approx(values.std(ddof=1) / math.sqrt(20))
    assert standard_error(np.tile(values, 4), np.tile(np.arange(20), 4)) == pytest.approx(once)
    assert standard_error(values, np.zeros(20)) is None
    assert lower_choice(-1.0, None, num_documents=1, level=0.05) is None


def test_what_a_t_test_tells() -> None:
    level, documents = 0.01, 12
    limit = student_t.ppf(1 - level / 2, documents - 1)
    for times, expected in ((1.01, "none"), (-1.01, "bos"), (0.99, None), (-0.99, None)):
        assert lower_choice(times * limit * 0.3, 0.3, num_documents=documents, level=level) == expected
    assert lower_choice(-0.1, 0.0, num_documents=2, level=level) == "bos"
    assert lower_choice(0.0, 0.0, num_documents=2, level=level) is None


@pytest.mark.parametrize(
    ("num_windows", "first_look", "expected"),
    [(2048, 64, [64, 128, 256, 512, 1024, 2048]), (300, 64, [64, 128, 256, 300]), (60, 64, [60]), (1, 8, [1])],
)
def test_each_look_has_twice_the_windows(num_windows: int, first_look: int, expected: list[int]) -> None:
    assert looks_at(num_windows, first_look) == expected


@dataclass(frozen=True)
class Planted:
    """A model of two tokens, whose logit of token 0 is noise of the row, and higher by so much behind a BOS."""

    helps_short: float
    helps_long: float
    noise: float = 1.0

    def last_logits(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, **_: Any) -> torch.Tensor:
        has_bos = tokens_BT[:, 0] == BOS
        helps = self.helps_short if tokens_BT.shape[1] - int(has_bos[0]) == LOCAL else self.helps_long
        # Tokens are uniform from 3 to VOCAB - 1. Other tokens of the same window are independent.
        of_row_B = torch.where(has_bos, tokens_BT[:, -1], tokens_BT[:, -2]).double() / (VOCAB - 3) - 0.5
        return torch.stack([self.noise * of_row_B + helps * has_bos, torch.zeros(len(tokens_BT))], dim=1)


def compared(
    model: Any, chosen: Optional[int], *, num_windows: int = 2048, documents: Optional[np.ndarray] = None
) -> AnchorCheck:
    tokens_WT = windows(num_windows)
    tokens_WT[:, -1] = 0
    document_W = np.arange(num_windows) if documents is None else documents
    return compare_first_tokens(
        model, tokens_WT, document_W, bos=Anchor(BOS, "<s>"), chosen=chosen, local_len=LOCAL, first_look=64, name="tiny"
    )


def test_more_windows_are_compared_until_they_decide(caplog: pytest.LogCaptureFixture) -> None:
    """A large effect at the first look, a small one later; the windows are the first ones, in order."""
    caplog.set_level("INFO")
    large, small = compared(Planted(1.0, 1.0), None), compared(Planted(0.12, 0.12), None)
    assert large.num_windows == 64 and large.lower_with == {"short": "bos", "long": "bos"}
    assert 64 < small.num_windows < 2048 and "bos" in small.lower_with.values() and small.is_settled
    again = compared(Planted(0.12, 0.12), None, num_windows=small.num_windows)
    assert (again.loss_short_nats, again.loss_long_nats) == (small.loss_short_nats, small.loss_long_nats)
    caplog.clear()
    assert compared(Planted(0.0, 0.0), None, num_windows=300).num_windows == 300
    assert [record.getMessage() for record in caplog.records] == [
        f"tiny: {now} windows do not decide whether its losses are lower with <s> in front or without; comparing on {then}"
        for now, then in ((64, 128), (128, 256), (256, 300))
    ]


def test_without_a_difference_nothing_is_decided_and_all_windows_are_compared() -> None:
    check = compared(Planted(0.0, 0.0), None)
    assert (check.num_windows, check.lower_with) == (2048, {"short": None, "long": None})
    assert check.is_undecided and not check.is_settled


def test_one_mean_that_is_lower_with_the_other_choice_settles_it_and_both_with_the_chosen_one() -> None:
    """A missing BOS that costs the local tokens alone passes for a long gain; the loss with all tokens says nothing of it."""
    missing = compared(Planted(1.0, 0.0), None)
    assert (missing.num_windows, missing.is_settled, missing.is_undecided) == (64, True, False)
    assert missing.lower_with["short"] == missing.other == "bos" and missing.lower_with["long"] is None
    present = compared(Planted(1.0, 0.0), BOS)  # it could still harm where all tokens are visible
    assert (present.num_windows, present.is_settled, present.is_undecided) == (2048, False, False)
    harmful = compared(Planted(1.0, -0.12), BOS)
    assert harmful.num_windows > 64 and harmful.lower_with == {"short": "bos", "long": "none"} and harmful.is_settled


def test_windows_of_few_documents_decide_less() -> None:
    of_many = compared(Planted(0.4, 0.4), None, num_windows=64)
    of_two = compared(Planted(0.4, 0.4), None, num_windows=64, documents=np.arange(64) % 2)
    assert of_many.is_settled and of_two.is_undecided
    later = compared(
        Planted(0.4, 0.4),
        None,
        documents=np.maximum(np.arange(2048), 63) - np.arange(2048) % 2 * (np.arange(2048) < 64),
    )
    assert later.num_windows == 128 and of_many.num_windows == 64  # at a look the documents up to it count


@pytest.mark.parametrize("heavy_tails", [False, True])
@pytest.mark.parametrize("alike", [False, True], ids=["independent means", "means nearly the same"])
def test_looking_again_decides_seldom_where_there_is_no_difference(heavy_tails: bool, alike: bool) -> None:
    """In a share of 1,000 comparisons, over all looks; with the whole level at each look, in far more."""
    rng, looks = np.random.default_rng(0), looks_at(256, 16)
    shared, number = FALSE_DECISIONS / (2 * len(looks)), 1000
    decided = {shared: 0, FALSE_DECISIONS: 0}
    for _ in range(number):
        shape = (2, looks[-1])
        values = rng.standard_t(3, size=shape) if heavy_tails else rng.normal(size=shape)
        if alike:
            values[1] = 0.9 * values[0] + 0.1 * values[1]
        tests = [(look, float(of[:look].mean()), of[:look].std(ddof=1) / look**0.5) for look in looks for of in values]
        for level in decided:
            found = (lower_choice(mean, error, num_documents=look, level=level) for look, mean, error in tests)
            decided[level] += any(choice is not None for choice in found)
    assert decided[shared] <= FALSE_DECISIONS * number < 2 * FALSE_DECISIONS * number < decided[FALSE_DECISIONS], (
        decided
    )
