"""The controls that choose nothing: blends of the short and the full prediction, and the latest tokens alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import NORMED, build
from tiny_windows import FULL, LOCAL, windows

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.selection.window_influence import measure_windows
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import damped
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.records.measured import MeasuredLengths


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])  # nearly equal predictions, and nearly certain ones
def test_blends_are_those_of_the_definition(scale: float) -> None:
    generator = torch.Generator().manual_seed(3)
    log_p_long, log_p_short = ((scale * torch.randn(5, 40, generator=generator)).log_softmax(dim=-1) for _ in range(2))
    targets_W = torch.tensor([0, 7, 39, 12, 7])
    losses_WB, kl_WB = damped(log_p_long, log_p_short, targets_W)
    assert losses_WB.shape == kl_WB.shape == (5, 9)
    assert losses_WB.dtype == kl_WB.dtype == torch.float32
    for window, target in enumerate(targets_W.tolist()):
        long, short = (np.exp(log_p[window].double().numpy()) for log_p in (log_p_long, log_p_short))
        for tenth in range(1, 10):
            product = short ** (1 - tenth / 10) * long ** (tenth / 10)
            blend = product / product.sum()
            loss, kl = -np.log(blend[target]), (long * np.log(long / blend)).sum()
            assert float(losses_WB[window, tenth - 1]) == pytest.approx(loss, rel=1e-5, abs=1e-5)
            assert float(kl_WB[window, tenth - 1]) == pytest.approx(kl, rel=1e-5, abs=1e-5)


def test_a_blend_of_one_prediction_with_itself_is_that_prediction() -> None:
    log_p_WV = torch.randn(3, 11, generator=torch.Generator().manual_seed(1)).log_softmax(dim=-1)
    losses_WB, kl_WB = damped(log_p_WV, log_p_WV, torch.tensor([4, 0, 10]))
    expected = -log_p_WV[range(3), [4, 0, 10]]
    torch.testing.assert_close(losses_WB, expected[:, None].expand(-1, 9), atol=1e-6, rtol=0)
    torch.testing.assert_close(kl_WB, torch.zeros(3, 9), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("local_len", "full_len", "train_len", "expected"),
    [
        (64, 128, 64, [8, 12, 16, 24, 32, 48, 64, 96, 128]),
        (64, 128, None, [8, 12, 16, 24, 32, 48, 64, 96, 128]),
        (5, 100, 70, [5, 8, 12, 16, 24, 32, 48, 64, 70, 96, 100]),  # 100 / 16 = 6.25
        (60, 128, 128, [8, 12, 16, 24, 32, 48, 60, 64, 96, 128]),  # a ceiling
        (60, 128, 2048, [8, 12, 16, 24, 32, 48, 60, 64, 96, 128]),  # a row that no window fills
        (1, 2, 1, [1, 2]),
        (4, 16, 8, [1, 2, 3, 4, 6, 8, 12, 16]),
    ],
)
def test_the_numbers_of_latest_tokens(
    local_len: int, full_len: int, train_len: int | None, expected: list[int]
) -> None:
    lengths = MeasuredLengths(local_len, full_len, train_len, None, full_len - local_len)
    assert lengths.last_n == expected


@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
@pytest.mark.parametrize("anchor_id", [None, 1])
def test_the_loss_of_the_latest_tokens_is_that_of_the_model_on_them_alone(
    visibility: str, anchor_id: int | None
) -> None:
    """Every token before them is gone, and their positions count from 0."""
    model, (tokens_WT, targets_W) = build(NORMED).eval(), windows(4)
    batches = {
        context: WindowBatch(tokens_WT, targets_W, window_ids_W=np.arange(4), context=context, seed=0)
        for context in ("real", "null")
    }
    settings = InfluenceConfig(selectors=["random"], k=[1], resampled_draws=0)
    evaluator = Evaluator(model, LOCAL, visibility=visibility, anchor_id=anchor_id)  # type: ignore[arg-type]
    last_n = [1, LOCAL - 2, LOCAL, LOCAL + 3, FULL]
    part = measure_windows(evaluator, batches, settings=settings, last_n=last_n)
    assert [*part.loss_last_W] == last_n
    assert np.array_equal(part.loss_last_W[FULL], part.contexts["real"].loss_long_W)
    for n, loss_W in part.loss_last_W.items():
        rows = tokens_WT[:, -n:]
        if anchor_id is not None:
            rows = torch.cat([torch.full((4, 1), anchor_id), rows], dim=1)
        with torch.no_grad():
            logits_WV = model(rows, torch.arange(rows.shape[1]).expand(4, -1))[:, -1, : model.vocab_size]
        expected = torch.nn.functional.cross_entropy(logits_WV, targets_W, reduction="none")
        assert loss_W == pytest.approx(expected.numpy(), abs=1e-5)
