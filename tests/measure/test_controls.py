"""The controls: drawn labels, what shares the forward passes, and what optimism and corrected gain say."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from tiny_models import NORMED, build
from tiny_windows import LOCAL as TINY_LOCAL
from tiny_windows import M as TINY_M
from tiny_windows import windows as tiny_windows

from olmo_sparsity.config import Config, InfluenceConfig
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.selection.window_influence import (
    PartInfluence,
    WindowInfluence,
    draw_labels,
    measure_windows,
)
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import log_probs, short_log_probs
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.measure.work import Share
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.tables.merging import check_tables
from olmo_sparsity.tables.reading import read_table

LOCAL, FULL, TRAIN_LEN = 8, 20, 14
KS = (1, 2, 4)


def with_settings(config: Config, train_len: int | None = None, **changes: object) -> Config:
    return dataclasses.replace(
        config,
        influence=dataclasses.replace(config.influence, **changes),  # type: ignore[arg-type]
        context=dataclasses.replace(config.context, train_len=train_len),
    )


@pytest.fixture(scope="module")
def config(tiny_config: Config) -> Config:
    """A few windows, with training rows that are longer than the local context."""
    return with_settings(
        tiny_config,
        TRAIN_LEN,
        num_windows=10,
        windows_per_part=10,
        k=list(KS),
        selectors=["unmask-one", "kl", "gradient", "random", "lasso"],
        lasso_masks=20,
    )


@pytest.fixture(scope="module")
def tables(config: Config, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measure(config, tiny_run, out=tmp_path_factory.mktemp("controls") / "tables")


def rows_of(tables: Path, table: str, **equal: object) -> list[dict[str, Any]]:
    rows = read_table(tables, table).to_pylist()
    return [row for row in rows if all(row[name] == value for name, value in equal.items())]


# --- drawn labels -----------------------------------------------------------------------------------------------------


def test_labels_do_not_depend_on_parts_shares_or_their_number(
    config: Config, tiny_run: Path, tables: Path, tmp_path: Path
) -> None:
    parts = dataclasses.replace(config.influence, windows_per_part=3, batch_tokens=100)
    in_parts = dataclasses.replace(config, influence=parts)
    for index in range(2):
        measure(in_parts, tiny_run, out=tmp_path / "parts", share=Share(index, 2))
    one_draw = dataclasses.replace(config.influence, resampled_draws=1, num_windows=5, selectors=["gradient"])
    fewer = measure(dataclasses.replace(config, influence=one_draw), tiny_run, out=tmp_path / "fewer")
    labels = read_table(tables, "windows")["resampled_target_ids"].to_pylist()
    assert read_table(tmp_path / "parts", "windows")["resampled_target_ids"].to_pylist() == labels
    assert read_table(fewer, "windows")["resampled_target_ids"].to_pylist() == [row[:1] for row in labels[:5]]
    assert len({tuple(row) for row in labels}) > 5
    other_seed = measure(
        dataclasses.replace(config, influence=dataclasses.replace(one_draw, seed=1)), tiny_run, out=tmp_path / "seed"
    )
    assert read_table(other_seed, "windows")["resampled_target_ids"].to_pylist() != [row[:1] for row in labels[:5]]


def test_without_draws_there_is_no_resampled_row_and_nothing_else_changes(
    config: Config, tiny_run: Path, tables: Path, tmp_path: Path
) -> None:
    none = dataclasses.replace(config.influence, resampled_draws=0)
    folder = measure(dataclasses.replace(config, influence=none), tiny_run, out=tmp_path / "none")
    assert check_tables(folder).problems == []
    selections = read_table(tables, "selections")
    of_drawn = pc.field("context").isin(["resampled", "null-resampled"])
    # Two draws of the real context and one of the null one, selectors that see the target and random, windows.
    assert len(selections.filter(of_drawn)) == (2 + 1) * 4 * 10
    assert read_table(folder, "selections").equals(selections.filter(~of_drawn))
    windows, expected = read_table(folder, "windows"), read_table(tables, "windows")
    lists = [name for name in windows.column_names if name.startswith("resampled_")]
    assert all(row == [] for name in lists for row in windows[name].to_pylist())
    assert windows.drop_columns(lists).equals(expected.drop_columns(lists))


def test_a_selector_that_does_not_see_the_target_needs_no_drawn_labels(
    config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    settings = dataclasses.replace(config.influence, selectors=["kl", "nearest"])
    folder = measure(dataclasses.replace(config, influence=settings), tiny_run, out=tmp_path / "blind")
    assert {row["context"] for row in rows_of(folder, "selections")} == {"real", "null"}
    assert check_tables(folder).problems == []


def test_labels_have_the_distribution_that_they_are_drawn_from() -> None:
    p_V = np.array([0.5, 0.25, 0.125, 0.1, 0.025, 0.0])
    with np.errstate(divide="ignore"):
        log_p_WV = torch.from_numpy(np.log(np.tile(p_V, (10_000, 1)))).float()
    labels_WA = draw_labels(log_p_WV, np.arange(10_000), seed=3, num_draws=2)
    for labels_W in labels_WA.T.numpy():
        shares = np.bincount(labels_W, minlength=6) / 10_000
        assert shares == pytest.approx(p_V, abs=4 * np.sqrt(0.25 / 10_000))
        assert shares[5] == 0
    joint = np.bincount(labels_WA[:, 0] * 6 + labels_WA[:, 1], minlength=36).reshape(6, 6) / 10_000
    assert joint == pytest.approx(np.outer(p_V, p_V), abs=4 * np.sqrt(0.25 / 10_000))  # draws are independent


class Counted:
    """A model that counts the rows it runs."""

    def __init__(self, model: OLMoWithPositions):
        self.model, self.rows = model, 0

    def __getattr__(self, name: str) -> object:
        value = getattr(self.model, name)
        if not callable(value):
            return value

        def call(tokens: torch.Tensor, *rest: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
            self.rows += len(tokens)
            return value(tokens, *rest, **named)

        return call


def measured(
    model: object,
    num: int,
    *,
    path: str = "compact",
    targets_W: Any = None,
    **changes: Any,
) -> PartInfluence:
    """Measure windows of random tokens; the null context holds the tokens of the next window."""
    tokens_WT, own_targets_W = tiny_windows(num)
    null_WT = tokens_WT.clone()
    null_WT[:, :TINY_M] = tokens_WT[:, :TINY_M].roll(1, 0)
    targets_W = own_targets_W if targets_W is None else targets_W
    batches = {
        context: WindowBatch(tokens, targets_W, window_ids_W=np.arange(num), context=context, seed=0)
        for context, tokens in (("real", tokens_WT), ("null", null_WT))
    }
    return measure_windows(
        Evaluator(model, TINY_LOCAL, path=path),  # type: ignore[arg-type]
        batches,
        settings=InfluenceConfig(**changes),
        last_n=[TINY_LOCAL],
    )


@pytest.mark.parametrize("name", ["unmask-one", "mask-one", "lasso"])
def test_drawn_labels_share_the_forward_passes_of_the_target(name: str) -> None:
    rows = {}
    for k, num_draws in product((TINY_M - 1, TINY_M), (0, 3)):
        counted = Counted(build(NORMED).eval())
        measured(counted, 2, path="plain", k=[k], selectors=[name], resampled_draws=num_draws)
        rows[k, num_draws] = counted.rows
    # loss(J_k) of each window, context and draw, each set once, and nothing else; that of all tokens is known.
    assert rows[TINY_M - 1, 0] < rows[TINY_M - 1, 3] <= rows[TINY_M - 1, 0] + 2 * (3 + 1)
    assert rows[TINY_M, 3] == rows[TINY_M, 0]


def test_random_and_all_tokens_cost_no_pass_for_drawn_labels() -> None:
    rows = []
    for num_draws in (0, 3):
        counted = Counted(build(NORMED).eval())
        part = measured(counted, 3, path="plain", k=[1, 4], selectors=["random"], resampled_draws=num_draws)
        rows.append(counted.rows)
    assert rows[0] == rows[1]
    assert [set(draw.outcomes) for draw in part.contexts["real"].resampled] == [{"random"}] * 3
    assert [set(draw.outcomes) for draw in part.contexts["null"].resampled] == [{"random"}]


# --- what the controls are for ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def random_model() -> OLMoWithPositions:
    return build(NORMED).eval()


def drawn_targets(model: OLMoWithPositions, num: int, visible: int) -> torch.Tensor:
    """Draw a target for each window from the prediction with the first ``visible`` long-range tokens visible."""
    tokens_WT, _ = tiny_windows(num)
    visible_WS = torch.arange(visible).expand(num, -1)
    log_p_WV = log_probs(Evaluator(model, TINY_LOCAL), tokens_WT, visible_WS=visible_WS)
    return torch.multinomial(log_p_WV.exp(), 1, generator=torch.Generator().manual_seed(5))[:, 0]


def standard_score(values: np.ndarray) -> float:
    return float(values.mean() / (values.std(ddof=1) / np.sqrt(len(values))))


def gains_and_optimism(part: PartInfluence, context: str, selector: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the sparse gain and the optimism, mean over the drawn labels, of one selector under one context; [W, K] each."""
    influence: WindowInfluence = part.contexts[context]
    gain_WK = part.loss_short_W[:, None] - influence.outcomes[selector].loss_sparse_WK
    of_draws = []
    for draw in influence.resampled:
        outcome = draw.outcomes[selector]
        assert outcome.kl_short_to_sparse_WK is not None
        of_draws.append(draw.loss_short_W[:, None] - outcome.loss_sparse_WK + outcome.kl_short_to_sparse_WK)
    return gain_WK, np.mean(of_draws, axis=0)


NUM, SEEING = 500, ["unmask-one", "gradient", "greedy"]


@pytest.fixture(scope="module")
def without_information(random_model: OLMoWithPositions) -> PartInfluence:
    """The targets are drawn from p_{}."""
    targets_W = drawn_targets(random_model, NUM, 0)
    return measured(random_model, NUM, targets_W=targets_W, k=[1, 2], selectors=[*SEEING, "random"])


@pytest.fixture(scope="module")
def with_information(random_model: OLMoWithPositions) -> PartInfluence:
    """The targets are drawn from p_all."""
    targets_W = drawn_targets(random_model, NUM, TINY_M)
    return measured(random_model, NUM, targets_W=targets_W, k=[1, 2], selectors=[*SEEING, "random"])


@pytest.mark.parametrize("context", ["real", "null"])
@pytest.mark.parametrize("name", SEEING)
def test_corrected_gain_is_what_a_choice_is_worth_on_another_target(
    random_model: OLMoWithPositions, without_information: PartInfluence, name: str, context: str
) -> None:
    """Where the truth is p_{}, a choice made for one target is worth -KL(p_{}, p_J) on another: less than nothing."""
    part = without_information
    gain_WK, optimism_WK = gains_and_optimism(part, context, name)
    tokens_WT, _ = tiny_windows(NUM)
    if context == "null":
        tokens_WT[:, :TINY_M] = tokens_WT[:, :TINY_M].roll(1, 0)
    evaluator = Evaluator(random_model, TINY_LOCAL)
    log_p_WV = short_log_probs(evaluator, tokens_WT)
    another_W = torch.multinomial(log_p_WV.exp(), 1, generator=torch.Generator().manual_seed(11))[:, 0]
    for i, k in enumerate((1, 2)):
        chosen_WS = torch.from_numpy(part.contexts[context].outcomes[name].groups_WS[:, :k])
        log_q_WV = log_probs(evaluator, tokens_WT, visible_WS=chosen_WS)
        worth_W = (log_q_WV - log_p_WV).gather(1, another_W[:, None])[:, 0].numpy()
        corrected_W = gain_WK[:, i] - optimism_WK[:, i]
        assert abs(standard_score(corrected_W - worth_W)) < 3.5
        assert standard_score(corrected_W) < (-2 if name != "gradient" else 3.5)
        assert standard_score(gain_WK[:, i]) > (10 if name != "gradient" else -100)


@pytest.mark.parametrize("name", SEEING)
def test_information_raises_the_corrected_gain(
    with_information: PartInfluence, without_information: PartInfluence, name: str
) -> None:
    corrected_WK = np.subtract(*gains_and_optimism(with_information, "real", name))
    other_WK = np.subtract(*gains_and_optimism(without_information, "real", name))
    for i in range(2):
        assert standard_score(corrected_WK[:, i] - other_WK[:, i]) > 5


@pytest.mark.parametrize("has_information", [False, True])
def test_a_rule_that_does_not_see_the_target_has_no_optimism(
    with_information: PartInfluence, without_information: PartInfluence, has_information: bool
) -> None:
    """Of `random` and of all tokens optimism is 0, and the corrected gain the gain; the gain on a drawn label is not 0."""
    part = with_information if has_information else without_information
    for context in ("real", "null"):
        _, optimism_WK = gains_and_optimism(part, context, "random")
        for i in range(2):
            assert abs(standard_score(optimism_WK[:, i])) < 3.5
    draws = part.contexts["real"].resampled
    gains_W = np.mean([draw.loss_short_W - draw.loss_long_W for draw in draws], axis=0)
    assert abs(standard_score(gains_W + part.kl_short_to_long_W)) < 3.5
    assert standard_score(gains_W) < -5  # the gain on the same label, without the cost
