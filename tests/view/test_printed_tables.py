"""What commands print of a measurement: every number equals the frame, in each form and at each width."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from unlike_tables import unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.statistics.compare import compare
from olmo_sparsity.statistics.quantities import QUANTITIES, pick, read_estimates, shown_ks
from olmo_sparsity.view.tables import (
    comparison_table,
    print_comparison,
    print_summary,
    recovered_table,
    shown_selectors,
    spectrum_table,
)
from olmo_sparsity.view.text import number, percent

KEYS = ["quantity", "selector", "context", "k", "group", "x"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two measurements of the same windows."""
    folder = tmp_path_factory.mktemp("tables")
    made = []
    for seed in (0, 1):
        manifest = unlike_manifest(tokens_sha256="t", windows_sha256="w", run_id=f"r{seed}")
        run = folder / f"runs/run{seed}/influence/measured"
        run.mkdir(parents=True)
        made.append(write_rows(run, {**manifest, "run": f"run{seed}"}, unlike_rows(manifest, seed=seed)))
    return made


@pytest.fixture(scope="module")
def frame(folders: list[Path]) -> pd.DataFrame:
    return read_estimates(folders[0])


def printed(capsys: pytest.CaptureFixture[str], frame: pd.DataFrame, **options: Any) -> str:
    capsys.readouterr()
    print_summary(frame, **options)
    return capsys.readouterr().out


def test_a_summary_fits_a_screen(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = printed(capsys, frame).splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80


def test_the_table_of_selectors_has_the_numbers_of_the_frame(frame: pd.DataFrame) -> None:
    table = recovered_table(frame)
    for name, cells in zip(shown_selectors(frame), table.to_numpy().tolist(), strict=True):
        assert cells[0].startswith(name)
        assert ("sees target" in cells[0]) == (name == "unmask-one")
        for k, cell in zip(shown_ks(frame), cells[1:], strict=True):
            row = pick(frame, "recovered_fraction", selector=name, context="real", k=k)
            assert row is not None
            assert [int(of) for of in re.findall(r"-?\d+", cell)] == [
                round(100 * row[of]) for of in ("value", "low", "high")
            ]


def test_the_table_of_the_spectrum_has_the_numbers_of_the_frame(frame: pd.DataFrame) -> None:
    table = spectrum_table(frame).set_index(spectrum_table(frame).columns[0])
    for label, (name, context) in {
        "kl": ("kl", "real"),
        "kl, foreign text": ("kl", "null"),
        "nearest": ("nearest", "real"),
    }.items():
        for k in (0, *shown_ks(frame)):
            row = pick(frame, "spectrum_share", selector=name, context=context, k=k, x=0.05)
            assert table.loc[label, f"k = {k}"] == percent(row)


def test_many_k_are_thinned_from_the_first_to_the_last(frame: pd.DataFrame) -> None:
    rows = [{**frame[frame["quantity"] == "gain_sparse_nats"].iloc[0], "k": k} for k in range(1, 40)]
    many = pd.DataFrame(rows).astype({"k": "Int64"})
    many = pd.concat([frame, many], ignore_index=True)
    many.attrs = {**frame.attrs, "num_units": 128}
    header = list(recovered_table(many).columns)
    assert (header[1], header[-1], len(header)) == ("k = 1", "k = 32", 4)


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def test_json_is_the_frame(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, frame, form="json"), parse_constant=refuse)
    expected = frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert found["estimates"] == expected
    assert found["manifest"] == frame.attrs["manifest"]
    assert len(found["answers"]) == 4


def test_csv_is_the_frame(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    text = io.StringIO(printed(capsys, frame, form="csv"))
    found = pd.read_csv(text, keep_default_na=False, na_values=[""], float_precision="round_trip")
    assert list(found.columns) == list(frame.columns)
    assert found["value"].tolist() == frame["value"].tolist()
    for name in KEYS:
        assert found[name].dropna().tolist() == frame[name].dropna().tolist()


@pytest.mark.parametrize("every", [False, True])
def test_markdown_and_latex_hold_the_same_cells(
    every: bool, frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    md, tex = (printed(capsys, frame, form=form, every=every) for form in ("md", "tex"))
    rows = [line.strip("|").split("|") for line in md.splitlines() if line.startswith("|") and "---" not in line]
    in_tex = [line.removesuffix(r"\\").replace("\\", "").split("&") for line in tex.splitlines() if "&" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [[cell.strip() for cell in row] for row in in_tex]
    assert tex.count(r"\toprule") == tex.count(r"\bottomrule") > 1
    assert len(rows) > (len(frame) if every else 6)


def cells_of(line: str) -> list[str]:
    return re.split(r" {2,}", line.strip())


def test_every_prints_each_number_once(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    found = [cells_of(line) for line in printed(capsys, frame, every=True).splitlines()]
    for _, row in frame.iterrows():
        keys = [row[name] for name in ("group", "selector", "context", "k", "x")]
        texts = [f"{key:g}" if isinstance(key, float) else str(key) for key in keys if not pd.isna(key)]
        assert found.count([row["quantity"], *texts, number(row)]) == 1


def test_names_of_others_reach_no_terminal(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = frame.copy()
    name = "k\x1b[31m[bold]|\n"
    hostile["selector"] = hostile["selector"].replace({"kl": name})
    selectors = [
        {**of, "selector": name if of["selector"] == "kl" else of["selector"]} for of in frame.attrs["selectors"]
    ]
    hostile.attrs = {
        **frame.attrs,
        "selectors": selectors,
        "manifest": {**frame.attrs["manifest"], "run": "r\x1b]8;;x\x07"},
    }
    for form in ("text", "md", "tex", "csv"):
        for every in (False, True):
            out = printed(capsys, hostile, form=form, every=every)
            assert all(character.isprintable() or character == "\n" for character in out)
    assert "[bold]" in printed(capsys, hostile)


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_comparison_keeps_all_its_numbers_at_any_width(
    width: int, folders: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    comparison = compare(*map(str, folders))
    print_comparison(comparison)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    for cells in comparison_table(comparison).to_numpy().tolist():
        for part in " ".join(cells[1:]).split():
            assert part in out
    assert "…" not in out


def test_a_comparison_shows_each_number_with_its_interval(folders: list[Path]) -> None:
    comparison = compare(*map(str, folders))
    table = comparison_table(comparison, every=True)
    assert len(table) == len(comparison.frame)
    for cells, row in zip(table.to_numpy().tolist(), comparison.frame.to_dict("records"), strict=True):
        digits = QUANTITIES[row["quantity"]].digits
        for cell, of in zip(cells[1:], ("a", "b", "difference"), strict=True):
            ends = [row[f"{end}_{of}"] for end in ("value", "low", "high")]
            assert cell == ("" if pd.isna(ends[0]) else number(*ends, digits))


def test_a_comparison_by_optimism_alone_is_not_shown(folders: list[Path]) -> None:
    """Of a selector that sees the target only the corrected gain is shown, unless every number is asked for."""
    table = comparison_table(compare(*map(str, folders)))
    seeing = table["quantity"][table["quantity"].str.contains("unmask-one")]
    assert len(seeing) == 1
    assert "corrected gain" in seeing.iloc[0]
    assert table["quantity"].str.contains("R(k), kl, k = 1", regex=False).sum() == 1


def test_json_of_a_comparison_has_its_rows(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    comparison = compare(*map(str, folders))
    print_comparison(comparison, as_json=True)
    found = json.loads(capsys.readouterr().out, parse_constant=refuse)
    frame = comparison.frame
    assert found["estimates"] == frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert found["labels"] == ["run0", "run1"]
    assert found["is_paired"]
