"""Every figure is drawn, from tables alone, with its numbers and its warnings on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from analysis import distance, figure4, figure5, recovered_fraction, style
from olmo_sparsity.statistics import Measurement, load, summarize

DRAWS = {
    "figure4": figure4.draw,
    "figure5": figure5.draw,
    "recovered-fraction": recovered_fraction.draw,
    "distance": distance.draw,
}


def words_on(figure: Figure) -> str:
    return " ".join(text.get_text().replace("\n", " ") for text in figure.findobj(lambda a: hasattr(a, "get_text")))


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures themselves, not saved."""
    kept: list[Figure] = []
    for module in (figure4, figure5, recovered_fraction, distance):
        monkeypatch.setattr(module, "save", lambda figure, out, name: kept.append(figure) or [])
    return kept


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    words: list[str] = []
    save = style.save

    def keep(figure: Figure, out: Path, name: str) -> list[Path]:
        words.append(words_on(figure))
        return save(figure, out, name)

    for module in (figure4, figure5, recovered_fraction, distance):
        monkeypatch.setattr(module, "save", keep)
    return words


@pytest.mark.parametrize("gate", ["passed", "failed"])
@pytest.mark.parametrize("name", sorted(DRAWS))
def test_figures_say_what_they_show(
    tiny_tables: Path, tmp_path: Path, captured: list[str], name: str, gate: str
) -> None:
    measurement = load(tiny_tables)
    if gate == "passed":  # the tiny model's long gain is what it is: lift it, to see the other face of the figure
        measurement.windows["gain_long_nats"] += 1.0
    summary: dict[str, Any] = summarize(measurement)
    assert summary["gate"] == gate
    paths = DRAWS[name](tiny_tables, measurement, summary, tmp_path)
    assert {path.suffix for path in paths} == {".png", ".pdf"}
    assert all(path.stat().st_size > 3000 for path in paths)
    assert len(captured) == (4 if name == "figure4" else 1)
    for words in captured:
        assert "60 windows of" in words
        assert "all 12 long-range tokens lie beyond" in words
        assert ("VALIDITY GATE FAILED" in words) == (gate == "failed")
        if name in ("figure4", "recovered-fraction"):
            assert "nats" in words
    if name == "figure4":
        entry = next(
            e for e in summary["selections"] if (e["selector"], e["context"], e["k"]) == ("unmask-one", "real", 8)
        )
        expected = "gate failed" if gate == "failed" else f"R(8) = {style.number(entry['recovered_fraction'])}"
        assert expected in captured[0]
        assert "null" in captured[0]


def test_too_few_documents_is_not_called_no_profit(tiny_tables: Path, tmp_path: Path, captured: list[str]) -> None:
    measurement = load(tiny_tables)
    few = measurement.windows["doc_id"].unique()[:10]
    windows = measurement.windows[measurement.windows["doc_id"].isin(few)]
    selections = measurement.selections[measurement.selections["window_id"].isin(windows["window_id"])]
    small = Measurement(windows, selections, measurement.facts)
    recovered_fraction.draw(tiny_tables, small, summarize(small), tmp_path)
    assert "too few documents to tell" in captured[0]
    assert "does not profit" not in captured[0]


def test_figure5_shows_the_words_and_the_losses_of_its_window(
    tiny_tables: Path, tmp_path: Path, captured: list[str]
) -> None:
    measurement = load(tiny_tables)
    figure5.draw(tiny_tables, measurement, summarize(measurement), tmp_path)
    from olmo_sparsity.tables import read_table

    window_id = int(captured[0].split("Window ")[1].split()[0])
    window = read_table(tiny_tables, "windows").to_pylist()[window_id]
    for text in [*window["token_texts"], window["target_text"]]:
        assert captured[0].count(figure5.shown(text)) >= 3
    for loss in (window["loss_short_nats"], window["loss_long_nats"]):
        assert f"{loss:.2f} nats" in captured[0]


@pytest.mark.parametrize(("text", "seen"), [(" a", "·a"), ("\n", "↵"), ("\x1b[31m", "\ufffd[31m"), ("漢", "□")])
def test_shown(text: str, seen: str) -> None:
    assert figure5.shown(text) == seen


def test_figure4_has_sparse_gain_across_and_long_gain_up(
    tiny_tables: Path, tmp_path: Path, figures: list[Figure]
) -> None:
    measurement = load(tiny_tables)
    figure4.draw(tiny_tables, measurement, summarize(measurement), tmp_path)
    windows, rows = measurement.windows.set_index("window_id"), measurement.selections
    long_gain = {"real": windows["gain_long_nats"], "null": windows["null_gain_long_nats"]}
    axes = figures[0].axes  # unmask-one: k = 1, 2, 8 under the real, then under the null context
    for number, (context, k) in enumerate((c, k) for c in ("real", "null") for k in (1, 2, 8)):
        of = rows[(rows["selector"] == "unmask-one") & (rows["context"] == context) & (rows["k"] == k)]
        expected = {
            (round(x, 6), round(float(long_gain[context][w]), 6))
            for w, x in zip(of["window_id"], of["gain_sparse_nats"], strict=True)
        }
        shown = {(round(x, 6), round(y, 6)) for x, y in axes[number].collections[0].get_offsets().tolist()}
        assert shown <= expected
        assert len(shown) >= 50


def test_recovered_fraction_shows_the_summary(tiny_tables: Path, tmp_path: Path, figures: list[Figure]) -> None:
    measurement = load(tiny_tables)
    measurement.windows["gain_long_nats"] += 1.0
    summary = summarize(measurement)
    recovered_fraction.draw(tiny_tables, measurement, summary, tmp_path)
    for axis, quantity in zip(
        figures[0].axes[:3], ("gain_sparse_nats", "recovered_fraction", "excess_recovered_fraction"), strict=True
    ):
        lines = [tuple(line.get_ydata()) for line in axis.lines]
        for selector in ("unmask-one", "kl", "random", "nearest"):
            entries = [e for e in summary["selections"] if (e["selector"], e["context"]) == (selector, "real")]
            assert tuple(e[quantity]["mean"] for e in entries) in lines


def test_distance_shows_the_shares(tiny_tables: Path, tmp_path: Path, figures: list[Figure]) -> None:
    measurement = load(tiny_tables)
    distance.draw(tiny_tables, measurement, summarize(measurement), tmp_path)
    from olmo_sparsity.tables import read_table

    axis = figures[0].axes[0]
    counts: dict[int, int] = dict.fromkeys(range(9, 21), 0)  # M = 12 distances, a bin each
    for row in read_table(tiny_tables, "selections").to_pylist():
        if (row["selector"], row["context"]) == ("unmask-one", "real"):
            for far in row["distance_tokens"]:
                counts[far] += 1
    real = axis.lines[0]
    assert real.get_xdata().tolist() == list(counts)
    assert list(real.get_ydata()) == pytest.approx([count / sum(counts.values()) for count in counts.values()])


def test_dollar_signs_are_only_dollar_signs(tiny_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure5, "shown", lambda text: "$$_$")
    measurement = load(tiny_tables)
    assert figure5.draw(tiny_tables, measurement, summarize(measurement), tmp_path)
