"""Each cell of each table has the number that its row and the head of its column name; no two numbers are alike."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

import pytest
from made_up import made_up_tables
from numbered import numbered, numbered_summary

from olmo_sparsity.records.selectors import MAIN_SELECTORS
from olmo_sparsity.statistics.inside_and_beyond import InARow, InsideAndBeyond, MinusReference, Twin
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.comparison import ComparedSubject, Comparison, ComparisonRow
from olmo_sparsity.statistics.several.hypothesis import (
    THIRDS,
    Analysis,
    Contrasts,
    SparsityAndGain,
    ThirdOfTargets,
)
from olmo_sparsity.statistics.several.seed_summary import SeedSummary
from olmo_sparsity.statistics.several.trained_models import TrainedModel
from olmo_sparsity.statistics.single.breakdowns import ClassContrast, ClassSummary
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.statistics.synthetic import Setting
from olmo_sparsity.view import console
from olmo_sparsity.view.hypothesis import thirds_table
from olmo_sparsity.view.inside_and_beyond import accuracy_table, reference_table
from olmo_sparsity.view.result_table import Cell, ResultTable
from olmo_sparsity.view.seed_table import seed_table
from olmo_sparsity.view.summary_tables import (
    blind_table,
    class_spectrum_table,
    class_table,
    every_selection_table,
    every_spectrum_table,
    figure4_table,
    loss_table,
    selection_table,
    spectrum_table,
)
from olmo_sparsity.wording.numbers import FRAGILE

Row = dict[str, Cell]
SELECTORS = (*MAIN_SELECTORS, "greedy")
# The head of each column of quantities of a selection, and the field that it shows.
OF_SELECTION = {
    "sparse gain, nats": "gain_sparse_nats",
    "R(k)": "recovered_fraction",
    "gain over random, nats": "gain_over_random_nats",
    "excess gain, nats": "excess_gain_nats",
    "optimism, nats": "optimism_nats",
    "corrected gain, nats": "corrected_gain_nats",
    "D(k)": "prediction_recovered",
    "share of targets that need at most k (0.05 nats)": "sufficient_share",
}
OF_WINDOWS = {
    "L_short": "loss_short_nats",
    "L_short without the gap": "loss_short_no_gap_nats",
    "cost of the gap: L_short - L_short without the gap": "gap_cost_nats",
    "loss with the last 14 tokens, as many as a training row has": "loss_train_len_nats",
    "loss with the last 14 tokens without the gap": "loss_train_len_no_gap_nats",
    "L_long": "loss_long_nats",
    "long gain: L_short - L_long": "long_gain_nats",
    "gain at the gate: L_short with or without the gap, whichever is lower, - L_long": "gate_gain_nats",
    "gain beyond the training row: loss with the last 14 tokens, with or without the gap, whichever is lower, - L_long": (
        "gain_beyond_nats"
    ),
    "long gain, null context": "null_long_gain_nats",
    "value of the content: real - null": "content_gain_nats",
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_tables(tmp_path_factory.mktemp("columns") / "tables", gain_beyond=0.2, selectors=SELECTORS)


@pytest.fixture(scope="module")
def measured(tables: Path) -> Measured:
    return Measured.read(tables)


@pytest.fixture(scope="module")
def values() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture(scope="module")
def summary(measured: Measured, values: Iterator[int]) -> Summary:
    return numbered_summary(measured.summary, values, unit="block:3")


def rows_of(table: ResultTable) -> list[Row]:
    """Return the cells of each row by the head of their column."""
    heads = [column.header for column in table.columns]
    assert len(set(heads)) == len(heads)
    return [dict(zip(heads, row, strict=True)) for row in table.rows]


def shows(cell: Cell, estimate: Optional[Estimate]) -> bool:
    """Return whether a cell holds an estimate, as numbers and in its text; a dash for None."""
    if estimate is None:
        return cell == Cell("-")
    same = (cell.value, cell.low, cell.high) == (estimate.mean, estimate.low, estimate.high)
    return same and cell.text.startswith(f"{estimate.mean:.2f}")


def test_losses_have_their_names(summary: Summary) -> None:
    rows = rows_of(loss_table(summary))
    assert [row["quantity"].text for row in rows] == list(OF_WINDOWS)
    for row, name in zip(rows, OF_WINDOWS.values(), strict=True):
        assert shows(row["mean, nats"], getattr(summary, name)), name


def test_every_selection_has_each_quantity_under_its_name(summary: Summary) -> None:
    rows = rows_of(every_selection_table(summary))
    for row, of in zip(rows, summary.selections, strict=True):
        assert [row[name].text for name in ("selector", "context", "k")] == [of.selector, of.context, str(of.k)]
        assert row["tokens of J_k"].text == f"{of.mean_tokens:.1f}"
        assert list(row)[4:] == list(OF_SELECTION)
        for head, name in OF_SELECTION.items():
            assert shows(row[head], getattr(of, name)), head


def test_figure_4_has_each_slope_under_its_name(summary: Summary) -> None:
    heads = {"correlation": "correlation", "OLS slope": "ols_slope", "TLS slope": "tls_slope"}
    rows = rows_of(figure4_table(summary))
    for row, of in zip(rows, summary.selections, strict=True):
        assert [row[name].text for name in ("selector", "context", "k")] == [of.selector, of.context, str(of.k)]
        assert all(shows(row[head], getattr(of.figure4, name)) for head, name in heads.items())


def test_the_headline_has_each_number_under_its_name(summary: Summary) -> None:
    rows = rows_of(blind_table(summary))
    assert [(row["selector"].text, row["k"].text) for row in rows] == [
        (name, str(k)) for name in ("kl", "attention") for k in summary.shown_ks
    ]
    for row in rows:
        name, k = row["selector"].text, int(row["k"].text)
        of = summary.at(name, "real", k)
        assert row["tokens of J_k"].text == f"{of.mean_tokens:.1f}" and row["cost"].value == of.info.num_evaluations
        assert {head: shows(row[head], estimate) for head, estimate in {
            "gain over random, nats": of.gain_over_random_nats,
            "R(k)": of.recovered_fraction,
            "D(k)": of.prediction_recovered,
            "D(k) random": summary.at("random", "real", k).prediction_recovered,
            "D(k) null context": summary.at(name, "null", k).prediction_recovered,
        }.items()} == dict.fromkeys(list(row)[4:], True)  # fmt: skip


def test_what_selection_does_has_each_number_under_its_name(summary: Summary) -> None:
    *rows, of_all = rows_of(selection_table(summary))
    assert [(row["selector"].text, row["k"].text) for row in rows] == [
        (name, str(k)) for name in ("unmask-one", "greedy", "random") for k in summary.shown_ks
    ]
    for row in rows:
        name, k = row["selector"].text, int(row["k"].text)
        of, null = summary.at(name, "real", k), summary.at(name, "null", k)
        assert row["tokens of J_k"].text == f"{of.mean_tokens:.1f}" and row["cost"].value == of.info.num_evaluations
        assert {head: shows(row[head], estimate) for head, estimate in {
            "sparse gain, nats": of.gain_sparse_nats,
            "optimism, nats": of.optimism_nats,
            "corrected gain, nats": of.corrected_gain_nats,
            "placebo, nats": null.corrected_gain_nats,
        }.items()} == dict.fromkeys(list(row)[4:], True)  # fmt: skip
    assert [cell.text for cell in of_all.values()][:4] == ["all tokens", "all", "12.0", "0"]
    expected = ("long_gain_nats", "optimism_all_nats", "corrected_gain_all_nats", "null_long_gain_nats")
    assert all(
        shows(cell, getattr(summary, name)) for cell, name in zip(list(of_all.values())[4:8], expected, strict=True)
    )


def test_classes_have_each_number_under_its_name(summary: Summary, measured: Measured, values: Iterator[int]) -> None:
    classes = [
        ClassSummary(
            name, numbered(values), numbered_summary(measured.summary, values, gate=gate, is_fragile=name == "repeat"),
            ClassContrast(numbered(values), next(values), numbered(values), numbered(values)) if name == "repeat" else None,
        )
        for name, gate in (("repeat", "passed"), ("other", "failed"))
    ]  # fmt: skip
    whole = dataclasses.replace(summary, unit="token")
    first, last = whole.end_ks
    for row, of in zip(rows_of(class_table(classes, whole)), classes, strict=True):
        kl = {k: of.summary.at("kl", "real", k) for k in (first, last)}
        seeing = {k: of.summary.at("unmask-one", "real", k) for k in (first, last)}
        assert (row["class of target"].text, row["gate"].text) == (of.target_class, of.summary.gate)
        assert row["windows"].value == of.summary.num_windows
        expected = {"long gain, nats": of.summary.long_gain_nats}
        expected["same rule on null context, nats"] = of.contrast and of.contrast.null_gain_nats  # type: ignore[assignment]
        expected["other targets, null context, nats"] = of.contrast and of.contrast.null_others_gain_nats  # type: ignore[assignment]
        for k in (first, last):
            expected[f"kl over random, k = {k}, nats"] = kl[k].gain_over_random_nats  # type: ignore[assignment]
            expected[f"kl R({k})"] = kl[k].recovered_fraction  # type: ignore[assignment]
            expected[f"unmask-one corrected gain, k = {k}, nats"] = seeing[k].corrected_gain_nats  # type: ignore[assignment]
        assert {head: shows(row[head], estimate) for head, estimate in expected.items()} == dict.fromkeys(
            expected, True
        )
        marked = {head for head, cell in row.items() if cell.text.endswith(FRAGILE)}
        assert marked == ({head for head in row if " R(" in head} if of.target_class == "repeat" else set())
        assert len(row) == len(expected) + 3


def test_spectra_have_each_number_under_its_name(measured: Measured) -> None:
    spectra, summary = measured.spectra, measured.summary
    for row in rows_of(spectrum_table(spectra, summary)):
        for context, words in (("real", ""), ("null", ", null context")):
            spectrum = spectra.of(row["family"].text, context)
            assert spectrum is not None
            for share in (0.5, 0.8, 0.9):
                k, cell = spectrum.reaching(share), row[f"{share:.0%}{words}"]
                assert (cell.value, cell.low, cell.high) == (k.value, k.low, k.high)
    every = rows_of(every_spectrum_table(spectra, summary))
    for row, (curve, spectrum) in zip(every, spectra.by_curve.items(), strict=True):
        named = [row[name].text for name in ("family", "context", "tolerance, nats")]
        assert named == [
            curve.family,
            curve.context,
            f"{curve.tolerance_nats:g}",
        ]
        assert row["share that needs none"].value == spectrum.shares[0].mean
        assert [row[f"{share:.0%}"].value for share in (0.5, 0.8, 0.9)] == [
            spectrum.reaching(share).value for share in (0.5, 0.8, 0.9)
        ]
    of_classes = rows_of(class_spectrum_table(measured.spectra_of_classes, summary))
    assert [row["class of target"].text for row in of_classes] == list(measured.spectra_of_classes)
    for row, of in zip(of_classes, measured.spectra_of_classes.values(), strict=True):
        for head in list(row)[2:]:
            spectrum = of.of(head.removesuffix(", 90%"))
            assert spectrum is not None and row[head].value == spectrum.reaching(0.9).value
            assert row["share that needs none"].value == spectrum.none_needed.mean
    assert len({row["share that needs none"].value for row in of_classes}) == 4


@pytest.fixture(scope="module")
def by_sparsity(values: Iterator[int]) -> list[SparsityAndGain]:
    return [
        SparsityAndGain(
            Analysis(f"way {number}"), "a", "b", False, 77,
            tuple(ThirdOfTargets(third, *(numbered(values) for _ in range(6))) for third in THIRDS),
            Contrasts(*(numbered(values) for _ in range(5))),
        )
        for number in range(2)
    ]  # fmt: skip


def test_thirds_have_each_number_under_its_name(by_sparsity: list[SparsityAndGain]) -> None:
    heads = {
        "sparsity": "sparsity",
        "size, nats": "reaction_nats",
        "gain, nats": "gain_nats",
        "gain, foreign text, nats": "null_gain_nats",
        "ceiling's gain, nats": "ceiling_gain_nats",
        "share of the ceiling's": "share_of_ceiling",
    }
    of = by_sparsity[0]
    *rows, contrast = rows_of(thirds_table(of, "foreign text"))
    assert [row["reaction"].text for row in (*rows, contrast)] == [*THIRDS, "sparse minus dense"]
    for row, third in zip(rows, of.thirds, strict=True):
        assert {head: shows(row[head], getattr(third, name)) for head, name in heads.items()} == dict.fromkeys(
            heads, True
        )
    for head, name in list(heads.items())[2:]:
        assert shows(contrast[head], getattr(of.contrasts, name)), head
    assert (contrast["sparsity"].text, contrast["size, nats"].text) == ("", "")


def test_accuracies_inside_and_beyond_have_each_number_under_its_name(values: Iterator[int]) -> None:
    pose, ceiling = (Setting("parity", False, "pose", 2, (3, longest), 14, modulus=4) for longest in (6, 12))
    cells = tuple(
        InsideAndBeyond(
            setting,
            12,
            k,
            (0, 1, 2),
            (1.0,) * 3,
            (0.5,) * 3,
            (0, 1)[: 3 - k],
            (0,),
            *(numbered(values) for _ in range(4)),
        )
        for setting in (pose, ceiling)
        for k in (1, 2)
    )
    in_a_row = tuple(InARow(setting, k, numbered(values)) for setting in (pose, ceiling) for k in (1, 2))
    minus = tuple(MinusReference(pose, ceiling, 12, k, numbered(values), numbered(values)) for k in (1, 2))
    twin = Twin(6, 80, cells, in_a_row, minus)
    heads = {
        "inside": "inside",
        "beyond": "beyond",
        "beyond minus inside": "difference",
        "beyond, minus largest k of training": "beyond_minus_trained",
    }
    for row, cell, alone in zip(rows_of(accuracy_table(twin)), cells, in_a_row, strict=True):
        name = "ceiling, trained to 12 tokens" if cell.setting == ceiling else "PoSE, trained to 6 tokens"
        assert [row[head].text for head in ("trained", "tokens", "k")] == [name, "12", str(cell.k)]
        assert row["learned"].text == f"{3 - cell.k} of 3" and shows(row["in one row"], alone.right)
        assert {head: shows(row[head], getattr(cell, of)) for head, of in heads.items()} == dict.fromkeys(heads, True)
    for row, of in zip(rows_of(reference_table(twin)), minus, strict=True):
        assert [row[head].text for head in ("trained", "tokens", "k")] == ["PoSE, trained to 6 tokens", "12", str(of.k)]
        assert shows(row["beyond"], of.beyond) and shows(row["beyond minus inside"], of.difference)


def test_a_comparison_has_each_value_under_its_subject(summary: Summary, values: Iterator[int]) -> None:
    labels = ("a", "b", "c")
    subjects = tuple(ComparedSubject(label, Path(label), None, summary) for label in labels)
    rows = tuple(
        ComparisonRow(
            f"words {i}", name, selector, k, tuple(numbered(values) for _ in labels), tuple(numbered(values) for _ in labels[1:]),
            i < 2,
        )
        for i, (name, selector, k) in enumerate(
            (("long_gain_nats", None, None), ("recovered_fraction", "kl", 2), ("gain_sparse_nats", "random", 8))
        )
    )  # fmt: skip
    table = console.comparison_table(Comparison(subjects, (), rows), every=True)
    heads = [column.header for column in table.columns]
    assert heads == ["quantity", "selector", "k", "a", "b", "c", "b minus a", "verdict", "c minus a", "verdict"]
    for cells, row in zip(table.rows, rows, strict=True):
        assert [cell.text for cell in cells[:3]] == [row.words, row.selector or "", "" if row.k is None else str(row.k)]
        assert all(map(shows, cells[3:6], row.values))
        assert all(map(shows, cells[6::2], row.differences)) and [cell.text for cell in cells[7::2]] == ["higher"] * 2
    assert len(console.comparison_table(Comparison(subjects, (), rows), every=False).rows) == 2


def test_seeds_have_each_number_under_their_name(measured: Measured, values: Iterator[int]) -> None:
    mean, *of_seeds = (numbered_summary(measured.summary, values) for _ in range(3))
    of_seeds[0] = dataclasses.replace(of_seeds[0], is_fragile=True)  # the mean and the other seed are not
    model = TrainedModel((Path("a"), Path("b")), (4, 9))
    table = seed_table(SeedSummary(model, (Path("a"), Path("b")), mean, tuple(of_seeds)), every=True)
    names = {
        "gain beyond the training row, nats": "gain_beyond_nats",
        "long gain, nats": "long_gain_nats",
        **OF_SELECTION,
    }
    checked = 0
    for row in rows_of(table):
        words, selector, k = (row[head].text for head in ("quantity", "selector", "k"))
        if words not in names and words != "D(k), null":
            continue
        context = "null" if words == "D(k), null" else "real"
        for head, of in (("mean over seeds", mean), ("seed 4", of_seeds[0]), ("seed 9", of_seeds[1])):
            name = names.get(words, "prediction_recovered")
            estimate = getattr(of.at(selector, context, int(k)) if selector else of, name)
            assert row[head].value == estimate.mean and (row[head].low is None) == (head != "mean over seeds")
            digits = 2 if words.startswith(("D(k)", "R(k)")) else 4
            assert row[head].text.startswith(f"{estimate.mean:.{digits}f}")
            assert row[head].text[len(f"{estimate.mean:.{digits}f}") :].partition(" ")[0] == ""
            assert row[head].text.endswith(FRAGILE) == (head == "seed 4" and words.startswith("R(k)"))
        checked += 1
    assert checked > 20
