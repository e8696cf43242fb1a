"""Which first token has the lower losses."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pytest
import torch
from transformers_models import BOS, VOCAB, build

from olmo_sparsity.measure.setup.first_token import compare_first_tokens, lower_choice, standard_error
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import target_losses
from olmo_sparsity.records.measured import Anchor, AnchorCheck

LOCAL, FULL = 10, 24


def windows(num: int = 6) -> torch.Tensor:
    return torch.randint(3, VOCAB, (num, FULL + 1), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
@pytest.mark.parametrize("batch_tokens", [1, 60, 4096])
def test_both_choices_are_compared(anchor_id: Optional[int], batch_tokens: int) -> None:
    """Against the masked path, and rows with a BOS that are written out."""
    model = build("olmo-2")
    check = compare_first_tokens(
        model, windows(), np.arange(6), bos=Anchor(BOS, "<s>"), chosen=anchor_id, local_len=LOCAL, batch_tokens=batch_tokens,
    )  # fmt: skip
    assert (check.text, check.chosen) == ("<s>", "none" if anchor_id is None else "bos")
    number = check.num_windows
    assert number == 6
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
    model, (tokens, targets) = build("llama"), windows().tensor_split((FULL,), dim=1)
    row = torch.cat([torch.full((6, 1), BOS), tokens[:, FULL - LOCAL :]], dim=1)
    ids = torch.tensor([0, *range(FULL - LOCAL + 1, FULL + 1)]).expand(6, -1)
    expected = float(torch.nn.functional.cross_entropy(model.last_logits(row, ids), targets[:, 0]))
    check = compare_first_tokens(
        model, windows(), np.arange(6), bos=Anchor(BOS, "<s>"), chosen=None, local_len=LOCAL,
    )  # fmt: skip
    assert check.loss_short_nats["bos"] == pytest.approx(expected, abs=1e-5)


def test_windows_of_one_document_are_no_evidence_of_their_own() -> None:
    """Copies of a document's windows leave the error as it is; of one document it is not known."""
    values = np.random.default_rng(0).normal(size=20)
    once = standard_error(values, np.arange(20))
    assert once == pytest.approx(values.std(ddof=1) / math.sqrt(20))
    assert standard_error(np.tile(values, 4), np.tile(np.arange(20), 4)) == pytest.approx(once)
    assert standard_error(values, np.zeros(20)) is None
    assert lower_choice(-1.0, None) is None


def test_a_difference_of_more_than_three_standard_errors_tells_which_loss_is_lower() -> None:
    for times, expected in ((3.01, "none"), (-3.01, "bos"), (2.99, None), (-2.99, None)):
        assert lower_choice(times * 0.3, 0.3) == expected
    assert lower_choice(-0.1, 0.0) == "bos" and lower_choice(0.0, 0.0) is None


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


def compared(model: Any, chosen: Optional[int], *, documents: Optional[np.ndarray] = None) -> AnchorCheck:
    tokens_WT = windows(64)
    tokens_WT[:, -1] = 0
    document_W = np.arange(64) if documents is None else documents
    return compare_first_tokens(model, tokens_WT, document_W, bos=Anchor(BOS, "<s>"), chosen=chosen, local_len=LOCAL)


def test_which_loss_is_lower() -> None:
    """A missing BOS that costs the local tokens alone passes for a long gain; the loss with all tokens says nothing of it."""
    for planted, short, long in (
        (Planted(1.0, 1.0), "bos", "bos"), (Planted(0.0, 0.0), None, None), (Planted(1.0, 0.0), "bos", None),
        (Planted(1.0, -1.0), "bos", "none"),
    ):  # fmt: skip
        for chosen in (None, BOS):
            check = compared(planted, chosen)
            assert (check.num_windows, check.lower_with) == (64, {"short": short, "long": long})


def test_windows_of_few_documents_tell_less() -> None:
    assert compared(Planted(0.4, 0.4), None).lower_with == {"short": "bos", "long": "bos"}
    of_one = compared(Planted(0.4, 0.4), None, documents=np.zeros(64))
    assert of_one.lower_with == {"short": None, "long": None} and of_one.standard_error_nats is None
