"""The report: its numbers are those of the tables, and its controls work in a real browser."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import KS, M, made_up_tables

from olmo_sparsity.config import SELECTORS
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.as_json import distance_json, estimate_json, selection_json, summary_json
from olmo_sparsity.statistics.breakdowns import by_class, by_distance
from olmo_sparsity.statistics.differences import paired_difference
from olmo_sparsity.statistics.measurement import load
from olmo_sparsity.statistics.subjects import read_subjects
from olmo_sparsity.statistics.summary import ESTIMATES, summarize
from olmo_sparsity.statistics.wording import interval
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.view.comparison_page import write_comparison
from olmo_sparsity.view.excerpts import choose_windows, printable, shown_first
from olmo_sparsity.view.report import default_out, write_report
from olmo_sparsity.view.report_answer import answer
from olmo_sparsity.view.report_data import SCORE_STEPS, SELECTOR_WORDS, page_json, read_report

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    " <b>bold</b>",
    "<!--<script>",
    " \"&amp;'",
    " {{ 7 * 7 }}",
    " \u2028line\u2029",
    " \u202eright",
    "\n",
    " $$ \\u003c",
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("report")
    return {
        "passed": made_up_tables(folder / "passed", words=HOSTILE),
        "failed": made_up_tables(folder / "failed", long_gain=0.0),
    }


@pytest.fixture(scope="module")
def pages(tables: dict[str, Path]) -> dict[str, Path]:
    """Pages of all windows, of a sample, and of a failed gate; and a comparison."""
    subjects = read_subjects([str(tables["passed"]), str(tables["failed"]), f"{tables['passed']}"])
    comparison = write_comparison(subjects, tables["passed"].parent / "comparison.html")
    wanted = {"all": ("passed", 200), "sample": ("passed", 30), "failed": ("failed", 30)}
    return {"comparison": comparison} | {
        name: write_report(tables[which], tables[which].parent / f"{name}.html", num_windows=number)
        for name, (which, number) in wanted.items()
    }


def data_of(page: Path) -> dict[str, Any]:
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


# --- without a browser


def test_the_numbers_are_those_of_the_statistics(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    measurement, data = load(tables["passed"]), data_of(pages["all"])
    summary = summarize(measurement)
    assert {**data["summary"], "selections": None} == {**summary_json(summary), "selections": None}
    for shown, selection in zip(data["summary"]["selections"], summary.selections, strict=True):
        expected = selection_json(selection)
        assert {name: shown[name] for name in (*ESTIMATES, "figure4")} == {
            name: expected[name] for name in (*ESTIMATES, "figure4")
        }
    for shown, entry in zip(data["classes"], by_class(measurement, summary), strict=True):
        assert shown["target_class"] == entry.target_class
        assert shown["long_gain_nats"] == estimate_json(entry.summary.long_gain_nats)
        assert shown["gate"] == entry.summary.gate
        for one, two in zip(shown["selections"], entry.summary.selections, strict=True):
            assert (one["selector"], one["context"], one["k"]) == two.key
            assert {name: one[name] for name in ESTIMATES} == {name: selection_json(two)[name] for name in ESTIMATES}
    assert data["distances"] == [distance_json(entry) for entry in by_distance(tables["passed"], measurement)]


def test_the_windows_are_rows_of_the_tables(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    data = data_of(pages["all"])
    rows = {row["window_id"]: row for row in read_table(tables["passed"], "windows").to_pylist()}
    assert sorted(rows) == [window["id"] for window in data["windows"]]
    selections = read_table(tables["passed"], "selections").to_pylist()
    by_id = {window["id"]: window for window in data["windows"]}
    for row in selections:
        if row["context"] not in ("real", "null"):
            continue
        shown = by_id[row["window_id"]]["selections"][row["selector"]][row["context"]]
        assert shown["positions"] == row["positions"]
        assert shown["gain"] == pytest.approx(row["gain_sparse_nats"], abs=1e-4)
        scores = np.array(shown["scores"]) * shown["score_scale"] / SCORE_STEPS
        assert scores == pytest.approx(np.array(row["scores"]), abs=np.abs(row["scores"]).max() / SCORE_STEPS + 1e-3)
    for window in data["windows"]:
        row = rows[window["id"]]
        assert window["tokens"] == [printable(text) for text in row["token_texts"]]
        assert window["loss_short_nats"] == pytest.approx(row["loss_short_nats"], abs=1e-4)
        assert len(window["null_tokens"]) == M


def test_the_answer_has_its_numbers_and_never_r_where_the_gate_failed(tables: dict[str, Path]) -> None:
    for which, path in tables.items():
        measurement = load(path)
        summary = summarize(measurement)
        sentences = answer(summary, shown_first(measurement))
        assert len(sentences) == 3
        assert interval(summary.long_gain_nats, 3).replace("-", "\u2212") in sentences[0]
        over = summary.at("kl", "real", 1).gain_over_random_nats
        assert interval(over, 3).replace("-", "\u2212") in sentences[1]
        assert "does not see the target" in sentences[1]
        assert ("R(1) = " in sentences[1]) == (which == "passed")
        assert interval(summary.at("unmask-one", "null", 8).gain_sparse_nats, 3) in sentences[2]


def test_a_sample_is_drawn_by_a_rule(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    measurement = load(tables["passed"])
    sample, largest = choose_windows(measurement, 30, num_largest=10, seed=0)
    assert (sample, largest) == choose_windows(measurement, 30, num_largest=10, seed=0)
    assert sample != choose_windows(measurement, 30, num_largest=10, seed=1)[0]
    assert len(set(sample)) == 30
    others = measurement.windows[~measurement.windows["window_id"].isin(sample)]
    assert largest == others.nlargest(10, "gain_long_nats")["window_id"].tolist()
    data = data_of(pages["sample"])
    assert [w["id"] for w in data["windows"] if w["group"] == "sample"] == sample
    assert [w["id"] for w in data["windows"] if w["group"] == "largest"] == largest
    assert "drawn at random (seed 0)" in re.sub(r"\s+", " ", pages["sample"].read_text())
    assert choose_windows(measurement, 90, num_largest=10, seed=0) == (list(range(90)), [])


def test_the_samples_mean_is_no_better_than_that_of_all(tables: dict[str, Path]) -> None:
    """The sample is unbiased: over many seeds, its mean long gain is that of all windows."""
    measurement = load(tables["passed"])
    gains = measurement.windows.set_index("window_id")["gain_long_nats"]
    means = [gains[choose_windows(measurement, 30, num_largest=0, seed=seed)[0]].mean() for seed in range(300)]
    assert np.mean(means) == pytest.approx(gains.mean(), abs=4 * np.std(means) / 300**0.5)


def test_what_is_shown_first_does_not_see_the_target(tables: dict[str, Path]) -> None:
    measurement = load(tables["passed"])

    def first_of(*names: str) -> str:
        kept = {name: measurement.selectors[name] for name in names}
        return shown_first(dataclasses.replace(measurement, selectors=kept))

    assert first_of(*SELECTORS) == "kl"
    assert first_of("unmask-one", "random", "attention") == "attention"
    assert first_of("unmask-one", "random") == "unmask-one"


def test_every_selector_is_explained() -> None:
    assert set(SELECTOR_WORDS) == set(SELECTORS)


def test_hostile_text_stays_text(pages: dict[str, Path]) -> None:
    page = pages["all"].read_text()
    assert "onerror" in page
    for found in re.finditer("onerror", page):
        assert page[found.start() - 12 : found.start()].endswith("\\u003cimg src=x "[-12:])
    assert page.count("<script") == page.count("</script>") == 8  # data and our seven
    assert "\u2028" not in page
    first = data_of(pages["all"])["windows"][0]
    assert first["target"] == HOSTILE[0]
    assert first["tokens"][5:8] == [" ↵line↵", " \ufffdright", "↵"]


@pytest.mark.parametrize("address", ["http:", "https:", "src=", "@import", "url("])
def test_the_page_loads_nothing(pages: dict[str, Path], address: str) -> None:
    page = re.sub(r'<script id="data".*?</script>', "", pages["all"].read_text(), flags=re.DOTALL)
    assert address not in page.replace('"http://www.w3.org/2000/svg"', "")
    assert "default-src &#39;none&#39;" in page


def test_nothing_is_overwritten_without_the_option(tables: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(UserError, match="--overwrite"):
        write_report(tables["passed"], tmp_path / "mine.html")
    assert (tmp_path / "mine.html").read_text() == "mine"
    with pytest.raises(UserError, match="folder"):
        write_report(tables["passed"], tmp_path)
    with pytest.raises(UserError, match="--windows 0"):
        write_report(tables["passed"], tmp_path / "new.html", num_windows=0)
    with pytest.raises(UserError, match="--out"):
        default_out(tables["passed"])
    assert default_out(Path("runs/a/influence/b")) == Path("runs/a/figures/b/report.html")


def test_long_windows_bring_the_scores_of_chosen_tokens_only(
    tables: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("olmo_sparsity.view.report_data.MAX_SCORES", 10)
    data = page_json(read_report(tables["passed"], num_windows=5))
    one = data["windows"][0]["selections"]["kl"]["real"]
    assert {i for i, score in enumerate(one["scores"]) if score is not None} == set(one["positions"])


# --- in a browser

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
in_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; `make browser` installs Debian's")
FLAGS = """
    --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update
    --disable-sync --disable-dev-shm-usage
""".split()  # noqa: SIM905


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Open pages, each in its own browser context. At the end, no page may have logged an error or requested anything."""
    complaints: list[str] = []
    contexts = []

    def open_page(name: str, **context: Any) -> Any:
        made = browser.new_context(
            **{"viewport": {"width": 1200, "height": 900}, "reduced_motion": "reduce", **context}
        )
        contexts.append(made)
        page = made.new_page()
        page.set_default_timeout(15_000)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on(
            "request",
            lambda request: None if request.url.startswith("file:") else complaints.append(f"asked: {request.url}"),
        )
        page.goto(pages[name].as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def chosen(page: Any, window_id: int) -> list[str]:
    """Return the framed words of a card, by rank."""
    marks = page.locator(f"#w{window_id} .far mark").evaluate_all(
        "marks => marks.map(m => [Number(m.querySelector('sup').lastChild.textContent), m.firstChild.textContent])"
    )
    return [word for _, word in sorted(marks)]


def slide(page: Any, k: int) -> None:
    page.locator("#k").evaluate("(slider, k) => { slider.value = k; slider.dispatchEvent(new Event('input')); }", k)


@in_browser
def test_the_slider_fills_in_the_chosen_tokens_one_by_one(opened: Any, pages: dict[str, Path]) -> None:
    page, data = opened("all"), data_of(pages["all"])
    window = data["windows"][3]
    ranking = window["selections"]["kl"]["real"]["positions"]
    words = [window["tokens"][position].strip() for position in ranking]
    for k in (0, 1, 2, 3, 8):
        slide(page, k)
        assert chosen(page, 3) == words[:k]
        said = page.locator("#w3 .losses").inner_text()
        assert f"{window['loss_short_nats']:.3f} nats" in said
        if k in KS:
            assert f"{window['selections']['kl']['real']['loss'][KS.index(k)]:.3f} nats" in said
        elif k:
            assert "measured at k = 1, 2, 8" in said
    page.locator("#k").focus()
    page.keyboard.press("ArrowLeft")
    assert chosen(page, 3) == words[:7]


@in_browser
def test_selector_and_null_context(opened: Any, pages: dict[str, Path]) -> None:
    page, data = opened("all"), data_of(pages["all"])
    window = data["windows"][4]
    assert page.locator("#selector").input_value() == "kl"
    assert "Does not see the target" in page.locator("#selector-note").inner_text()
    page.locator("#selector").select_option("unmask-one")
    assert "Sees the target" in page.locator("#selector-note").inner_text()
    real = window["selections"]["unmask-one"]["real"]["positions"]
    assert chosen(page, 4) == [window["tokens"][position].strip() for position in real]
    page.get_by_label("null (foreign text)").check()
    null = window["selections"]["unmask-one"]["null"]["positions"]
    assert chosen(page, 4) == [window["null_tokens"][position].strip() for position in null]
    assert f"{window['null_loss_long_nats']:.3f} nats" in page.locator("#w4 .losses").inner_text()


@in_browser
def test_figure4_shows_both_contexts_and_its_points_lead_to_their_windows(
    opened: Any, pages: dict[str, Path], tables: dict[str, Path]
) -> None:
    page, data, summary = opened("all"), data_of(pages["all"]), summarize(load(tables["passed"]))
    titles = page.locator("#figure4 figcaption").all_inner_texts()
    for title, context in zip(titles, ("real", "null"), strict=True):
        r = interval(summary.at("kl", context, 8).recovered_fraction).replace("-", "\u2212")
        assert f"R(8) = {r}" in title
    assert page.locator("#figure4 circle").count() == 2 * len(data["windows"])
    point = page.locator('#figure4 figure:first-child circle[data-window="57"]')
    point.dispatch_event("mouseenter")
    assert "Window 57" in page.locator("#figure4 .tip:visible").inner_text()
    point.dispatch_event("click")
    card = page.locator("#w57")
    assert card.evaluate("card => card === document.activeElement && card.classList.contains('here')")
    first_words = data["windows"][57]["tokens"][0].strip()
    assert first_words in card.inner_text()
    top = card.evaluate("card => card.getBoundingClientRect().top")
    assert 0 < top < 450  # below the bar, in sight
    card.get_by_role("button", name="its point in Figure 4").click()
    assert page.evaluate("document.activeElement.dataset.window") == "57"
    assert page.locator("#figure4 circle.here").count() == 2
    # The same by keyboard: one stop for the whole cloud, arrows walk from the smallest sparse gain up, Enter opens.
    page.locator('#figure4 figure:first-child circle[tabindex="0"]').focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    gains = [window["selections"]["kl"]["real"]["gain"][-1] for window in data["windows"]]
    second = int(np.argsort(gains, kind="stable")[1])
    assert page.evaluate("document.activeElement.dataset.window") == str(second)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == f"w{second}"


@in_browser
def test_filters(opened: Any, pages: dict[str, Path], tables: dict[str, Path]) -> None:
    page, windows = opened("all"), load(tables["passed"]).windows
    assert page.locator("#count").inner_text() == "90 of 90 windows, 1 to 20 shown"
    for name in ("induction", "other", "function-word"):
        page.get_by_label(name, exact=True).uncheck()
    repeat = windows[windows["target_class"] == "repeat"]
    assert page.locator("#count").inner_text() == f"{len(repeat)} of 90 windows" + (
        ", 1 to 20 shown" if len(repeat) > 20 else ""
    )
    middle = sorted(repeat["gain_long_nats"])[len(repeat) // 2]
    page.locator("#gain-from").fill(f"{middle - 0.001:.4f}")
    long = repeat[repeat["gain_long_nats"] >= middle]
    assert page.locator("#count").inner_text() == f"{len(long)} of 90 windows"
    assert page.locator(".card").count() == len(long)
    page.locator("#order").select_option("long")
    assert page.locator("#count").inner_text().endswith("not a fair sample.")
    shown = page.locator(".card").evaluate_all("cards => cards.map(card => Number(card.id.slice(1)))")
    assert shown == long.sort_values("gain_long_nats", ascending=False)["window_id"].tolist()
    page.locator("#search").fill("no such words anywhere")
    assert "No window passes" in page.locator("#cards").inner_text()
    page.get_by_text("Clear the filters").click()
    page.locator("#count", has_text="90 of 90").wait_for()
    page.locator("#search").fill("ONERROR")
    assert page.locator("#count").inner_text() == "1 of 90 windows"
    assert page.locator("#figure4 circle.faded").count() == 2 * 89
    # A point that the filters hide is still gone to.
    page.locator('#figure4 circle[data-window="30"]').first.dispatch_event("click")
    assert page.evaluate("document.activeElement.id") == "w30"
    gains = load(tables["passed"]).gains
    excess = gains["kl", "real", 8] - gains["kl", "null", 8]
    page.locator("#excess-to").fill("0")
    assert page.locator("#count").inner_text().startswith(f"{int((excess <= 0).sum())} of 90 windows")


@in_browser
def test_hostile_text_is_shown(opened: Any) -> None:
    page = opened("all")
    words = page.locator("#w0 .words").inner_text()
    for text in HOSTILE[:5]:
        assert text.strip() in words
    assert page.locator("#w0 img, #w0 b").count() == 0
    page.locator('#figure4 circle[data-window="0"]').first.dispatch_event("mouseenter")
    assert "</script><img src=x onerror=alert(1)>" in page.locator(".tip:visible").inner_text()


@in_browser
def test_a_failed_gate_shows_no_r(opened: Any) -> None:
    page = opened("failed")
    said = page.locator("body").inner_text()
    assert "Validity gate failed." in said
    assert "does not profit from the long context" in re.sub(r"\s+", " ", said)
    assert not re.search(r"R\(\d+\) = ", said)
    assert said.count("Not shown: the validity gate failed.") == 2
    assert "gate failed, no R(k)" in said


@in_browser
def test_the_largest_gains_are_a_group_of_their_own(opened: Any, pages: dict[str, Path]) -> None:
    page, data = opened("sample"), data_of(pages["sample"])
    assert page.locator("#figure4 circle").count() == 2 * 30
    assert page.locator("#count").inner_text() == "30 of 30 windows, 1 to 20 shown"
    page.get_by_role("button", name="Next windows").click()
    assert page.locator(".card").count() == 10
    page.locator("#group").select_option("largest")
    assert page.locator("#count").inner_text() == "10 of 10 windows"
    largest = next(window for window in data["windows"] if window["group"] == "largest")
    assert "among the largest long gains" in page.locator(f"#w{largest['id']}").inner_text()


@in_browser
@pytest.mark.parametrize(
    ("scheme", "width", "which"),
    [("light", 1200, "sample"), ("dark", 390, "sample"), ("dark", 1200, "failed"), ("light", 390, "comparison")],
)
def test_no_serious_fault_of_accessibility(opened: Any, scheme: str, width: int, which: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = opened(which, color_scheme=scheme, viewport={"width": width, "height": 844}, bypass_csp=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    found = axe.Axe().run(page).response
    serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    assert not serious, "\n".join(
        f"{v['id']}: {v['nodes'][0]['html'][:300]} {v['nodes'][0]['failureSummary']}" for v in serious
    )
    assert len(found["passes"]) > 20


@in_browser
def test_a_comparison_in_the_browser(opened: Any, tables: dict[str, Path]) -> None:
    page = opened("comparison")
    differences = paired_difference(load(tables["passed"]), load(tables["failed"]))
    difference = differences.of_windows("long_gain_nats")
    said = page.locator("#numbers details[open]").inner_text()
    assert interval(difference, 3).replace("-", "\u2212") in said
    assert page.locator("#forest svg[role=img]").count() == 1
    assert "paired, window by window" in page.locator("main").inner_text()
