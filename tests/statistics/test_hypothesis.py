"""Whether sparsity predicts the gain: planted answers, thirds and numbers by plain loops, and the command."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import scipy.stats
from guard_commands import DATA
from typer.testing import CliRunner
from unlike_tables import copied_with_rows, made_up_tables

from olmo_sparsity.cli.app import app
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_manifest
from olmo_sparsity.statistics import hypothesis
from olmo_sparsity.statistics.hypothesis import CONTRAST, THIRDS, Model, Reactions, gain_by_sparsity, thirds_of

NUM_DOCUMENTS, PER_DOCUMENT = 300, 8
NUM = NUM_DOCUMENTS * PER_DOCUMENT
DISTANCES = (9, 16)
SHARED = np.random.default_rng(77)
# What all models share of each target: how sparse, how large, how far, under both contexts.
SPARSITY_CW = SHARED.uniform(0, 1, (2, NUM))
SIZE_CW = SHARED.gamma(2.0, 0.1, (2, NUM))
DISTANCE_CW = 16 - np.minimum(SHARED.geometric(0.5, (2, NUM)) - 1, 7)  # mostly far: some cells have fewer than three
ENTROPY_W = SHARED.uniform(1, 6, NUM)
DOC_IDS = pd.Series([f"{w // PER_DOCUMENT:016x}" for w in range(NUM)])
WEIGHT_W = np.where(np.arange(NUM) % 16 < 8, 1.0, 1.5)


def a_run(seed: int, *, gain_CW: np.ndarray, noise: float = 0.3, own: float = 0.1, **changes: Any) -> Reactions:
    """The reactions of a run: the shared truth and noise of its own, which is in its gain, too."""
    rng = np.random.default_rng(seed)
    own_CW = rng.normal(0, own, (2, NUM))
    size_CW = SIZE_CW * np.exp(rng.normal(0, 0.1, (2, NUM)))
    found_CW = gain_CW + own_CW + rng.normal(0, noise, (2, NUM))
    run = Reactions(DOC_IDS, WEIGHT_W, size_CW, found_CW, ENTROPY_W, SPARSITY_CW + own_CW, DISTANCE_CW)
    return dataclasses.replace(run, **changes)


def a_model(label: str, seeds: range, *, gain_CW: np.ndarray, **options: Any) -> Model:
    return Model(label, tuple(a_run(seed, gain_CW=gain_CW, **options) for seed in seeds), DISTANCES)


def slope(real: float, null: float) -> np.ndarray:
    """Gains that rise with sparsity."""
    return np.array([[real], [null]]) * (SPARSITY_CW - 0.5)


def row_of(table: pd.DataFrame, quantity: str, group: str = CONTRAST) -> pd.Series:
    (row,) = (row for _, row in table[(table["quantity"] == quantity) & (table["group"] == group)].iterrows())
    return row


def thirds_by_hand(
    run: Reactions, context: int, bins: dict[str, int], distances: tuple[int, int] = DISTANCES
) -> np.ndarray:
    """The third of each target, one target after the other; -1 where it is not compared."""
    values = {"reaction": run.reaction_CW[context], "entropy": run.entropy_W, "distance": run.distance_CW[context]}
    sparsity_W, kept = run.sparsity_CW[context], np.flatnonzero(~np.isnan(run.sparsity_CW[context])).tolist()

    def parts(rows: list[int], values_W: np.ndarray, num: int) -> dict[int, int]:
        found, below, whole = {}, 0.0, run.weight_W[rows].sum()
        for w in sorted(rows, key=lambda w: (values_W[w], w)):
            found[w] = int((below + run.weight_W[w] / 2) / whole * num)
            below += run.weight_W[w]
        return found

    cells: dict[int, tuple[int, ...]] = {w: () for w in kept}
    for name, num in bins.items():
        of = parts(kept, values[name], num)
        if name == "distance":
            of = {w: int((values[name][w] - distances[0]) * num / (distances[1] - distances[0] + 1)) for w in kept}
        cells = {w: (*cells[w], of[w]) for w in kept}
    third_W = np.full(len(sparsity_W), -1)
    for cell in set(cells.values()):
        rows = [w for w in kept if cells[w] == cell]
        for w, third in parts(rows, sparsity_W, 3).items() if len(rows) >= 3 else ():
            third_W[w] = third
    return third_W


@pytest.mark.parametrize("context", [0, 1])
@pytest.mark.parametrize(
    ("every", "bins"),
    [
        (1, {"reaction": 20, "distance": 4, "entropy": 2}),  # 2,400 targets have room for 200 cells of 12
        (7, {"reaction": 20, "distance": 1, "entropy": 1}),  # 343: for 28
        (40, {"reaction": 5, "distance": 1, "entropy": 1}),  # 60: for 5
        (80, {"reaction": 2, "distance": 1, "entropy": 1}),  # 30: for 2
        (300, {"reaction": 1, "distance": 1, "entropy": 1}),
    ],
)
def test_thirds_of_cells_by_definition(every: int, bins: dict[str, int], context: int) -> None:
    """Targets without a reaction are in no third, nor those of cells of fewer than three."""
    run = a_run(every, gain_CW=slope(0, 0))
    run = dataclasses.replace(run, sparsity_CW=np.where(np.arange(NUM) % every == 0, run.sparsity_CW, np.nan))
    expected_W = thirds_by_hand(run, context, bins)
    assert every > 1 or (expected_W == -1).sum() > 0
    np.testing.assert_array_equal(thirds_of(run, context, distances=DISTANCES), expected_W)


@pytest.mark.parametrize(("num_distances", "of_entropy"), [(3, 3), (1, 5)])
def test_a_distance_is_a_bin_of_its_own_where_there_are_few(num_distances: int, of_entropy: int) -> None:
    """Of at most four bins. 200 cells have then room for more bins of the entropy, of which there are at most five."""
    run, distances = a_run(1, gain_CW=slope(0, 0)), (9, 8 + num_distances)
    run = dataclasses.replace(run, distance_CW=9 + run.distance_CW % num_distances)
    bins = {"reaction": 20, "distance": num_distances, "entropy": of_entropy}
    expected_W = thirds_by_hand(run, 0, bins, distances)
    np.testing.assert_array_equal(thirds_of(run, 0, distances=distances), expected_W)


# A mean, the role of the model that it is of (0 ranks, 1 gains, 2 is the ceiling), and where it is in its reactions.
OF_ROLES = [
    ("gain", 1, "gain_CW"),
    ("reaction", 1, "reaction_CW"),
    ("ceiling", 2, "gain_CW"),
    ("sparsity", 0, "sparsity_CW"),
]
Numbers = dict[tuple[str, str], np.ndarray]  # (quantity, group) -> of every resample, or of all documents


def numbers_by_hand(
    roles: tuple[Model, Model, Model], counts_XU: np.ndarray, *, without: tuple[Optional[Model], int] = (None, 0)
) -> Numbers:
    """All numbers of models that rank, gain, and are the ceiling, where each document counts so many times."""

    def total(values_W: np.ndarray) -> np.ndarray:
        return np.asarray(counts_XU @ values_W.reshape(NUM_DOCUMENTS, PER_DOCUMENT).sum(axis=1))

    seeds_of = [[s for s in range(len(m.reactions)) if m is not without[0] or s != without[1]] for m in roles]
    means: dict[tuple[str, int, str], Any] = {}
    for c in range(2):
        for t, third in enumerate(THIRDS):
            sums: dict[str, Any] = dict.fromkeys(("weight", *(name for name, _, _ in OF_ROLES)), 0.0)
            for a in seeds_of[0]:
                in_third_W = WEIGHT_W * (BY_HAND[id(roles[0].reactions[a]), c] == t)
                for name, role, of in OF_ROLES:
                    seeds = [s for s in seeds_of[role] if roles[role] is not roles[0] or s != a] or seeds_of[role]
                    runs = [roles[role].reactions[s] for s in (seeds if role else [a])]
                    sums[name] = sums[name] + total(in_third_W * np.mean([getattr(run, of)[c] for run in runs], axis=0))
                sums["weight"] = sums["weight"] + total(in_third_W)
            means |= {(name, c, third): of / sums["weight"] for name, of in sums.items()}
    names = {
        "third_gain_nats": ("gain", 0), "third_null_gain_nats": ("gain", 1), "third_reaction_nats": ("reaction", 0),
        "third_sparsity": ("sparsity", 0), "third_ceiling_gain_nats": ("ceiling", 0),
    }  # fmt: skip
    found: Numbers = {(name, third): means[of[0], of[1], third] for name, of in names.items() for third in THIRDS}
    for third in THIRDS:
        found["third_share_of_ceiling", third] = means["gain", 0, third] / means["ceiling", 0, third]
    for name in {name for name, _ in found}:
        found[name, CONTRAST] = found[name, "sparse"] - found[name, "dense"]
    for group in (*THIRDS, CONTRAST):
        found["real_minus_null_nats", group] = found["third_gain_nats", group] - found["third_null_gain_nats", group]
    return found


BY_HAND: dict[tuple[int, int], np.ndarray] = {}  # (id of a run, context) -> thirds
ROLES = {  # which models rank, gain, and are the ceiling, and their numbers of seeds
    "three models": (0, 1, 2, (3, 4, 2)),
    "its own gain": (0, 0, 1, (3, 4)),
    "by the ceiling": (0, 1, 0, (4, 2)),
    "one run": (0, 0, 1, (1, 3)),
    "one run of the ceiling": (0, 1, 0, (1, 2)),
}


@pytest.mark.parametrize("case", ROLES)
def test_every_number_and_interval_by_definition(case: str) -> None:
    """Documents are drawn one resample at a time, and seeds are left out one after the other, in every role."""
    ranks, gains, is_ceiling, num_seeds = ROLES[case]
    models = [
        a_model(f"{i}", range(40 + 10 * i, 40 + 10 * i + num), gain_CW=0.5 + i + slope(0.4 + 0.2 * i, -0.3), noise=3.0)
        for i, num in enumerate(num_seeds)
    ]
    roles = models[ranks], models[gains], models[is_ceiling]
    for run in roles[0].reactions:
        for c in range(2):
            BY_HAND[id(run), c] = thirds_by_hand(run, c, {"reaction": 20, "distance": 4, "entropy": 2})
    draws = np.random.default_rng(0).integers(0, NUM_DOCUMENTS, (2000, NUM_DOCUMENTS))
    counts_XU = np.stack([np.bincount(drawn, minlength=NUM_DOCUMENTS) for drawn in draws])
    once = np.ones((1, NUM_DOCUMENTS))
    everything, resampled = numbers_by_hand(roles, once), numbers_by_hand(roles, counts_XU)
    several = [(model, range(num)) for model, num in zip(models, num_seeds, strict=True) if num >= 3]
    left_out = [[numbers_by_hand(roles, once, without=(model, s)) for s in seeds] for model, seeds in several]
    table = gain_by_sparsity(*roles)
    assert len(table) == len(everything) == 7 * 4
    for key, expected in everything.items():
        parts = [(np.var(resampled[key], ddof=1), NUM_DOCUMENTS - 1)]
        for without in left_out:
            values = np.array([numbers[key].item() for numbers in without])
            num = len(values)
            parts.append(((num - 1) / num * ((values - values.mean()) ** 2).sum(), num - 1))
        variance = sum(part for part, _ in parts)
        half = scipy.stats.t.ppf(0.975, variance**2 / sum(part**2 / own for part, own in parts)) * np.sqrt(variance)
        row, ends = row_of(table, *key), (expected.item() - half, expected.item() + half)
        if not left_out:
            ends = tuple(np.quantile(resampled[key], [0.025, 0.975]))
        assert row["value"] == pytest.approx(expected.item()) and row["se"] == pytest.approx(np.sqrt(variance)), key
        assert (row["low"], row["high"]) == pytest.approx(ends), key


def test_a_gain_of_sparse_reactions_alone_is_found() -> None:
    """Planted: 0.3 nats where the sparsity is above 2/3, with the real text only."""
    gain_CW, names = 0.3 * (SPARSITY_CW > 2 / 3) * [[1], [0]], ("real_minus_null_nats", "third_share_of_ceiling")
    pose, ceiling = a_model("pose", range(3), gain_CW=gain_CW), a_model("ceiling", range(5, 8), gain_CW=gain_CW + 0.3)
    table = gain_by_sparsity(pose, pose, ceiling)
    first, share, null = (row_of(table, name) for name in (*names, "third_null_gain_nats"))
    assert 0.15 < first["low"] < first["value"] < 0.3 and share["low"] > 0.2
    assert row_of(table, "third_gain_nats", "dense")["low"] < 0.02 and null["low"] < 0 < null["high"]


def test_a_gain_that_follows_the_size_of_the_reaction_is_none_of_sparsity() -> None:
    """Large reactions are sparse and gain more; among equally large ones sparsity says nothing."""
    sparsity_CW = scipy.stats.rankdata(SIZE_CW, axis=1) / NUM + SHARED.normal(0, 0.2, (2, NUM))
    changes = {"sparsity_CW": sparsity_CW, "reaction_CW": SIZE_CW}
    model = a_model("pose", range(3), gain_CW=SIZE_CW * [[1], [0]], **changes)
    assert np.corrcoef(sparsity_CW[0], SIZE_CW[0])[0, 1] > 0.5
    first = row_of(gain_by_sparsity(model, model, None), "real_minus_null_nats")
    assert first["low"] < 0 < first["high"] and abs(first["value"]) < 0.03


def test_noise_of_one_run_is_no_gain_of_another() -> None:
    """A run's own noise is in its sparsity and in its gain; with several seeds they are of different runs."""
    alone, several = (a_model("pose", range(num), gain_CW=slope(0, 0), own=0.5) for num in (1, 3))
    numbers = [row_of(gain_by_sparsity(model, model, None), "third_gain_nats") for model in (alone, several)]
    assert numbers[0]["low"] > 0.3 and numbers[1]["low"] < 0 < numbers[1]["high"]


def test_a_ceiling_that_loses_has_no_share() -> None:
    pose, ceiling = (
        a_model(name, range(i, i + 3), gain_CW=0.1 + slope(1, 0)) for i, name in ((0, "pose"), (5, "ceiling"))
    )
    table = gain_by_sparsity(pose, pose, ceiling)
    assert row_of(table, "third_ceiling_gain_nats", "dense")["value"] < 0
    assert set(table.loc[table["quantity"] == "third_share_of_ceiling", "group"]) == {"middle", "sparse"}


def test_intervals_of_size_and_sparsity_end_where_these_do() -> None:
    """In one of three seeds reactions are large and dense, in the others small and sparse."""
    runs = [
        a_run(i, gain_CW=slope(0, 0), reaction_CW=size * (1 + SIZE_CW), sparsity_CW=share + 0.01 * SPARSITY_CW)
        for i, (size, share) in enumerate(((0.02, 0.97), (0.03, 0.95), (2.9, -3.0)))
    ]
    model = Model("pose", tuple(runs), DISTANCES)
    table = gain_by_sparsity(model, model, None)
    assert [row_of(table, "third_reaction_nats", third)["low"] for third in THIRDS] == [0, 0, 0]
    assert [row_of(table, "third_sparsity", third)["high"] for third in THIRDS] == [1, 1, 1]


@pytest.mark.parametrize(("context", "num_dense", "has_interval"), [(0, 49, False), (0, 50, True), (1, 49, False)])
def test_a_third_of_few_documents_has_no_interval_and_no_contrast(
    context: int, num_dense: int, has_interval: bool
) -> None:
    """The dense reactions to one text are those of so many documents of 300; others are of many."""
    run = a_run(0, gain_CW=0.4 + slope(0.3, 0.0))
    dense = np.flatnonzero(thirds_of(run, context, distances=DISTANCES) == 0)
    doc_ids = DOC_IDS.copy()
    doc_ids[dense] = [f"{w % num_dense:016x}" for w in range(len(dense))]
    model = Model("pose", (dataclasses.replace(run, doc_ids=doc_ids),), DISTANCES)
    table = gain_by_sparsity(model, model, None)
    few, other = ["third_gain_nats", "third_null_gain_nats"][:: 1 - 2 * context]
    of_dense = [(few, "dense"), (few, CONTRAST), ("real_minus_null_nats", CONTRAST)]
    assert [bool(np.isfinite(row_of(table, *key)["low"])) for key in of_dense] == [has_interval] * 3
    assert all(np.isfinite(row_of(table, *key)["low"]) for key in [(few, "middle"), (few, "sparse"), (other, CONTRAST)])
    assert row_of(table, few, "dense")["n_documents"] == num_dense
    third_W = thirds_of(run, context, distances=DISTANCES)
    num_windows = {**{name: (third_W == i).sum() for i, name in enumerate(THIRDS)}, CONTRAST: (third_W % 2 == 0).sum()}
    assert {name: row_of(table, few, name)["n_windows"] for name in num_windows} == num_windows


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three seeds of a model, and a ceiling."""
    folder = tmp_path_factory.mktemp("hypothesis")
    seeds = [Path(shutil.copytree(DATA / "runs" / f"seed{seed}", folder / f"seed{seed}")) for seed in range(3)]
    return [*seeds, copied_with_rows(seeds[0], folder / "ceiling")]


def test_reactions_are_those_of_the_tables(runs: list[Path]) -> None:
    tables = runs[0] / "influence" / "measured"
    run = hypothesis.read_reactions(tables, "kl")
    windows = pq.read_table(tables / "windows").sort_by("window_id").to_pylist()
    rows = pq.read_table(tables / "selections").to_pylist()
    chosen = {(row["window_id"], row["context"]): row for row in rows if row["selector"] == "kl"}
    for w, window in enumerate(windows):
        of_window = window["doc_id"], window["weight"], window["entropy_short_nats"]
        assert (run.doc_ids[w], run.weight_W[w], run.entropy_W[w]) == of_window
        for c, (context, prefix) in enumerate({"real": "", "null": "null_"}.items()):
            row, reaction = chosen[window["window_id"], context], window[f"{prefix}kl_short_nats"]
            assert run.reaction_CW[c, w] == reaction and run.distance_CW[c, w] == row["distance_tokens"][0]
            assert run.gain_CW[c, w] == window["loss_short_no_gap_nats"] - window[f"{prefix}loss_long_nats"]
            assert run.sparsity_CW[c, w] == pytest.approx(1 - row["kl_sparse_nats"][0] / reaction)


def test_models_and_their_roles(runs: list[Path]) -> None:
    table = hypothesis.read_hypothesis(runs)
    compared = table[["model", "sparsity_from"]].drop_duplicates().to_numpy().tolist()
    assert compared == [["seed0", "seed0"], ["seed0", "ceiling"]]  # of two configurations with one name
    assert (table.attrs["models"], table.attrs["ceiling"]) == ({"seed0": 3, "ceiling": 1}, "ceiling")
    assert (table.attrs["num_windows"], table.attrs["num_documents"]) == (305, 305)
    reactions = [hypothesis.read_reactions(run / "influence" / "measured", "kl") for run in runs]
    seeds, ceiling = Model("seed0", tuple(reactions[:3]), DISTANCES), Model("ceiling", tuple(reactions[3:]), DISTANCES)
    for by in (seeds, ceiling):
        expected = gain_by_sparsity(by, seeds, ceiling)
        found = table[table["sparsity_from"] == by.label].reset_index(drop=True)[expected.columns]
        pd.testing.assert_frame_equal(found, expected.reset_index(drop=True), check_dtype=False)


def test_a_pretrained_model_has_the_training_row_that_was_stated(runs: list[Path], tmp_path: Path) -> None:
    model = Path(shutil.copytree(runs[0], tmp_path / "model"))
    write_manifest(model, {"kind": "pretrained", "status": "complete"})
    found, of_run = hypothesis.read_hypothesis([model]), hypothesis.read_hypothesis(runs[:1])
    assert found.attrs["pretrained"] == ["model"]
    printed = CliRunner().invoke(app, ["hypothesis", "--run", str(model)]).output
    assert "its noise is in both." in " ".join(printed.split())
    pd.testing.assert_series_equal(found["value"], of_run["value"])
    measured = model / "influence" / "measured"
    manifest = read_json(measured / "manifest.json")
    other = Path(shutil.copytree(measured, measured.with_name("unstated")))
    write_manifest(other, {**manifest, "context": {**manifest["context"], "train_len": None}})
    again = hypothesis.read_hypothesis([model])
    pd.testing.assert_series_equal(again["value"], of_run["value"])
    assert again.attrs["manifest"]["context"]["train_len"] == 8
    write_manifest(measured, {**manifest, "context": {**manifest["context"], "local_len": 6}})
    with pytest.raises(UserError, match="no measurement with as many local tokens"):
        hypothesis.read_hypothesis([model])
    shutil.rmtree(other)
    write_manifest(measured, {**manifest, "context": {**manifest["context"], "train_len": None}})
    with pytest.raises(UserError, match="the training row of this model is not known"):
        hypothesis.read_hypothesis([model])
    write_manifest(measured, {**manifest, "influence": {**manifest["influence"], "k": [2]}})
    with pytest.raises(UserError, match=r"--k 1,2,4 pretrained\.train_len=8` first$"):
        hypothesis.read_hypothesis([model])


def test_distances_begin_behind_the_local_tokens(tmp_path: Path) -> None:
    """Of 600 targets there are two bins of the distance; 8 of 20 tokens are local."""
    context = {"local_len": 8, "full_len": 20, "num_long_range": 12, "train_len": 8}
    setup = {"context": context, "tokens_sha256": "t", "windows_sha256": "w"}
    tables = tmp_path / "model" / "influence" / "measured"
    made_up_tables(tables, num_documents=300, selectors=["kl", "random"], setup=setup)
    write_manifest(tmp_path / "model", {"kind": "pretrained", "status": "complete"})
    model = Model("model", (hypothesis.read_reactions(tables, "kl"),), (9, 20))
    expected = gain_by_sparsity(model, model, None)["value"].tolist()
    assert hypothesis.read_hypothesis([tmp_path / "model"])["value"].tolist() == pytest.approx(expected)


def test_the_command_prints_what_the_frame_holds(runs: list[Path]) -> None:
    options = [word for run in runs for word in ("--run", str(run))]
    table = hypothesis.read_hypothesis(runs)
    printed = CliRunner().invoke(app, ["hypothesis", *options])
    assert printed.exit_code == 0, printed.output
    lines = printed.output.splitlines()
    assert len(lines) <= 30 and max(map(len, lines)) <= 80
    by_own, by_ceiling = (table[table["sparsity_from"] == name] for name in ("seed0", "ceiling"))
    for entry, quantity, digits in ((by_own, "real_minus_null_nats", 4), (by_ceiling, "third_share_of_ceiling", 2)):
        row = row_of(entry, quantity)
        numbers = [f"{row[name]:.{digits}f}" for name in ("value", "low", "high")]
        assert "sparse minus dense {} [{}, {}]".format(*numbers) in printed.output
    for quantity in by_ceiling["quantity"].unique():
        digits = 4 if quantity.endswith("_nats") else 2
        values = " ".join(f"{row_of(by_ceiling, quantity, third)['value']:.{digits}f}" for third in THIRDS)
        assert any(f" {values} " in " ".join([*line.split(), ""]) for line in lines), (quantity, printed.output)
    said = "ceiling: Sparsity and gain are of one run, so its noise is in both; name further seeds with --run."
    assert said in " ".join(printed.output.split())
    found = json.loads(CliRunner().invoke(app, ["hypothesis", *options, "--json"]).output)
    assert [row["value"] for row in found["estimates"]] == pytest.approx(table["value"].tolist(), abs=1e-14)
    assert found["models"] == {"seed0": 3, "ceiling": 1}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"windows_sha256": "0"}, "with different windows"),
        ({"visibility": "contextual"}, "with different visibility"),
        ({"anchor": None, "precision": "bf16"}, "with different anchor, precision"),
        ({"checkpoint": {"step": 50, "model_sha256": "0"}}, "with different training step"),
        ({"influence": {"seed": 3}}, "with different null contexts"),
        ({"influence": {"k": [2, 4]}}, "no measurement with as many local tokens"),
        ({"context": {"local_len": 6}}, "run `olmo-sparsity influence --run .*seed1 --local-len 8 --selector kl"),
    ],
)  # fmt: skip
def test_other_measurements_are_refused(changes: dict[str, Any], said: str, runs: list[Path], tmp_path: Path) -> None:
    other = Path(shutil.copytree(runs[1], tmp_path / "seed1"))
    tables = other / "influence" / "measured"
    manifest = read_json(tables / "manifest.json")
    for key, value in changes.items():
        manifest[key] = {**manifest[key], **value} if key in ("influence", "context") else value
    write_manifest(tables, manifest)
    with pytest.raises(UserError, match=said):
        hypothesis.read_hypothesis([runs[0], other])


def test_what_cannot_be_tested_is_one_line(runs: list[Path]) -> None:
    for few in ([[True], [True]], [[True], [False]], [[False], [True]]):  # in both contexts, or in one
        sparsity_CW = np.where((np.arange(NUM) < 2) | ~np.array(few), SPARSITY_CW, np.nan)
        model = Model("pose", (a_run(0, gain_CW=slope(0, 0), sparsity_CW=sparsity_CW),), DISTANCES)
        with pytest.raises(UserError, match="too few targets"):
            gain_by_sparsity(model, model, None)
    for options, said in (
        ({"runs": runs[3:]}, "every run here is a ceiling"),
        ({"runs": runs[:1], "selector": "unmask-one"}, "unmask-one sees the target"),
        ({"runs": runs[:1], "selector": "attention"}, "--selector attention --selector random --k 1,2,4` first$"),
    ):
        with pytest.raises(UserError, match=said) as caught:
            hypothesis.read_hypothesis(**options)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("train_len", "said"), [(6, "on rows of 6 and 8 tokens"), (17, "longer are ceilings of different configurations")]
)
def test_rows_of_one_length_and_one_ceiling_are_tested(
    train_len: int, said: str, runs: list[Path], tmp_path: Path
) -> None:
    other = copied_with_rows(runs[0], tmp_path / "longer", train_len)
    with pytest.raises(UserError, match=said):
        hypothesis.read_hypothesis([runs[0], runs[3], other])
