"""The sentences about each invented measurement, also those of figures and pages, and those that few numbers reach."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from planted_lengths import LineKey, planted_needs
from planted_measurements import PLANTED
from printed_text import json_lines
from syrupy.assertion import SnapshotAssertion

from olmo_sparsity.cli.app import app
from olmo_sparsity.records.kinds import KINDS
from olmo_sparsity.records.selector import ScoringSize
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.several.spectrum_by_length import spectrum_by_length
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import SelectionKey
from olmo_sparsity.wording import captions, evidence, exploration, findings, gates, setup, spectrum, units
from olmo_sparsity.wording.spectrum_by_length import length_sentences

FLAGS = (
    "sees_target",
    "needs_attention",
    "needs_entries",
    "by_divergence",
    "is_control",
    "is_main",
    "on_request",
    "by_name_only",
)


@pytest.fixture(scope="module")
def read(work: Path) -> dict[str, Measured]:
    return {name: Measured.read(work / "runs" / name / "influence" / f"of-{name}") for name in PLANTED}


@pytest.mark.parametrize("name", PLANTED)
def test_sentences(name: str, read: dict[str, Measured], snapshot: SnapshotAssertion) -> None:
    measured = read[name]
    summary, unit, visibility = measured.summary, measured.summary.unit, measured.summary.setup.visibility
    first = next(iter(summary.blind_selectors[1:]), None)
    said = {
        "verdict": evidence.verdict_words(summary),
        "evidence": evidence.evidence_sentences(summary),
        "of another": []
        if first is None
        else [evidence.verdict_words(summary, first), *evidence.evidence_sentences(summary, first)],
        "gate": [
            gates.gate_words(summary, short=True),
            gates.beyond_gate_words(summary, short=True),
            *gates.gates_not_passed(summary),
        ],
        "reason": gates.gate_reason(summary),
        "no fraction": gates.no_fraction_words(summary.gate),
        "blind": captions.blind_caption(summary),
        "every": captions.every_caption(summary),
        "contrasts": [words for entry in measured.classes if (words := captions.contrast_words(entry))],
        "gains figure": findings.gains_finding(summary),
        "reaction figure": findings.reaction_finding(summary),
        "classes figure": findings.classes_finding(measured.classes, summary),
        "spectrum figure": spectrum.spectrum_finding(measured.spectra, summary),
        "distance figure": _distances(measured),
        "cloud figure": _cloud(measured),
        "units": [
            units.k_words(unit, visibility),
            units.unit_definition(unit, visibility),
            units.k_counts_words(summary),
        ],
        "setup": [
            summary.lengths.num_chunks and setup.short_positions_words(summary.lengths),
            setup.short_anchor_warning(summary.setup),
            setup.NULL_WORDS[summary.null_context],
        ],
    }
    assert json_lines(said) == snapshot


def _distances(measured: Measured) -> str:
    k, selector = measured.summary.end_ks[-1], measured.distances[0].selector
    return findings.distance_finding(measured.distances, measured.summary, selector=selector, k=k)


def _cloud(measured: Measured) -> str:
    summary = measured.summary
    name, k = summary.selectors[0], summary.ks[-1]
    entries = {context: summary.at(name, context, k) for context in ("real", "null")}
    assert entries["real"].key == SelectionKey(name, "real", k)
    return findings.cloud_finding(name, entries, summary)


def test_gates_of_models(read: dict[str, Measured], snapshot: SnapshotAssertion) -> None:
    of = {name: measured.summary for name, measured in read.items()}
    groups = [list(of), ["run"], ["run", "few"], ["stated"], ["words"], ["failed", "gap"]]
    assert [gates.gates_of_models_words({name: of[name] for name in group}) for group in groups] == snapshot


def test_sentences_about_one_document(snapshot: SnapshotAssertion) -> None:
    needs = {
        "none": [0, 0, 0],
        "most one": [0, 1, 1, 2],
        "half two": [0, 1, 2, 4, np.inf],
        "more": [0, np.inf, np.inf, 4],
    }
    said = [
        exploration.found_words("a.txt", np.array(k_W, dtype=float), ks=ks, selector="kl", tolerance=0.05, unit=unit)
        for k_W in needs.values()
        for ks, unit in (([1, 2, 4], ("token", "tokens")), ([1], ("word", "words")))
    ]
    assert [
        *said,
        exploration.unmeasured_words(1024, 5000),
        exploration.DOCUMENT_GATE_WORDS,
    ] == snapshot


def test_sentences_about_one_window(snapshot: SnapshotAssertion) -> None:
    losses = {"short_nats": 3.216, "long_nats": 2.104, "sparse_nats": 2.555}
    said = [findings.window_finding(target, **losses, chosen="2 tokens chosen by kl") for target in ("·river", "·")]
    assert said == snapshot


@pytest.mark.parametrize("num", [90, 20])
def test_spectrum_by_length(num: int, snapshot: SnapshotAssertion) -> None:
    rng = np.random.default_rng(3)
    grids = {128: [1, 2, 4, 8, 16, 32, 64], 256: [1, 2, 4, 8, 16, 32, 64, 128, 192]}
    lines = [LineKey(name, context) for name in ("attention", "nearest", "random") for context in ("real", "null")]
    drawn = {line: rng.choice([1, 3, 20, 60], num) for line in lines}
    is_needed, shares = rng.random(num) < 0.7, {"attention": 0.2, "nearest": 0.75, "random": 0.5}
    lengths = []
    for length, ks in grids.items():
        grows = {line: rng.random(num) < shares[line.selector] * (length > 128) for line in lines}
        needs = {line: is_needed * np.where(grows[line], 3, 1) * of for line, of in drawn.items()}
        lengths.append(planted_needs(length, needs, ks=ks))
    found = spectrum_by_length(lengths, selector="attention")
    assert [length_sentences(found, model) for model in found.models] == snapshot


def test_selectors(snapshot: SnapshotAssertion) -> None:
    """What is declared of each selector, but for what it computes."""
    size = ScoringSize(num_candidates=17, max_k=5, lasso_masks=50)
    said = {}
    for name, of in SELECTORS.items():
        unit = {"unit": "token", "units": "tokens"}
        flags = [flag for flag in FLAGS if getattr(of, flag)]
        said[name] = {
            "meaning": of.meaning.format(**unit), "definition": of.definition, "look": list(vars(of.look).values()),
            "cost": [of.cost, of.num_evaluations(size)], "flags": flags, "reads": [of.singles, of.steps, *sorted(of.needs)],
        }  # fmt: skip
    assert json_lines(said) == snapshot
    assert (
        json_lines({name: {key: str(value) for key, value in vars(kind).items()} for name, kind in KINDS.items()})
        == snapshot
    )


def test_options_of_every_command(snapshot: SnapshotAssertion) -> None:
    """The options and arguments of each command: names, what they take, what --help says of them, and their defaults."""
    from typer.main import get_command

    lines: list[str] = []

    def add(command, name: str) -> None:
        if hasattr(command, "commands"):
            for inner, sub in command.commands.items():
                add(sub, f"{name} {inner}".strip())
            return
        lines.append(f"{name}: {' '.join((command.help or '').split())}")
        for param in command.params:
            names = "/".join([*param.opts, *param.secondary_opts])
            default = "" if param.default is None or callable(param.default) else f" (default {param.default})"
            kind = "" if getattr(param, "is_flag", False) or param.metavar is None else f" {param.metavar}"
            lines.append(
                f"  {names}{kind}{' required' if param.required else ''}: {getattr(param, 'help', '')}{default}"
            )

    add(get_command(app), "")
    seen: set[str] = set()
    assert [line for line in lines if not (line in seen or seen.add(line))] == snapshot
