"""Sentences of every branch: what is said where some numbers are missing, or lie elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from made_up_runs import FULL, POSE, PoseConfig, made_up_curve, made_up_losses, made_up_run
from made_up_sequences import SETTING
from msgspec import convert
from planted_measurements import PLANTED, Planted, anchor_check, write
from printed_text import json_lines
from syrupy.assertion import SnapshotAssertion

from olmo_sparsity.records.measured import AnchorCheck
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.comparison import compare
from olmo_sparsity.statistics.several.curve_comparison import compare_curves
from olmo_sparsity.statistics.several.subjects import read_subjects
from olmo_sparsity.statistics.single.measurement import Measurement, load
from olmo_sparsity.statistics.single.model_setup import ModelSetup, Visibility
from olmo_sparsity.statistics.single.spectrum import spectra
from olmo_sparsity.statistics.single.summary import SelectionSummary, Summary, summarize
from olmo_sparsity.wording import (
    comparison,
    curves,
    evidence,
    gates,
    numbers,
    selection,
    setup,
    spectrum,
    synthetic_tasks,
    units,
)
from olmo_sparsity.wording.evidence import CLAIM

ABOVE, BELOW, UNCLEAR = (Estimate(mean, mean - 0.03, mean + 0.04, 0.02) for mean in (0.31, -0.32, 0.013))
VISIBILITIES: tuple[Visibility, ...] = ("hidden", "contextual")
RECOVERED = {
    "none": None, "no interval": Estimate(0.4), "more than all": Estimate(1.2, 1.1, 1.3, 0.05),
    "most": Estimate(0.7, 0.6, 0.8, 0.05), "some": Estimate(0.55, 0.3, 0.7, 0.1),
    "less than half": Estimate(0.2, 0.1, 0.4, 0.1), "unclear": Estimate(0.1, -0.2, 0.4, 0.2),
}  # fmt: skip


@pytest.fixture(scope="module")
def run(work: Path) -> Measurement:
    return load(work / "runs" / "run" / "influence" / "of-run")


@pytest.fixture(scope="module")
def passed(run: Measurement) -> Summary:
    return summarize(run)


def changed(summary: Summary, of: Callable[[SelectionSummary], bool], **fields: Any) -> Summary:
    selections = tuple(replace(entry, **fields) if of(entry) else entry for entry in summary.selections)
    return replace(summary, selections=selections)


def conclusion(summary: Summary) -> list[str]:
    last = evidence.evidence_sentences(summary)[-1]
    return [evidence.verdict_words(summary), last.removeprefix(CLAIM).partition(" All 27 tokens")[0].strip()]


def test_conclusions(passed: Summary, snapshot: SnapshotAssertion) -> None:
    """Of kl, by how much it gives back at all k, and whether more than random."""
    over = {"above": ABOVE, "below": BELOW, "unclear": UNCLEAR, "none": None}
    said = {}
    for (name, recovered), (word, gain) in product(RECOVERED.items(), over.items()):
        if word == "above" or name in ("most", "some"):
            of = changed(
                passed,
                lambda e: (e.selector, e.context) == ("kl", "real"),
                recovered_fraction=recovered,
                gain_over_random_nats=gain,
            )
            said[f"{name}, {word}"] = conclusion(of)
    assert json_lines(said) == snapshot


def test_conclusions_under_the_null_context(passed: Summary, snapshot: SnapshotAssertion) -> None:
    said = {}
    for (name, excess), (word, null) in product(
        {"above": ABOVE, "unclear": UNCLEAR, "none": None}.items(), {"above": ABOVE, "none": None}.items()
    ):
        of = changed(passed, lambda e: (e.selector, e.context) == ("kl", "real"), excess_gain_nats=excess)
        said[f"{name}, {word}"] = conclusion(
            changed(of, lambda e: (e.selector, e.context) == ("kl", "null"), gain_over_random_nats=null)
        )
    most = {"recovered_fraction": RECOVERED["most"], "gain_over_random_nats": ABOVE}
    better = changed(passed, lambda e: e.selector == "nearest", selector="attention", **most)  # no control
    worse = changed(better, lambda e: e.selector == "kl", recovered_fraction=RECOVERED["some"])
    said["another shows more"] = conclusion(worse)
    some = changed(passed, lambda e: (e.selector, e.context) == ("kl", "real"), recovered_fraction=RECOVERED["some"])
    said["some, unclear"] = conclusion(changed(some, lambda e: e.context == "real", excess_gain_nats=UNCLEAR))
    said["not few"] = conclusion(changed(passed, lambda e: True, mean_tokens=9.0))
    said["of groups"] = conclusion(replace(passed, unit="sentence"))
    said["of entries"] = conclusion(replace(passed, setup=replace(passed.setup, visibility="contextual")))
    assert json_lines(said) == snapshot


def test_fewer_selectors_windows_and_ks(run: Measurement, tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    def of(*names: str) -> Measurement:
        return run.restrict_selectors({name: name for name in names})

    flat = load_of(tmp_path / "flat", replace(PLANTED["run"], num_documents=52, draws=1))
    flat.windows[["kl_short_nats", "null_kl_short_nats"]] = 0.0
    flat.divergences[:] = 0.0
    some = {
        "random alone": of("random"),
        "without random": of("unmask-one", "kl"),
        "one that sees the target": of("unmask-one", "random"),
        "greedy and nearest": of("greedy", "nearest", "random"),
        "few windows": run.restrict(slice(0, 40)),
        "all tokens": load_of(tmp_path / "all", replace(PLANTED["run"], num_documents=52, ks=[16], seed=11)),
        "many k": load_of(tmp_path / "many", replace(PLANTED["run"], num_documents=52, ks=MANY, context=LONG, seed=14)),
        "no reaction": flat,
        "one document": run.restrict((run.windows["doc_id"] == run.windows["doc_id"].iloc[3]).to_numpy()),
        "longer rows": load_of(tmp_path / "longer", replace(PLANTED["run"], num_documents=51, context=LONGER, seed=13)),
    }
    said = {}
    for name, measurement in some.items():
        summary, of_spectra = summarize(measurement), spectra(measurement)
        said[name] = {
            "evidence": evidence.evidence_sentences(summary), "gates": gates.gate_sentences(summary),
            "short": [gates.gate_words(summary, short=True), gates.beyond_gate_words(summary, short=True)],
            "spectrum": spectrum.spectrum_sentences(of_spectra, summary), "all": units.all_tokens_words(summary),
            "selection": selection.selection_words(summary) if summary.seeing_selectors else "",
            "lengths": setup.length_words(summary.lengths), "ks": units.shown_ks_words(summary),
        }  # fmt: skip
    assert json_lines(said) == snapshot


MANY, LONG = [1, 2, 4, 8, 16], {**PLANTED["run"].context, "full_len": 75, "num_long_range": 64, "max_position": 80}
LONGER = {**PLANTED["run"].context, "train_len": 33, "num_chunks": 1}


def load_of(folder: Path, planted: Planted) -> Measurement:
    return load(write(folder, planted))


def test_gates_that_lie_elsewhere(passed: Summary, snapshot: SnapshotAssertion) -> None:
    fragile = replace(passed, long_gain_nats=Estimate(0.21, 0.02, 0.4, 0.09), is_fragile=True)
    failed = replace(passed, beyond_gate="failed", gain_beyond_nats=UNCLEAR)
    said = {
        "fragile": [*gates.gate_sentences(fragile), *evidence.evidence_sentences(fragile)[1:4]],
        "fragile beside another": gates.gates_of_models_words({"a": fragile, "b": passed}),
        "failed beyond": [*gates.gate_sentences(failed), *conclusion(failed)],
        "harm": evidence.value_words(replace(passed, null_long_gain_nats=BELOW, long_gain_nats=BELOW)),
        "no cost": gates.gap_words(replace(passed, gap_cost_nats=BELOW)),
        "placebo above": selection.selection_words(changed(passed, lambda e: e.context == "null", corrected_gain_nats=ABOVE)),
        "optimism of random": selection.selection_words(changed(passed, lambda e: e.selector == "random", optimism_nats=BELOW)),
    }  # fmt: skip
    assert json_lines(said) == snapshot


def test_needs(snapshot: SnapshotAssertion, tmp_path: Path) -> None:
    """How many tokens most targets need, where the choice or the suffix suffices sooner or later."""
    planted = Planted(60, {"kl": 0.3, "nearest": 0.1, "random": 0.05}, [1, 2, 4, 8], PLANTED["run"].context, seed=21)
    measurement = load_of(tmp_path / "needs", planted)
    said = {}
    for name, (chosen, near, is_clear) in {
        "near": (1, 2, True), "sparse": (2, 9, True), "sparse and near": (2, 8, True), "not sparse": (8, 9, True),
        "unclear": (2, 8, False),
    }.items():  # fmt: skip
        measurement.windows["kl_short_nats"] = 0.9
        for selector, need in (("kl", chosen), ("nearest", near), ("random", 8)):
            for k in (1, 2, 4, 8):
                enough = k >= need
                measurement.divergences[selector, "real", k] = 0.0 if enough else 0.9
                if not is_clear and selector == "nearest" and k == 4:
                    measurement.divergences[selector, "real", k] = np.where(
                        np.arange(len(measurement.windows)) % 16 != 3, 0.0, 0.9
                    )
        summary = summarize(measurement)
        said[name] = spectrum.spectrum_sentences(spectra(measurement), summary)
        said[f"{name}, few windows"] = spectrum.spectrum_sentences(
            spectra(measurement.restrict(slice(0, 30))), summary
        )[1]
    assert json_lines(said) == snapshot


@pytest.mark.parametrize(
    "named",
    [
        "runs/run others/weaker/influence/measured-a",
        "others/weaker/influence/measured-a:unmask-one runs/run:kl",
        "runs/stated runs/words runs/gap",
        "runs/failed runs/run",
        "runs/run:random runs/run:kl",
        "runs/gap runs/failed",
    ],
)
def test_comparisons(
    named: str, work: Path, siblings: None, snapshot: SnapshotAssertion, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(work)
    compared = compare(read_subjects(named.split()))
    assert [*comparison.differences_sentences(compared), *comparison.pairings_words(compared)] == snapshot


def test_verdicts(snapshot: SnapshotAssertion) -> None:
    estimates: list[Optional[Estimate]] = [None, Estimate(0.1), Estimate(0.0, 0.0, 0.0, 0.0), ABOVE, BELOW, UNCLEAR]
    said = [[numbers.verdict(of), numbers.interval(of), numbers.percent(of)] for of in estimates]
    said += [[numbers.against_zero(of)] for of in estimates if of is not None]
    said += [
        [numbers.no_interval_words("R", number), numbers.no_interval_words("D(k)", number, at_least=50)]
        for number in (49, 50, 299, 300, 2999)
    ]
    for unit, visibility in product(("token", "word", "sentence", "block:16", "block:1"), VISIBILITIES):
        counted = [units.counted_words(unit, visibility, k) for k in (1, 8)]
        said += [[*counted, units.unit_definition(unit, visibility)]]
    said += [[synthetic_tasks.learned_words(learned, 3) for learned in (0, 1, 3)]]
    said += [[*setup.NULL_WORDS.values()]]
    assert json_lines(said) == snapshot


def test_differences_of_setups(passed: Summary, snapshot: SnapshotAssertion) -> None:
    """Each in one thing."""
    plain = ModelSetup(model=None, visibility="hidden", anchor=None, anchor_check=None)
    others = {
        name: ModelSetup.from_manifest({**of.manifest, "influence": of.influence})
        for name, of in PLANTED.items()
        if name != "gap" and name != "failed"
    }
    assert [comparison.setup_differences(plain, other) for other in others.values()] == snapshot
    model = others["words"].model
    assert model is not None
    others["other type"] = replace(others["words"], model=replace(model, dtype="float16"))
    assert comparison.setup_differences(others["words"], others["other type"]) == snapshot
    checks = [anchor_check("bos", "bos", None), anchor_check("none", "bos", "bos")]
    others |= {
        str(number): replace(plain, anchor_check=convert(check, AnchorCheck)) for number, check in enumerate(checks)
    }
    assert [setup.anchor_warning(other) for other in others.values()] == snapshot


def test_words_of_a_setting(snapshot: SnapshotAssertion) -> None:
    assert synthetic_tasks.setting_words(SETTING) == snapshot


def test_shares_of_a_ceiling(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    """Of one whose gain is fragile, of one that gains nothing, of one with too few documents."""
    said = {}
    for name, gain, noise, num_documents in (
        ("fragile", 0.042, 0.18, 120),
        ("none", 0.0, 0.05, 120),
        ("few", 0.05, 0.03, 30),
    ):
        runs = []
        for kind, row_len, of_gain in (("pose", 8, 0.02), ("ceiling", FULL, gain)):
            pose = POSE if kind == "pose" else PoseConfig(num_chunks=1, max_position=32)
            run = made_up_run(tmp_path / name / kind, row_len=row_len, pose=pose)
            losses_WN, doc_ids = made_up_losses(of_gain, num_documents=num_documents, noise=noise, seed=len(runs))
            runs.append(run)
            made_up_curve(run, losses_WN, doc_ids=doc_ids, row_len=row_len, pose=pose)
        said[name] = curves.gain_beyond_lines(compare_curves(runs))
    assert json_lines(said) == snapshot
