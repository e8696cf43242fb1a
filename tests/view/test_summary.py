"""What a measurement found: verdicts follow the intervals, and every number equals the frame, in each form and at each width."""

from __future__ import annotations

import io
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
import pytest
from unlike_tables import unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.statistics.compare import compare
from olmo_sparsity.statistics.enough import few
from olmo_sparsity.statistics.quantities import COLUMNS, QUANTITIES, pick, read_estimates, shown_ks
from olmo_sparsity.view.comparisons import comparison_table, print_comparison
from olmo_sparsity.view.console import SafeConsole, number, percent, print_table
from olmo_sparsity.view.summary import (
    answers,
    caution,
    controls,
    first_token_line,
    measured_line,
    print_summary,
    recovered_table,
    seeing_line,
    shown_selectors,
    spectrum_table,
)

MANIFEST = {
    "run": "hand", "source": "novels", "split": "validation", "visibility": "hidden", "influence": {"unit": "token"},
    "context": {"local_len": 8, "full_len": 24, "train_len": 12, "num_long_range": 16},
}  # fmt: skip
SELECTORS = [
    {"selector": name, "sees_target": name == "unmask-one", "num_evaluations": 1}
    for name in ("unmask-one", "random", "kl", "nearest")
]
SIDES = {"above": (0.02, 0.06), "below": (-0.06, -0.02), "unclear": (-0.01, 0.05), "too few": (np.nan, np.nan)}
FEW, ALMOST = {1: (0.6, 0.8), 4: (0.7, 0.9)}, {1: (0.6, 0.7), 4: (0.93, 0.97)}
Interval = tuple[float, float]


def measured(
    gate: str = "above", beyond: str = "above", long: Interval = (0.02, 0.06), share: dict[int, Interval] = FEW,
    over_random: Interval = (0.01, 0.03), excess: Interval = (0.02, 0.06), damping: Interval = (-0.01, 0.05),
    spectrum: dict[int, Interval] = ALMOST, of_random: Interval = (0.50, 0.60), selectors: Any = SELECTORS, **manifest: Any,
) -> pd.DataFrame:  # fmt: skip
    """A frame by hand in which `kl` gives back ``share`` of the gain at each k, and suffices for ``spectrum`` of the targets."""
    rows = [("gate_gain_nats", SIDES[gate]), ("gain_beyond_nats", SIDES[beyond])]
    rows += [
        ("long_gain_nats", long if gate == "above" else SIDES[gate]),
        ("spectrum_share", (0.3, 0.4), "kl", 0, 0.05),
    ]
    for k in share:
        rows += [("gain_sparse_nats", (0.01, 0.02), name, k) for name in ("kl", "random")]
        rows += [("gain_over_random_nats", over_random, "kl", k), ("excess_over_random_nats", excess, "kl", k)]
        rows += [("gain_over_damping_nats", damping, "kl", k), ("expected_gain_nats", (0.005, 0.027), "kl", k)]
        rows.append(("spectrum_share", spectrum.get(k, (0.6, 0.7)), "kl", k, 0.05))
        rows += [("spectrum_share", of_random, name, k, 0.05) for name in ("random", "nearest")]
        if gate == "above":
            rows += [("recovered_fraction", share[k], "kl", k), ("recovered_fraction", (0.2, 0.24), "random", k)]
    frame = pd.DataFrame([row_of(*row) for row in rows]).reindex(columns=COLUMNS)
    frame = frame.astype({"k": "Int64", "x": float, "group": object})
    for name in ("selector", "context", "group"):
        frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    frame.attrs = {"manifest": {**MANIFEST, **manifest}, "num_units": 16, "selectors": selectors}
    return frame


def row_of(
    quantity: str, interval: Interval, selector: Optional[str] = None, k: Optional[int] = None, x: float = np.nan
) -> dict[str, Any]:
    value = 0.04 if np.isnan(interval[0]) else sum(interval) / 2
    of = {"quantity": quantity, "selector": selector, "context": selector and "real", "k": k, "x": x, "value": value}
    return {**of, "low": interval[0], "high": interval[1], "n_windows": 2345, "n_documents": 678}


def floats(text: str) -> list[float]:
    return [float(of) for of in re.findall(r"-?\d+(?:\.\d+)?", text)]


def verdicts(frame: pd.DataFrame) -> list[str]:
    return [answer.verdict for answer in answers(frame)]


# --- verdicts


@pytest.mark.parametrize(
    ("side", "verdict"), [("above", "YES"), ("below", "NO"), ("unclear", "NOT SHOWN"), ("too few", "TOO FEW DOCUMENTS")]
)
def test_the_long_context_helps_only_if_the_whole_interval_is_above_zero(side: str, verdict: str) -> None:
    frame = measured(gate=side, beyond=side)
    assert verdicts(frame)[:2] == [verdict, verdict] and ("YES" in verdicts(frame)) == (side == "above")
    low, high = SIDES[side]
    expected = [0.04] if np.isnan(low) else [(low + high) / 2, low, high]
    for answer in answers(frame)[:2]:
        assert floats(answer.number) == pytest.approx(expected)
    if side in ("below", "unclear"):  # there is no gain that few tokens could give back
        assert verdicts(frame)[2:] == ["DOES NOT APPLY"] * 2 and not floats(caution(frame, few(frame)[0]))


def test_the_number_is_the_long_gain_and_the_verdict_is_of_the_gate() -> None:
    """The 100% of R(k); where a gap costs something, what is left without it has its own number."""
    answer = answers(measured(long=(0.03, 0.07)))[0]
    assert floats(answer.number) == [0.05, 0.03, 0.07] and floats(answer.sentence)[-3:] == [0.04, 0.02, 0.06]
    assert floats(answers(measured())[0].sentence) == [24, 8]


RECOVERED, GAINS = ((0.51, 0.7), (0.45, 0.7), (0.2, 0.3)), (SIDES["above"], SIDES["unclear"], SIDES["below"])


@pytest.mark.parametrize(("share", "over_random", "excess"), itertools.product(RECOVERED, GAINS, GAINS))
def test_few_tokens_are_enough_on_average_only_if_three_intervals_say_so(
    share: Interval, over_random: Interval, excess: Interval
) -> None:
    """They give back half of the gain, choosing them beats random tokens, and by more than in the null context."""
    is_enough = share[0] > 0.5 and over_random[0] > 0 and excess[0] > 0
    is_less = share[1] < 0.5 or over_random[1] < 0 or excess[1] < 0
    answer = answers(measured(share={1: share}, over_random=over_random, excess=excess))[2]
    assert answer.verdict == ("YES" if is_enough else "NO" if is_less else "NOT SHOWN")
    assert floats(answer.number) == pytest.approx([round(50 * sum(share)), *(round(100 * end) for end in share)], abs=1)


@pytest.mark.parametrize(
    ("shares", "k", "verdict"),
    [
        ({1: (0.1, 0.3), 2: (0.55, 0.7), 4: (0.7, 0.9), 8: (0.9, 0.99)}, 2, "YES"),  # the smallest that is enough
        ({1: (0.1, 0.3), 4: (0.3, 0.45), 8: (0.9, 0.99)}, 4, "NO"),  # half of all tokens are not few
        ({8: (0.9, 0.99)}, None, "DOES NOT APPLY"),
    ],
)
def test_few_tokens_are_never_many(shares: dict[int, Interval], k: Optional[int], verdict: str) -> None:
    answer = answers(measured(share=shares))[2]
    assert answer.verdict == verdict and (k is None or floats(answer.sentence)[0] == k)


def test_the_number_of_few_tokens_is_that_of_its_question() -> None:
    assert few(measured()) == (1, "above") and few(measured(), of_targets=True) == (4, "above")


@pytest.mark.parametrize(
    ("share", "of_random", "verdict"),
    [
        ((0.91, 0.95), (0.5, 0.6), "YES"),
        ((0.85, 0.89), (0.5, 0.6), "NO"),
        ((0.89, 0.95), (0.5, 0.6), "NOT SHOWN"),  # of nine in ten, perhaps
        ((0.91, 0.95), (0.89, 0.92), "NOT SHOWN"),  # random tokens may be as good
        ((np.nan, np.nan), (np.nan, np.nan), "TOO FEW DOCUMENTS"),
    ],
)
def test_few_tokens_are_enough_target_by_target(share: Interval, of_random: Interval, verdict: str) -> None:
    assert verdicts(measured(spectrum={1: share, 4: share}, of_random=of_random))[3] == verdict


def test_what_was_not_measured_has_no_answer() -> None:
    frame = measured()
    without = frame[~frame["quantity"].isin(["gain_over_random_nats", "excess_over_random_nats"])]
    for answer in (answers(frame[frame["quantity"] != "gain_beyond_nats"])[1], answers(without)[2]):
        assert (answer.verdict, answer.number) == ("DOES NOT APPLY", "")
    assert "Null context: not measured." in caution(without, 4)
    assert len(answers(frame[frame["quantity"] != "spectrum_share"])) == 3  # means over seeds
    seeing = [{**of, "sees_target": of["selector"] not in ("random", "nearest")} for of in SELECTORS]
    assert verdicts(measured(selectors=seeing))[2:] == ["DOES NOT APPLY"] * 2
    assert spectrum_table(measured(selectors=seeing)).iloc[:, 0].tolist() == ["random", "nearest"]
    no_choice, no_gain = (answers(of)[2].sentence for of in (measured(selectors=seeing), measured(gate="unclear")))
    assert "selector" in no_choice and "selector" not in no_gain


def test_random_tokens_none_and_blending_are_compared_with_in_the_sentences() -> None:
    on_average, of_targets = answers(measured())[2:]
    assert floats(on_average.sentence)[-2:] == [22, 40]  # 0.016 of 0.04 nats
    assert {55, 35} <= set(floats(of_targets.sentence))


def test_the_caution_holds_both_controls_with_their_intervals() -> None:
    texts = set()
    for side in ("above", "below", "unclear"):
        frame = measured(damping=SIDES[side], excess=(0.02, 0.08))
        text = caution(frame, few(frame)[0])
        assert floats(text) == pytest.approx([sum(SIDES[side]) / 2, *SIDES[side], 0.05, 0.02, 0.08])
        texts.add(re.sub(r"-?[\d.]+", "", text))
    assert len(texts) == 3
    enough = controls(measured().assign(n_documents=50), "kl", 1)[-1]
    assert enough == ("Documents", "passed", "50 documents; intervals need 50.")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ((0.0714, 0.0629, 0.0801, 3), "0.071 [0.063, 0.080]"),
        ((-0.00049, -0.0106, 0.00962, 2), "0.00 [-0.01, 0.01]"),
        ((-2.0, np.nan, np.nan, 0), "-2"),
    ],
)
def test_numbers(given: tuple[float, float, float, int], written: str) -> None:
    assert number(dict(zip(("value", "low", "high"), given, strict=False)), given[3]) == written


def test_a_row_has_digits_of_its_own() -> None:
    share, gain = (row_of(name, (0.8512, 0.9822)) for name in ("recovered_fraction", "gain_sparse_nats"))
    assert (number(share), number(gain), percent(share)) == (
        "0.92 [0.85, 0.98]",
        "0.917 [0.851, 0.982]",
        "92% [85, 98]",
    )


@pytest.mark.parametrize(
    ("unit", "visibility", "words"),
    [("word", "hidden", "16 words"), ("block:4", "hidden", "16 blocks of 4"), ("token", "contextual", "16 entries")],
)
def test_k_counts_what_was_unmasked_and_the_first_line_says_what_was_measured(
    unit: str, visibility: str, words: str
) -> None:
    frame = measured(influence={"unit": unit}, visibility=visibility)
    assert words in answers(frame)[2].sentence
    line = measured_line(frame.attrs["manifest"], frame)
    assert all(part in line for part in ("hand", "novels", "2,345", "678", "8 local", "16 earlier", "12"))
    scaled = {"name": "a/b", "revision": "main", "rope_scaling": "yarn:2"}
    for model, name in ((scaled, "a/b yarn:2"), ({"name": "/models/b"}, "b")):
        assert measured_line({**frame.attrs["manifest"], "model": model}, frame).startswith(f"{name}: ")


@pytest.mark.parametrize(
    ("chosen", "lower_with", "better"),
    [("bos", "none", "none"), ("none", "bos", "bos"), ("bos", "bos", ""), ("bos", None, "")],
)
def test_a_better_first_token_is_said(chosen: str, lower_with: Optional[str], better: str) -> None:
    check = {"chosen": chosen, "text": "<s>", "lower_with": {"short": None, "long": lower_with}}
    assert first_token_line({"fit": {"anchor": check}}).rpartition("=")[2] == better
    assert not first_token_line({})


# --- what is printed


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two measurements of the same windows."""
    folder, made = tmp_path_factory.mktemp("tables"), []
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
    assert len(lines) <= 30 and max(map(len, lines)) <= 80


def test_both_tables_have_the_numbers_of_the_frame(frame: pd.DataFrame) -> None:
    ks, of_rows = shown_ks(frame), ("kl", "kl", "random", "nearest")
    recovered, spectrum = recovered_table(frame), spectrum_table(frame)
    for name, (label, *cells) in zip(shown_selectors(frame), recovered.to_numpy().tolist(), strict=True):
        assert label.startswith(name) and ("sees target" in label) == (name == "unmask-one")
        rows = [pick(frame, "recovered_fraction", selector=name, context="real", k=k) for k in ks]
        assert cells == [percent(row) for row in rows] and all(floats(cell) for cell in cells)
    for name, (label, *cells) in zip(of_rows, spectrum.to_numpy().tolist(), strict=True):
        context = "null" if "null context" in label else "real"
        rows = [pick(frame, "spectrum_share", selector=name, context=context, k=k, x=0.05) for k in (0, *ks)]
        assert cells == [percent(row) for row in rows] and label.startswith(name)
    assert spectrum.iloc[:, 0].str.contains("null context").tolist() == [False, True, False, False]


def test_luck_is_taken_off_the_gain_where_it_was_measured(frame: pd.DataFrame) -> None:
    names = ("gain_sparse_nats", "optimism_nats", "corrected_gain_nats")
    rows = [pick(frame, name, selector="unmask-one", context="real", k=3) for name in names]
    gain, luck, left = [row for row in rows if row is not None]
    expected = [3, gain["value"], luck["value"], left["value"], left["low"], left["high"]]
    assert floats(seeing_line(frame, 3).replace(" - ", " ")) == pytest.approx(expected, abs=6e-4)
    assert not seeing_line(frame[frame["quantity"] != "optimism_nats"], 3)


def test_many_k_are_thinned_from_the_first_to_the_last(frame: pd.DataFrame) -> None:
    rows = [{**frame[frame["quantity"] == "gain_sparse_nats"].iloc[0], "k": k} for k in range(1, 40)]
    many = pd.concat([frame, pd.DataFrame(rows).astype({"k": "Int64"})], ignore_index=True)
    many.attrs = {**frame.attrs, "num_units": 128}
    header = list(recovered_table(many).columns)
    assert (header[1], header[-1], len(header)) == ("k = 1", "k = 32", 4)


def test_json_and_csv_are_the_frame(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, frame, form="json"), parse_constant=pytest.fail)
    assert found["estimates"] == frame.astype(object).where(frame.notna(), None).to_dict("records")
    assert found["manifest"] == frame.attrs["manifest"] and len(found["answers"]) == 4
    text = io.StringIO(printed(capsys, frame, form="csv"))
    table = pd.read_csv(text, keep_default_na=False, na_values=[""], float_precision="round_trip")
    assert list(table.columns) == list(frame.columns)
    for name in frame.columns:
        assert table[name].dropna().tolist() == frame[name].dropna().tolist()


@pytest.mark.parametrize("every", [False, True])
def test_markdown_and_latex_hold_the_same_cells(
    every: bool, frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    md, tex = (printed(capsys, frame, form=form, every=every) for form in ("md", "tex"))
    rows = [line.strip("|").split("|") for line in md.splitlines() if line.startswith("|") and "---" not in line]
    in_tex = [line.removesuffix(r"\\").replace("\\", "").split("&") for line in tex.splitlines() if "&" in line]
    assert [[cell.strip() for cell in row] for row in rows] == [[cell.strip() for cell in row] for row in in_tex]
    assert tex.count(r"\toprule") == tex.count(r"\bottomrule") > 1 and len(rows) > (len(frame) if every else 6)


def test_every_prints_each_number_once(
    frame: pd.DataFrame, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    found = [re.split(r" {2,}", line.strip()) for line in printed(capsys, frame, every=True).splitlines()]
    for row in frame.to_dict("records"):
        keys = [row[name] for name in ("group", "selector", "context", "k", "x")]
        texts = [f"{key:g}" if isinstance(key, float) else str(key) for key in keys if not pd.isna(key)]
        assert found.count([row["quantity"], *texts, number(row)]) == 1


def test_names_of_others_reach_no_terminal(frame: pd.DataFrame, capsys: pytest.CaptureFixture[str]) -> None:
    hostile, name = frame.copy(), "k\x1b[31m[bold]|\n"
    hostile["selector"] = hostile["selector"].replace({"kl": name})
    selectors = [
        {**of, "selector": {"kl": name}.get(of["selector"], of["selector"])} for of in frame.attrs["selectors"]
    ]
    manifest = {**frame.attrs["manifest"], "run": "r\x1b]8;;x\x07:smiley:"}
    hostile.attrs = {**frame.attrs, "selectors": selectors, "manifest": manifest}
    for form, every in itertools.product(("text", "md", "tex", "csv"), (False, True)):
        out = printed(capsys, hostile, form=form, every=every)
        assert all(character.isprintable() or character == "\n" for character in out)
    assert all(part in printed(capsys, hostile) for part in ("[bold]", ":smiley:"))


@pytest.mark.parametrize(("width", "lines"), [(12, ["ab  1 [0, 2]"]), (11, ["ab  1", "    [0, 2]"])])
def test_intervals_go_below_their_values_only_where_a_table_is_too_wide(width: int, lines: list[str]) -> None:
    file = io.StringIO()
    print_table(pd.DataFrame({"a": ["ab"], "b": ["1 [0, 2]"]}), SafeConsole(file=file, width=width))
    assert [line.rstrip() for line in file.getvalue().splitlines()[1:]] == lines


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_comparison_keeps_all_its_numbers_at_any_width(
    width: int, folders: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    comparison = compare(*map(str, folders))
    print_comparison(comparison)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width and "…" not in out
    for cells in comparison_table(comparison).to_numpy().tolist():
        assert all(part in out for part in " ".join(cells[1:]).split())


def test_a_comparison_has_the_rows_of_its_frame(folders: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Of a selector that sees the target only the corrected gain is shown, unless every number is asked for."""
    comparison = compare(*map(str, folders))
    table = comparison_table(comparison, every=True)
    for cells, row in zip(table.to_numpy().tolist(), comparison.frame.to_dict("records"), strict=True):
        for cell, of in zip(cells[1:], ("a", "b", "difference"), strict=True):
            ends = {end: row[f"{end}_{of}"] for end in ("value", "low", "high")}
            assert cell == ("" if pd.isna(ends["value"]) else number(ends, QUANTITIES[row["quantity"]].digits))
    main = comparison_table(comparison)["quantity"]
    (seeing,) = main[main.str.contains("unmask-one")]
    assert "corrected gain" in seeing and main.str.contains("R(k), kl, k = 1", regex=False).sum() == 1
    unknown = replace(comparison, frame=comparison.frame.assign(value_difference=np.nan))
    assert set(comparison_table(unknown).iloc[:, -1]) == {""}
    print_comparison(replace(comparison, has_same_tokens=False))
    assert "The tokenizers differ" in capsys.readouterr().out
    print_comparison(comparison, as_json=True)
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["estimates"] == comparison.frame.astype(object).where(comparison.frame.notna(), None).to_dict(
        "records"
    )
    assert found["labels"] == ["run0", "run1"] and found["is_paired"]
