"""The context curve against its definition, also past the trained positions."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import reference
import torch
import transformers_models
from conftest import Messages
from tiny_models import EOS, NORMED, VOCAB, build

from olmo_sparsity.config import Config, ContextConfig, ContextCurveConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.context_curve import losses_by_length, measure_context_curve, visible_lengths
from olmo_sparsity.measure.setup.opened_model import _check_positions, open_model
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import target_losses
from olmo_sparsity.model.causal_model import CausalModel
from olmo_sparsity.model.checkpoint import load_model
from olmo_sparsity.records.measured import Anchor, MeasuredLengths
from olmo_sparsity.statistics.curves import context_curve
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.training.loop import train


def test_lengths_hold_those_of_the_experiment() -> None:
    config = Config(context=ContextConfig(local_len=10, full_len=50, train_len=20))
    lengths = config.measured_lengths
    assert visible_lengths(lengths, None) == [1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 48, 50, 64, 96, 100]
    assert visible_lengths(lengths, 21) == [1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 21]
    with pytest.raises(UserError, match="at least the length of a training row, 20 tokens"):
        visible_lengths(lengths, 19)


def lengths_of(local_len: int, full_len: int, train_len: int | None) -> MeasuredLengths:
    return MeasuredLengths(local_len, full_len, train_len, None, full_len - local_len)


@pytest.mark.parametrize("train_len", [None, 11, 30])
def test_lengths_are_powers_of_two_and_one_and_a_half_times_each(train_len: int | None) -> None:
    """Up to twice the full context, or what is asked for, or a limit, whichever is least."""
    lengths = lengths_of(5, 19, train_len)
    for asked, limit in ((None, None), (40, None), (64, None), (None, 31), (40, 33), (33, 40)):
        longest = min(38 if asked is None else asked, 10**9 if limit is None else limit)
        named = {longest, 5, 19, *([] if train_len is None else [train_len])}
        powers = {n for n in range(1, longest + 1) if f"{n:b}".rstrip("0") in ("1", "11")}
        assert visible_lengths(lengths, asked, limit=limit) == sorted(powers | named)


def test_a_curve_reaches_what_it_is_compared_with() -> None:
    """A training row where one is known, and more than the local tokens where none is."""
    assert visible_lengths(lengths_of(5, 19, 7), 7)[-1] == 7 and visible_lengths(lengths_of(5, 19, 38), None)[-1] == 38
    assert visible_lengths(lengths_of(5, 19, None), 6)[-1] == 6
    assert visible_lengths(lengths_of(5, 19, 4), 5)[-1] == 5  # a row is shorter than the local tokens
    with pytest.raises(
        UserError, match=r"^context_curve.max_visible = 6: must be at least .* a training row, 7 tokens"
    ):
        visible_lengths(lengths_of(5, 19, 7), 6)
    with pytest.raises(
        UserError,
        match=r"^the curve ends at 38 tokens .* a training row has 39, .* context_curve.max_visible=39 or more",
    ):
        visible_lengths(lengths_of(5, 19, 39), None)
    for asked, limit in ((5, None), (None, 5), (9, 4)):
        with pytest.raises(
            UserError, match=f"max_visible = {min(asked or 9, limit or 9)}: must be more than the 5 local tokens"
        ):
            visible_lengths(lengths_of(5, 19, None), asked, limit=limit)


def test_a_learned_embedding_of_positions_is_not_extended(tiny_config: Config, tmp_path: Path) -> None:
    model = dataclasses.replace(tiny_config.model, position_embedding="absolute")
    training = dataclasses.replace(tiny_config.training, steps=1, warmup_steps=1)
    context = dataclasses.replace(tiny_config.context, bos=True)  # which takes a position, too
    config = dataclasses.replace(tiny_config, model=model, training=training, context=context)
    train(config, tmp_path / "run")
    with pytest.raises(
        UserError, match=r"max_visible = 40: .*embedding of 21 positions.*use context_curve.max_visible=20 or less$"
    ):
        measure_context_curve(config, tmp_path / "run")
    short = dataclasses.replace(config, context_curve=ContextCurveConfig(max_visible=20))
    assert measure_context_curve(short, tmp_path / "run").is_dir()


def test_the_longest_row_has_room_for_an_anchor(tiny_config: Config, tiny_run: Path) -> None:
    run = open_model(tiny_config, tiny_run)
    for anchor, most in ((None, 20), (run.bos, 19)):
        fixed = dataclasses.replace(run, anchor=anchor, max_position=20, can_be_longer=False)
        assert fixed.most_visible == most
        assert dataclasses.replace(fixed, can_be_longer=True).most_visible is None


@pytest.mark.parametrize("anchor", [None, Anchor(7, "<s>")])
def test_windows_and_rows_go_up_to_the_last_position(anchor: Anchor | None) -> None:
    most, words = (20, "") if anchor is None else (19, " with the anchor '<s>' in front")
    _check_positions(most, anchor, max_position=20)
    _check_positions(1, anchor, max_position=20, longest=most)
    for full_len, longest, said in (
        (
            most + 1,
            None,
            f"full_len = {most + 1}{words}: .* 20 positions; .* with --full-len {most} or less; and more$",
        ),
        (
            1,
            most + 1,
            f"max_visible = {most + 1}{words}: .* 20 positions; use context_curve.max_visible={most} or less; and more$",
        ),
    ):
        with pytest.raises(UserError, match=said):
            _check_positions(full_len, anchor, max_position=20, longest=longest, remedy="; and more")


def test_a_model_without_positions_has_a_curve_of_any_length(tiny_config: Config, tmp_path: Path) -> None:
    model = dataclasses.replace(tiny_config.model, position_embedding="none")
    training = dataclasses.replace(tiny_config.training, steps=1, warmup_steps=1)
    pose = dataclasses.replace(tiny_config.pose, method="pose", num_chunks=1)
    config = dataclasses.replace(tiny_config, model=model, training=training, pose=pose)
    train(config, tmp_path / "run")
    folder = measure_context_curve(config, tmp_path / "run")
    assert read_json(folder / "manifest.json")["num_visible_tokens"][-1] == 40 > config.num_positions


def test_losses_are_the_definition_at_any_shift(tiny_run: Path) -> None:
    """The reference puts the visible tokens at the end of a longer window: rotary attention is relative."""
    latest = tiny_run / "checkpoints" / "latest"
    model = load_model(latest, torch.device("cpu"), max_position=64)
    rows = torch.from_numpy(np.random.default_rng(0).integers(1, 300, (3, 41)))
    lengths = [1, 7, 20, 40]
    losses = losses_by_length(Evaluator(model, 1, batch_tokens=50), rows, lengths=lengths)
    for w, (i, length) in ((w, pair) for w in range(3) for pair in enumerate(lengths)):
        tokens = rows[w, -1 - length : -1].tolist()
        positions = list(range(64 - length, 64))
        expected = reference.target_loss(model, tokens, positions, set(range(length)), int(rows[w, -1]))
        assert losses[w, i] == pytest.approx(expected, abs=2e-5)
    stock = load_model(latest, torch.device("cpu"))
    plain = Evaluator(stock, 1, path="plain", batch_tokens=50)
    assert losses_by_length(plain, rows, lengths=[20])[:, 0] == pytest.approx(losses[:, 2], abs=1e-6)


@pytest.mark.parametrize(
    ("model", "anchor_id", "same"),
    [
        (build(NORMED, positions=32), None, True),
        (build(NORMED, positions=32), EOS, False),
        (transformers_models.build("llama"), None, True),
        (transformers_models.build("gpt-2"), None, False),
    ],
    ids=["rotary", "rotary, anchor", "rotary, pretrained", "learned positions"],
)
def test_where_the_local_tokens_are_visible_the_loss_is_l_short(
    model: CausalModel, anchor_id: int | None, same: bool
) -> None:
    """Without an anchor and with rotary positions; else the tokens, at the beginning of a row, have another loss there."""
    rows_WT = torch.from_numpy(np.random.default_rng(0).integers(1, VOCAB, (6, 21)))
    evaluator = Evaluator(model, 8, path="masked", anchor_id=anchor_id)
    nothing_WNS = torch.empty(6, 1, 0, dtype=torch.int64)
    with torch.inference_mode():
        short_WN, _ = target_losses(evaluator, rows_WT[:, :-1], targets_W=rows_WT[:, -1], visible_WNS=nothing_WNS)
        curve_WN = losses_by_length(evaluator, rows_WT, lengths=[8])
    difference = np.abs(curve_WN - short_WN.numpy()).max()
    assert difference < 1e-5 if same else difference > 1e-3


def test_a_curve_says_that_hidden_tokens_are_seen_by_no_one(
    tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    """They are not run, whatever is measured elsewhere: nothing else was measured than without the key."""
    few = dataclasses.replace(tiny_config.influence, num_windows=5)
    measured = []
    for settings in (few, dataclasses.replace(few, visibility="contextual")):
        config = dataclasses.replace(tiny_config, influence=settings)
        measured.append(measure_context_curve(config, tiny_run, out=tmp_path / "curve"))  # one folder: it is the same
    setup = context_curve(measured[1]).setup
    assert setup.visibility == "hidden"


def test_the_curve_end_to_end(messages: Messages, tiny_config: Config, tiny_run: Path, tmp_path: Path) -> None:
    one_each = dataclasses.replace(tiny_config.influence, max_windows_per_document=1)
    config = dataclasses.replace(tiny_config, influence=one_each)
    folder = measure_context_curve(config, tiny_run, out=tmp_path / "curve")
    table = read_table(folder, "curve").to_pandas()
    lengths = [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 40]
    assert [table["num_visible_tokens"][0].tolist()] == [lengths]
    losses, weights = np.stack(table["loss_nats"].to_list()), table["weight"].to_numpy()
    assert weights.min() >= 1
    assert weights.max() > 1  # documents are full, so a plain mean is another number
    numbers = context_curve(folder)
    assert [point.num_visible_tokens for point in numbers.points] == lengths
    for i, point in enumerate(numbers.points):
        assert point.loss_nats.mean == pytest.approx(np.average(losses[:, i], weights=weights), abs=1e-6)
        assert point.change_nats.mean == pytest.approx(
            np.average(losses[:, i] - losses[:, 5], weights=weights), abs=1e-6
        )
    assert numbers.points[5].num_visible_tokens == numbers.lengths.train_len
    assert numbers.points[5].change_nats == Estimate(0.0, 0.0, 0.0, standard_error=0.0)
    messages.clear()
    measure_context_curve(config, tiny_run, out=tmp_path / "curve")
    assert "already measured" in messages[-1]
    for changed in ({"seed": 1}, {"max_windows_per_document": 2}):
        other = dataclasses.replace(config, influence=dataclasses.replace(one_each, **changed))
        with pytest.raises(UserError, match="other settings"):
            measure_context_curve(other, tiny_run, out=tmp_path / "curve")
    for given, told in ((25, 40), (None, None)):  # the longest row needs 40
        asked = dataclasses.replace(config, influence=dataclasses.replace(one_each, min_preceding=given))
        assert read_json(measure_context_curve(asked, tiny_run, out=tmp_path / f"at-least-{given}") / "manifest.json")[
            "min_preceding"
        ] == told  # fmt: skip
    far = dataclasses.replace(tiny_config, context_curve=ContextCurveConfig(max_visible=4000))
    with pytest.raises(UserError, match="too small"):
        measure_context_curve(far, tiny_run, out=tmp_path / "far")
