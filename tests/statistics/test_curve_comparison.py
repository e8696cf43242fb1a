"""The four-way run: gains beyond the training row, shares of the ceiling's gain, and what is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from made_up_runs import (
    FOUR_WAY,
    FULL,
    ROW,
    VISIBLE,
    four_way_runs,
    made_up_curve,
    made_up_losses,
    made_up_run,
    pretrained_curve,
)

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.curves import context_curve
from olmo_sparsity.statistics.intervals.bootstrap import estimates
from olmo_sparsity.statistics.intervals.seeds import estimates_over_seeds
from olmo_sparsity.statistics.several.curve_comparison import ComparedCurves, compare_curves
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.reading import newest_finished
from olmo_sparsity.view.as_json import compared_curves_json
from olmo_sparsity.wording.curves import gain_beyond_lines, model_labels

_, CEILING_POSE, _ = FOUR_WAY["ceiling"]


def losses_of(run: Path) -> tuple[np.ndarray, list[str]]:
    """Return the losses [W, N] and the documents that a made-up curve was written from, read back by pyarrow alone."""
    import pyarrow.parquet as pq

    tables = [pq.read_table(path) for path in sorted((run / "context-curve" / "made-up" / "curve").glob("*.parquet"))]
    losses = [row for table in tables for row in table["loss_nats"].to_pylist()]
    return np.array(losses), [doc_id for table in tables for doc_id in table["doc_id"].to_pylist()]


def gain_sums(run: Path) -> dict[str, np.ndarray]:
    """Return weights and weighted gains from 8 to 24 visible tokens, summed over each document by a loop."""
    losses_WN, doc_ids = losses_of(run)
    gain_W = losses_WN[:, VISIBLE.index(ROW)] - losses_WN[:, VISIBLE.index(FULL)]
    documents = list(dict.fromkeys(doc_ids))
    sums = {"weights": np.zeros(len(documents)), "gain": np.zeros(len(documents))}
    for i, (doc_id, gain) in enumerate(zip(doc_ids, gain_W, strict=True)):
        weight = (1, 2, 3)[i % 3]
        sums["weights"][documents.index(doc_id)] += weight
        sums["gain"][documents.index(doc_id)] += weight * gain
    return sums


def all_runs(folder: Path, seeds: tuple[int, ...] = (0,)) -> list[Path]:
    return [run for runs in four_way_runs(folder, seeds).values() for run in runs]


def curve_run(folder: Path, losses_WN: np.ndarray, doc_ids: list[str], **run: Any) -> Path:
    """Write a run with a curve; a ceiling if its ``row_len`` is ``FULL``."""
    if run.get("row_len") == FULL:
        run["pose"] = CEILING_POSE
    made_up_run(folder, **run)
    of_curve = {key: value for key, value in run.items() if key in ("pose", "row_len")}
    made_up_curve(folder, losses_WN, doc_ids=doc_ids, **of_curve)
    return folder


def pair(folder: Path, gain_of_ceiling: float, *, noise: float) -> ComparedCurves:
    losses_WN, doc_ids = made_up_losses(gain_of_ceiling, noise=noise)
    half_WN, _ = made_up_losses(gain_of_ceiling / 2, noise=noise, seed=1)
    runs = [curve_run(folder / "half", half_WN, doc_ids), curve_run(folder / "top", losses_WN, doc_ids, row_len=FULL)]
    return compare_curves(runs)


def test_gains_and_shares_are_those_of_the_losses(tmp_path: Path) -> None:
    runs = all_runs(tmp_path)
    compared = compare_curves(runs)
    assert (compared.row_len, compared.full_len) == (ROW, FULL)
    assert [model.is_ceiling for model in compared.models] == [False, False, False, True]
    assert compared.ceiling is compared.models[3]
    sums = [gain_sums(run) for run in runs]
    keyed = {(i, key): value for i, of_run in enumerate(sums) for key, value in of_run.items()}

    def by_hand(totals: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        gains = {i: totals[i, "gain"] / totals[i, "weights"] for i in range(4)}
        return {**gains, **{f"share {i}": gains[i] / gains[3] for i in range(3)}}

    expected = estimates(keyed, by_hand)
    for i, model in enumerate(compared.models):
        for found, key in ((model.gain_beyond_nats, i), (model.share_of_ceiling, f"share {i}")):
            wanted = expected.get(key)
            if wanted is None:
                assert found is None and i == 3
                continue
            assert found is not None and found.mean == pytest.approx(wanted.mean, abs=1e-6)
            assert found.bounds == pytest.approx(wanted.bounds, abs=1e-6)
    assert [model.gain_beyond_nats and model.gain_beyond_nats.mean for model in compared.models] == pytest.approx(
        [gain for gain, _, _ in FOUR_WAY.values()], abs=0.006
    )


def test_points_are_those_of_each_run_alone(tmp_path: Path) -> None:
    """Changes are counted from the training row of the others, also those of the ceiling."""
    runs = all_runs(tmp_path)
    for model, run in zip(compare_curves(runs).models, runs, strict=True):
        alone = context_curve(run / "context-curve" / "made-up")
        assert [point.loss_nats for point in model.curve.points] == [point.loss_nats for point in alone.points]
        at_row = alone.points[VISIBLE.index(ROW)].loss_nats.mean
        for point, of_alone in zip(model.curve.points, alone.points, strict=True):
            assert point.change_nats.mean == pytest.approx(of_alone.loss_nats.mean - at_row, abs=1e-9)
        if not model.is_ceiling:
            assert model.curve == alone


def test_shares_are_paired(tmp_path: Path) -> None:
    """A model that gains half of the ceiling's gain in every window has a share without any uncertainty."""
    losses_WN, doc_ids = made_up_losses(0.05, noise=0.3)
    half_WN = losses_WN.copy()
    beyond = slice(VISIBLE.index(ROW), None)
    half_WN[:, beyond] = (
        losses_WN[:, [VISIBLE.index(ROW)]] + (losses_WN[:, beyond] - losses_WN[:, [VISIBLE.index(ROW)]]) / 2
    )
    runs = [
        curve_run(tmp_path / "half", half_WN, doc_ids),
        curve_run(tmp_path / "top", losses_WN, doc_ids, row_len=FULL),
    ]
    half, top = compare_curves(runs).models
    assert half.share_of_ceiling is not None and half.gain_beyond_nats is not None and top.gain_beyond_nats is not None
    assert (half.share_of_ceiling.low, half.share_of_ceiling.high) == pytest.approx((0.5, 0.5), abs=1e-3)
    assert half.gain_beyond_nats.bounds is not None and np.ptp(half.gain_beyond_nats.bounds) > 0.01


def test_several_seeds_are_one_model(tmp_path: Path) -> None:
    runs = all_runs(tmp_path, (0, 1, 2))
    compared = compare_curves(runs)
    assert [[seed.seed for seed in model.seeds] for model in compared.models] == [[0, 1, 2]] * 4
    sums = [[gain_sums(run) for run in runs[3 * i : 3 * i + 3]] for i in range(4)]
    expected = estimates_over_seeds(
        sums,
        lambda of: {
            "gain": of[0]["gain"] / of[0]["weights"],
            "share": of[0]["gain"] / of[3]["gain"],  # the same windows: their numbers cancel
        },
    )
    pose = compared.models[0]
    for found, key in ((pose.gain_beyond_nats, "gain"), (pose.share_of_ceiling, "share")):
        wanted = expected[key]
        assert found is not None and wanted is not None
        assert (found.mean, *(found.bounds or ())) == pytest.approx((wanted.mean, *(wanted.bounds or ())), abs=1e-6)
    for seed, of_run in zip(pose.seeds, sums[0], strict=True):
        assert seed.gain_beyond_nats == pytest.approx(of_run["gain"].sum() / of_run["weights"].sum(), abs=1e-6)
    means = np.mean([seed.losses_nats for seed in pose.seeds], axis=0)
    assert [point.loss_nats.mean for point in pose.curve.points] == pytest.approx(list(means))


def test_the_words_hold_the_numbers(tmp_path: Path) -> None:
    compared = compare_curves(all_runs(tmp_path))
    heading, *lines = gain_beyond_lines(compared)
    assert heading == "gain beyond the training row, from 8 to 24 visible tokens, nats [95% interval]:"
    assert model_labels(compared) == ["PoSE, 2 chunks", "no PoSE", "RandPos", "ceiling, rows of 24"]
    pose = compared.models[0]
    assert pose.gain_beyond_nats is not None and pose.share_of_ceiling is not None
    gain, share = pose.gain_beyond_nats, pose.share_of_ceiling
    assert lines[0] == (
        f"PoSE, 2 chunks (1 seed): {gain.mean:.4f} [{gain.low:.4f}, {gain.high:.4f}], "
        f"{share.mean:.2f} [{share.low:.2f}, {share.high:.2f}] of the ceiling's"
    )
    assert lines[1].startswith("no PoSE (1 seed): -0.") and lines[1].endswith("], a loss")
    assert lines[3].startswith("ceiling, rows of 24 (1 seed): 0.0") and "ceiling's" not in lines[3]
    assert lines[4] == "intervals of models with 1 seed do not include what another seed would change"
    assert len(lines) == 5


def test_shares_of_an_uncertain_ceiling_are_fragile(tmp_path: Path) -> None:
    clear = pair(tmp_path / "clear", 0.05, noise=0.05)
    assert not clear.shares_are_fragile and not any("fragile" in line for line in gain_beyond_lines(clear))
    fragile = pair(tmp_path / "fragile", 0.042, noise=0.45)
    assert fragile.ceiling is not None and fragile.ceiling.gain_beyond_nats is not None
    gain = fragile.ceiling.gain_beyond_nats
    assert gain.standard_error is not None and 2 < gain.mean / gain.standard_error < 3
    assert fragile.shares_are_fragile and fragile.models[0].share_of_ceiling is not None
    assert any(
        line.startswith("fragile: the ceiling's gain is below 3 standard errors") for line in gain_beyond_lines(fragile)
    )


def test_there_is_no_share_of_a_ceiling_that_gains_nothing(tmp_path: Path) -> None:
    compared = pair(tmp_path, 0.0, noise=0.3)
    assert compared.models[0].share_of_ceiling is None and not compared.shares_are_fragile
    lines = gain_beyond_lines(compared)
    assert "the interval of the ceiling's gain reaches down to 0 or below, so there are no shares of it" in lines


def test_too_few_documents_are_not_said_to_show_that_a_ceiling_gains_nothing(tmp_path: Path) -> None:
    losses_WN, doc_ids = made_up_losses(0.05, num_documents=49)
    runs = [
        curve_run(tmp_path / "half", losses_WN, doc_ids),
        curve_run(tmp_path / "top", losses_WN, doc_ids, row_len=FULL),
    ]
    lines = gain_beyond_lines(compare_curves(runs))
    assert "the ceiling's gain has no interval, so there are no shares of it" in lines
    assert not any("reaches down" in line for line in lines)


def test_a_ceiling_alone_has_nothing_beyond_its_row(tmp_path: Path) -> None:
    losses_WN, doc_ids = made_up_losses(0.05)
    compared = compare_curves([curve_run(tmp_path / "top", losses_WN, doc_ids, row_len=FULL)])
    assert (compared.row_len, compared.full_len) == (FULL, FULL)
    assert compared.models[0].gain_beyond_nats is None
    assert gain_beyond_lines(compared) == []


def test_the_order_of_the_runs_changes_no_number(tmp_path: Path) -> None:
    """Seeds of a model need not stand together, and the ceiling may be named first."""
    runs = all_runs(tmp_path, (0, 1, 2))
    given, turned = compare_curves(runs), compare_curves(runs[::-1])
    assert turned.models[0] is turned.ceiling
    assert (turned.reference_len, turned.row_len, turned.full_len) == (
        given.reference_len,
        given.row_len,
        given.full_len,
    )
    for one, other in zip(given.models, turned.models[::-1], strict=True):
        assert one.seeds == other.seeds[::-1]
        assert one.seeds[0].run == one.curve.run and other.seeds[0].run == other.curve.run
        pairs = [(one.gain_beyond_nats, other.gain_beyond_nats), (one.share_of_ceiling, other.share_of_ceiling)]
        for point, of_other in zip(one.curve.points, other.curve.points, strict=True):
            assert point.num_visible_tokens == of_other.num_visible_tokens
            pairs += [(point.loss_nats, of_other.loss_nats), (point.change_nats, of_other.change_nats)]
        for left, right in pairs:
            assert (left is None) == (right is None)
            if left is not None and right is not None:
                assert dataclasses.astuple(left) == pytest.approx(dataclasses.astuple(right), abs=1e-9)


def test_gains_and_changes_are_from_the_training_row_not_from_the_local_tokens(tmp_path: Path) -> None:
    """Rows are longer than the local context here. A curve that ends before the full context has no gain."""
    losses_WN, doc_ids = made_up_losses(0.05)
    run = curve_run(tmp_path / "run", losses_WN, doc_ids, row_len=12)
    compared = compare_curves([run])
    assert (compared.reference_len, compared.row_len) == (12, 12)
    (model,) = compared.models
    loss = {point.num_visible_tokens: point.loss_nats.mean for point in model.curve.points}
    assert model.gain_beyond_nats is not None
    assert model.gain_beyond_nats.mean == model.seeds[0].gain_beyond_nats == pytest.approx(loss[12] - loss[FULL])
    assert [point.change_nats.mean for point in model.curve.points] == pytest.approx(
        [of - loss[12] for of in loss.values()]
    )
    short, num = made_up_run(tmp_path / "short"), VISIBLE.index(FULL)
    made_up_curve(short, losses_WN[:, :num], doc_ids=doc_ids, visible=VISIBLE[:num])
    (ends,) = compare_curves([short]).models
    assert ends.gain_beyond_nats is None and ends.seeds[0].gain_beyond_nats is None
    begins, first = made_up_run(tmp_path / "begins"), VISIBLE.index(ROW)
    made_up_curve(begins, losses_WN[:, first:], doc_ids=doc_ids, visible=VISIBLE[first:])
    (model,) = compare_curves([begins]).models  # the row is the first point
    assert model.gain_beyond_nats is not None and model.curve.points[0].change_nats.mean == 0
    assert model.gain_beyond_nats.mean == pytest.approx(loss[ROW] - loss[FULL])


def test_changes_of_several_seeds_include_their_choice(tmp_path: Path) -> None:
    """All windows gain alike, so that only seeds differ: the interval is Student's t over them."""
    _, doc_ids = made_up_losses(0.0)
    falls = np.array([0.1, 0.4, 0.2])
    runs = []
    for seed, fall in enumerate(falls):
        losses_WN = 5 - fall * np.arange(len(VISIBLE)) + np.arange(len(doc_ids))[:, None] % 3 + 0.3 * seed
        runs.append(curve_run(tmp_path / f"{seed}", losses_WN, doc_ids, seed=seed))
    (model,) = compare_curves(runs).models
    for i, point in enumerate(model.curve.points):
        values = falls * (VISIBLE.index(ROW) - i)
        expected = (
            scipy.stats.t.interval(0.95, 2, loc=values.mean(), scale=scipy.stats.sem(values))
            if values.any()
            else (0, 0)
        )
        assert point.change_nats.bounds == pytest.approx(expected, abs=1e-5)
    gains = falls * (VISIBLE.index(FULL) - VISIBLE.index(ROW))
    assert [seed.gain_beyond_nats for seed in model.seeds] == pytest.approx(gains, abs=1e-6)
    assert model.gain_beyond_nats is not None
    assert model.gain_beyond_nats.standard_error == pytest.approx(scipy.stats.sem(gains), abs=1e-6)


def test_the_interval_of_a_loss_over_seeds_ends_at_0(tmp_path: Path) -> None:
    _, doc_ids = made_up_losses(0.0)
    runs = []
    for seed, size in enumerate((0.1, 2.3)):
        losses_WN = size + 0.01 * (np.arange(len(doc_ids))[:, None] % 3) - 0.01 * np.arange(len(VISIBLE))
        runs.append(curve_run(tmp_path / f"{seed}", losses_WN, doc_ids, seed=seed))
    (model,) = compare_curves(runs).models
    for point in model.curve.points:
        assert point.loss_nats.low == 0.0 < point.loss_nats.mean < 1.3 and point.loss_nats.high is not None
        assert point.loss_nats.high > 5
    assert {point.change_nats.mean < 0 for point in model.curve.points} == {True, False}
    assert all(point.change_nats.low < 0 for point in model.curve.points if point.change_nats.mean < 0)


@pytest.mark.parametrize(
    "change", [{"tokens_sha256": "o"}, {"windows_sha256": "o"}, {"local_len": 6}, {"full_len": 32}], ids=str
)
def test_curves_of_other_windows_or_lengths_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    losses_WN, doc_ids = made_up_losses(0.05)
    runs = [curve_run(tmp_path / name, losses_WN, doc_ids, seed=i) for i, name in enumerate(("one", "same", "other"))]
    assert len(compare_curves(runs).models[0].seeds) == 3
    folder = newest_finished(runs[2], "context-curve")
    manifest = read_json(folder / "manifest.json")
    section = manifest["context"] if next(iter(change)) in manifest["context"] else manifest
    section |= change
    write_manifest(folder, manifest)
    with pytest.raises(UserError, match="one and other are of different windows"):
        compare_curves(runs)


def test_one_model_of_one_seed_is_enough_for_the_warning(tmp_path: Path) -> None:
    compared = compare_curves(all_runs(tmp_path))
    models = [dataclasses.replace(model, seeds=model.seeds * 2) for model in compared.models]
    warning = "intervals of models with 1 seed do not include what another seed would change"
    for shown, warned in ((models, False), ([*models[:3], compared.models[3]], True)):
        assert (warning in gain_beyond_lines(dataclasses.replace(compared, models=tuple(shown)))) == warned


def test_without_a_ceiling_there_are_gains_and_no_shares(tmp_path: Path) -> None:
    compared = compare_curves(all_runs(tmp_path)[:3])
    assert compared.ceiling is None and all(model.share_of_ceiling is None for model in compared.models)
    assert not compared.shares_are_fragile
    assert len([line for line in gain_beyond_lines(compared) if "seed)" in line]) == 3


def test_models_with_the_same_positions_are_told_apart_by_their_runs(tmp_path: Path) -> None:
    runs = all_runs(tmp_path)[:2]
    losses_WN, doc_ids = made_up_losses(0.03)
    again = curve_run(tmp_path / "again", losses_WN, doc_ids)
    assert model_labels(compare_curves([*runs, again])) == [
        "pose (PoSE, 2 chunks)",
        "no PoSE",
        "again (PoSE, 2 chunks)",
    ]


def test_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    first = all_runs(tmp_path)[0]
    losses_WN, doc_ids = made_up_losses(0.03)
    again = curve_run(tmp_path / "elsewhere" / first.name, losses_WN, doc_ids)
    compared = compare_curves([first, again])
    assert model_labels(compared) == [f"{first} (PoSE, 2 chunks)", f"{again} (PoSE, 2 chunks)"]
    assert [seed.run for model in compared.models for seed in model.seeds] == [str(first), str(again)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"checkpoint": {"step": 500, "model_sha256": "0"}}, "checkpoint step None and 500"),
        ({"anchor": {"id": 1, "text": "<s>"}}, "anchor None and {'id': 1"),
        ({"precision": "bf16"}, "precision None and bf16"),
    ],
)
def test_seeds_that_were_measured_in_other_ways_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    runs = four_way_runs(tmp_path, (0, 1))
    first, second = next(iter(runs.values()))
    assert len(compare_curves([first, second]).models) == 1
    path = newest_finished(second, "context-curve") / "manifest.json"
    write_manifest(path.parent, {**read_json(path), **change})
    with pytest.raises(UserError, match=f"the context curves of pose and pose-seed1, seeds of one model, have {said}"):
        compare_curves([first, second])


def test_what_cannot_be_compared_is_refused_in_one_line(tmp_path: Path) -> None:
    losses_WN, doc_ids = made_up_losses(0.05)
    run = curve_run(tmp_path / "run", losses_WN, doc_ids)
    top = curve_run(tmp_path / "top", losses_WN, doc_ids, row_len=FULL)
    other = made_up_run(tmp_path / "other", seed=1)
    made_up_curve(other, losses_WN, doc_ids=doc_ids, windows_sha256="other windows")
    longer = curve_run(tmp_path / "longer", losses_WN, doc_ids, row_len=12)
    second = curve_run(tmp_path / "second", losses_WN, doc_ids, row_len=FULL)
    lacking = made_up_run(tmp_path / "lacking", pose=CEILING_POSE, row_len=FULL)
    without = [i for i, number in enumerate(VISIBLE) if number != ROW]
    made_up_curve(
        lacking, losses_WN[:, without], doc_ids=doc_ids, pose=CEILING_POSE, row_len=FULL, visible=[VISIBLE[i] for i in without]
    )  # fmt: skip
    far = made_up_run(tmp_path / "far", pose=CEILING_POSE, row_len=FULL)
    visible = [40 if number == 32 else number for number in VISIBLE]
    made_up_curve(far, losses_WN, doc_ids=doc_ids, pose=CEILING_POSE, row_len=40, visible=visible)
    model = pretrained_curve(tmp_path / "model", gain=0.2)
    for runs, said in (
        ([run, other], "run and other are of different windows"),
        ([run, longer], f"trained on rows of 8 and 12 tokens; .* and of a ceiling of {FULL}$"),
        ([run, top, second], rf"top and second are both ceilings \(rows as long as the full context, {FULL}\)"),
        ([run, lacking], "lacking has no point at 8 visible tokens, .*; give all of these runs context.local_len = 8$"),
        (
            [far, model],
            "model has no point at 40 visible tokens, .*; measure the .* of these runs with context_curve.max_visible=40$",
        ),
    ):
        with pytest.raises(UserError, match=said) as caught:
            compare_curves(runs)
        assert "\n" not in str(caught.value)


def test_a_pretrained_model_has_changes_from_its_local_tokens_and_no_gain_beyond_a_row(tmp_path: Path) -> None:
    """It is no ceiling, and no line or number says that it gains beyond a training row; with others alike."""
    model = pretrained_curve(tmp_path / "model", gain=0.2)
    compared = compare_curves([model])
    (only,) = compared.models
    assert (compared.reference_len, compared.row_len, compared.full_len, compared.ceiling) == (ROW, None, FULL, None)
    assert only.gain_beyond_nats is None and only.seeds[0].gain_beyond_nats is None and only.seeds[0].seed is None
    assert gain_beyond_lines(compared) == [] and model_labels(compared) == ["someone/Made-Up-2M"]
    changes = {point.num_visible_tokens: point.change_nats.mean for point in only.curve.points}
    losses = {point.num_visible_tokens: point.loss_nats.mean for point in only.curve.points}
    assert changes == {number: pytest.approx(loss - losses[ROW], abs=1e-9) for number, loss in losses.items()}
    assert changes[ROW] == 0 and changes[FULL] == pytest.approx(-0.2, abs=0.03)
    alone = context_curve(model / "context-curve" / "made-up")
    assert alone.setup.model is not None and alone.setup.model.name == "someone/Made-Up-2M"
    assert [point.change_nats.mean for point in alone.points] == pytest.approx(list(changes.values()))
    shown = compared_curves_json(compared)
    assert (shown["row_len"], shown["reference_len"], shown["models"][0]["train_len"]) == (None, ROW, None)
    assert shown["models"][0]["model"]["name"] == "someone/Made-Up-2M"


def test_a_pretrained_model_beside_runs_leaves_their_gains_as_they_are(tmp_path: Path) -> None:
    runs = all_runs(tmp_path)
    with_model = compare_curves([*runs, pretrained_curve(tmp_path / "model", gain=0.2)])
    without = compare_curves(runs)
    assert (with_model.row_len, with_model.reference_len) == (without.row_len, without.reference_len) == (ROW, ROW)
    *of_runs, of_model = with_model.models
    assert of_model.gain_beyond_nats is None and of_model.share_of_ceiling is None and not of_model.is_ceiling
    for one, other in zip(of_runs, without.models, strict=True):
        assert one.gain_beyond_nats is not None and other.gain_beyond_nats is not None
        assert one.gain_beyond_nats.mean == other.gain_beyond_nats.mean
    assert not any("Made-Up" in line for line in gain_beyond_lines(with_model))


def test_a_pretrained_model_with_a_stated_row_gains_beyond_it(tmp_path: Path) -> None:
    model = pretrained_curve(tmp_path / "model", gain=0.2, row_len=ROW)
    runs = all_runs(tmp_path)
    alone, beside = compare_curves([model]), compare_curves([*runs, model])
    assert (alone.reference_len, alone.row_len, alone.ceiling) == (ROW, ROW, None)
    for found in (alone.models[0], beside.models[-1]):
        losses = {point.num_visible_tokens: point.loss_nats.mean for point in found.curve.points}
        assert found.gain_beyond_nats is not None
        assert found.gain_beyond_nats.mean == pytest.approx(losses[ROW] - losses[FULL], abs=1e-9)
    for found in (alone, beside):  # runs know theirs; one that is stated is said
        assert gain_beyond_lines(found)[0].startswith("gain beyond the stated training row, from 8 to 24")
    assert gain_beyond_lines(compare_curves(runs))[0].startswith("gain beyond the training row, from 8 to 24")
    share, ceiling = beside.models[-1].share_of_ceiling, beside.ceiling
    assert share is not None and ceiling is not None and ceiling.gain_beyond_nats is not None
    assert ceiling.curve.run == "ceiling"
    with pytest.raises(UserError, match="rows of 8 and 12 tokens"):
        compare_curves([*runs, pretrained_curve(tmp_path / "longer", gain=0.2, row_len=12)])


def test_a_stated_row_as_long_as_the_full_context_makes_no_ceiling(tmp_path: Path) -> None:
    """Its training text was another, so that its gain is no measure of what rows so long can teach."""
    models = [pretrained_curve(tmp_path / name, gain=0.2, name=name, row_len=2048) for name in ("one", "other")]
    compared = compare_curves([*all_runs(tmp_path), *models])
    assert compared.ceiling is not None and compared.ceiling.curve.run == "ceiling"
    assert [model.gain_beyond_nats for model in compared.models[-2:]] == [None, None]
    assert compare_curves(models).row_len is None
