"""The page of an explored document: it shows the record's numbers, and its controls work in a real browser."""

from __future__ import annotations

import dataclasses
import html
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from browser_pages import chromium, in_browser, load_page, violations_of
from known_selectors import only_here as only_here
from made_up import CONTEXTUAL
from made_up_explorations import FULL, KS, LOCAL, made_up_exploration

from olmo_sparsity import __version__
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.text.places import EncodedText
from olmo_sparsity.view.exploration import Exploration, ExploredSelector, Record, _numbers, record_of
from olmo_sparsity.view.pages import COLOURS
from olmo_sparsity.wording.units import ENTRY_WORDS

HOSTILE = [
    "</script><img src=x onerror=alert(1)>", " <b>bold</b>", "<!--<script>", " \"&amp;'", " {{ 7 * 7 }}", " \u2028line", "",
    " \u202eright", "\n", "  ", " $$ \\u003c",
]  # fmt: skip
SEED_WORDS = [" river", " stone", "s", ".", " the", " window", "\n", " lamp"]


@pytest.fixture(scope="module")
def exploration() -> Exploration:
    """140 tokens, the hostile ones among the first and in the middle."""
    words = [*HOSTILE, *SEED_WORDS * 7, *HOSTILE, *SEED_WORDS * 8][:140]
    return made_up_exploration([printable(word) for word in words])


@pytest.fixture(scope="module")
def record(exploration: Exploration) -> Record:
    return exploration.record


@pytest.fixture(scope="module")
def path(exploration: Exploration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exploration.save_html(tmp_path_factory.mktemp("pages") / "document.html")


# --- without a browser


def test_the_page_holds_the_record(path: Path, record: Record) -> None:
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', path.read_text(), re.DOTALL)
    assert msgspec.convert(json.loads(text), Record) == record


@pytest.mark.usefixtures("only_here")
def test_every_selector_has_its_colour_and_none_takes_that_of_the_page(exploration: Exploration) -> None:
    """A selector that is measured by name only is on the page, and a selector may be named as a colour of the page is."""
    for name in ("bm25", "text"):
        SELECTORS["text"] = dataclasses.replace(SELECTORS["bm25"], name="text")
        styles = renamed(exploration, attention=name).to_html().partition("@media")[0]
        assert f"--of-{name}: {SELECTORS['bm25'].look.on_light};" in styles
        assert set(re.findall(r"--text: (#[0-9a-f]+);", styles)) == {COLOURS["text"][0]}


def renamed(exploration: Exploration, **names: str) -> Exploration:
    """Return an exploration whose selectors have other names."""
    record = exploration.record
    selectors = [msgspec.structs.replace(one, name=names.get(one.name, one.name)) for one in record.selectors]
    contexts = {
        context: msgspec.structs.replace(of, choices={names.get(name, name): c for name, c in of.choices.items()})
        for context, of in record.contexts.items()
    }
    return dataclasses.replace(
        exploration, record=msgspec.structs.replace(record, selectors=selectors, contexts=contexts)
    )


def test_the_page_loads_nothing_and_hostile_text_stays_text(path: Path) -> None:
    page = html.unescape(path.read_text())
    for address in ("http:", "https:", "src=", "@import", "url("):
        assert address not in page.replace("http://www.w3.org/2000/svg", "").replace("src=x", "")
    assert "default-src 'none'" in page and "unsafe-inline" not in page
    written = path.read_text()
    assert "<img" not in written and "<b>up" not in written and "runs &amp; co" in written


def test_it_says_what_was_found_and_what_one_document_cannot_tell(exploration: Exploration, record: Record) -> None:
    """Counted here anew, by the definition."""
    needed = []
    for short, kl_K in zip(
        record.contexts["real"].kl_short_nats, record.contexts["real"].choices["kl"].kl_sparse_nats, strict=True
    ):
        assert short is not None
        steps = [(0, short), *zip(KS, kl_K, strict=True)]
        needed.append(next((k for k, kl in steps if kl is not None and kl <= 0.05), math.inf))
    moved = [k for k in needed if k > 0]
    half = next(k for k in KS if sum(one <= k for one in moved) * 2 >= len(moved))
    assert half > 1
    assert exploration.found == (
        f"the long context changes the prediction of {len(moved)} of the {len(needed)} targets of made <b>up</b>.txt by more "
        f"than 0.05 nats; for half of them {half} tokens chosen by kl are enough"
    )
    page = exploration.to_html()
    assert f'<p class="verdict">T{html.escape(exploration.found[1:])}.</p>' in page
    assert "Gate not assessed: one document is no sample." in page and "No mean is given" in page


def test_the_page_says_what_was_measured(exploration: Exploration, record: Record) -> None:
    said = re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]*>", " ", exploration.to_html())))
    assert "Targets 131 of the 140 tokens of made <b>up</b>.txt" in said
    assert "Lengths local 3 + long-range 6 = full 9 tokens" in said
    assert "Which earlier tokens are chosen for each token of made <b>up</b>.txt?" in said
    assert said.count("It does not see the target.") == 3 and said.count("unmask-one It sees the target:") == 1
    words = made_up_exploration([" river"] * 60, groups=True).to_html()
    assert "Which earlier words are chosen for each token of" in words and "k, visible words:" in words
    assert "The first 9 of the 140 tokens have no full window before them" in said
    assert f"olmo-sparsity {__version__}, run runs & co Which earlier" in said and ENTRY_WORDS not in said
    of_model = dataclasses.replace(exploration, setup=ModelSetup.from_manifest(CONTEXTUAL)).to_html()
    assert f"olmo-sparsity {__version__}, model runs &amp; co</p>" in of_model and ENTRY_WORDS in of_model
    assert dict(exploration._facts())["Null context"] == "the same tokens in random order"
    no_code = re.sub(r"(?s)<(script|style).*?</\1>", " ", exploration.to_html())
    assert "foreign" not in re.sub("<[^>]*>", " ", no_code) and "null context" in no_code


def test_the_controls_begin_with_two_selectors_the_tolerance_of_the_record_and_the_largest_k(
    exploration: Exploration,
) -> None:
    page = exploration.to_html()
    options = {
        name: re.findall(
            r"<option([^>]*)>(.*?)</option>", page.partition(f'<select id="{name}">')[2].partition("</select>")[0]
        )
        for name in ("selector", "beside", "tolerance")
    }
    names = ["kl", "attention", "unmask-one", "random"]
    assert options["selector"] == [("", name) for name in names]
    assert options["beside"][1:] == [(" selected" * (name == "attention"), name) for name in names]
    assert options["tolerance"] == [("", "0.01"), (" selected", "0.05"), ("", "0.1"), ("", "0.5")]
    assert 'type="range" min="0" max="3" value="3"' in page  # by the number of the measured k


def test_the_record_has_the_numbers_of_each_target_wherever_its_rows_stand() -> None:
    """Rows of both tables are shuffled, and rows of drawn targets stand among them."""
    text, far, local, num = "ab cd ef gh", 2, 1, 3
    places = [(0, 1), (1, 2), (2, 5), (5, 8), (8, 10), (10, 11)]
    encoded = EncodedText(text, np.arange(6), *np.array(places, np.int32).T)
    rng = np.random.default_rng(5)
    windows = [
        {"window_id": w, **{name: rng.normal() for name in (
            "loss_short_nats", "loss_long_nats", "null_loss_long_nats", "kl_short_nats", "null_kl_short_nats",
        )}}
        for w in range(num)
    ]  # fmt: skip
    selections = [
        {
            "window_id": w, "selector": name, "context": context, "positions": rng.permutation(far).tolist(), "k": [1, 2],
            "sees_target": name == "unmask-one",
            **{key: rng.normal(size=2).tolist() for key in (
                "loss_sparse_nats", "kl_sparse_nats", "gain_sparse_nats", "kl_short_to_sparse_nats",
            )},
        }
        for w in range(num) for name in ("kl", "unmask-one") for context in ("real", "null", "resampled", "resampled")
    ]  # fmt: skip
    tables = (pa.Table.from_pylist([rows[i] for i in rng.permutation(len(rows))]) for rows in (windows, selections))
    record = record_of(
        *tables, encoded=encoded, null_places_WM=np.array([[3, 4], [5, 4], [0, 1]]), local_len=local, unit="token",
        setup=ModelSetup(None, "hidden", None, None), selectors=["unmask-one", "kl"],
    )  # fmt: skip
    assert (record.texts, record.offsets) == (["a", "b", " cd", " ef", " g", "h"], [0, 1, 3, 6, 9, 10])
    assert (record.first_target, record.full_len, record.unit) == (3, 3, ("token", "tokens"))
    assert (record.null_begins, record.null_orders) == ([3, 4, 0], [None, [1, 0], None])
    assert record.loss_short_nats == pytest.approx([row["loss_short_nats"] for row in windows], abs=1e-7)
    for context, null in (("real", ""), ("null", "null_")):
        of = record.contexts[context]
        assert of.loss_long_nats == pytest.approx([row[f"{null}loss_long_nats"] for row in windows], abs=1e-7)
        assert of.kl_short_nats == pytest.approx([row[f"{null}kl_short_nats"] for row in windows], abs=1e-7)
        for name, choices in of.choices.items():
            own = [row for row in selections if (row["selector"], row["context"]) == (name, context)]
            assert choices.distances == [[3 - position for position in row["positions"]] for row in own]
            for key in ("loss_sparse_nats", "kl_sparse_nats"):
                np.testing.assert_allclose(getattr(choices, key), [row[key] for row in own], atol=1e-7)
    first, second = record.selectors
    assert (first.name, first.sees_target, second) == ("unmask-one", True, ExploredSelector("kl", False, None))
    assert first.optimism_nats is not None
    for w, optimism in enumerate(first.optimism_nats):
        draws = [
            np.add(row["gain_sparse_nats"], row["kl_short_to_sparse_nats"])
            for row in selections
            if (row["window_id"], row["selector"], row["context"]) == (w, "unmask-one", "resampled")
        ]
        assert optimism == pytest.approx(sum(draws) / 2, abs=1e-7)


def test_numbers_of_the_record_have_seven_digits_and_only_finite_ones_are_there() -> None:
    assert _numbers(np.array([2 / 3, -1 / 3, 4e-8, 6e-8], np.float64)) == [0.6666667, -0.3333333, 0.0, 1e-7]
    assert _numbers(np.array([2 / 3, np.nan, -np.inf, np.inf, 1.5])) == [0.6666667, None, None, None, 1.5]


@pytest.mark.parametrize(
    ("long_gain", "words"), [(1e-3, "none of the 131 targets"), (90.0, "half of them need more than 4 tokens")]
)
def test_nothing_and_too_much_are_said(long_gain: float, words: str) -> None:
    assert words in made_up_exploration([" a"] * 140, long_gain=long_gain).found


def test_nothing_is_overwritten_without_the_option(
    exploration: Exploration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = exploration.save_html(tmp_path / "page.html")
    before = page.read_bytes()
    with pytest.raises(UserError, match="--overwrite"):
        exploration.save_html(page)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert exploration.save_html("~/page.html", overwrite=True) == page
    assert page.read_bytes() == before


def test_a_notebook_shows_the_page(exploration: Exploration) -> None:
    frame = exploration._repr_html_()
    assert frame.startswith('<iframe sandbox="allow-scripts" srcdoc="') and "<script" not in frame


# --- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def opened(browser: Any, path: Path) -> tuple[Any, list[str]]:
    complaints: list[str] = []
    return load_page(browser, path, complaints), complaints


@pytest.fixture
def page(opened: tuple[Any, list[str]]) -> Iterator[Any]:
    """The page as it begins."""
    page, complaints = opened
    page.reload()
    page.wait_for_selector("html[data-ready]")
    yield page
    found = complaints.copy()
    complaints.clear()
    assert found == []


def nats(value: float | None) -> str:
    assert value is not None
    text = f"{value:.3f}"
    return (text if re.search("[1-9]", text) else text.replace("-", "")).replace("-", "\u2212")


def smallest(record: Record, target: int, selector: str, context: str = "real", tolerance: float = 0.05) -> float:
    return float(record.sufficient_k(selector, context, tolerance=tolerance)[target])


def chosen(record: Record, target: int, selector: str, *, k: float, context: str = "real") -> list[int]:
    """Return the tokens of J_k, the most influential first."""
    distances = record.contexts[context].choices[selector].distances[target]
    return [record.first_target + target - distance for distance in distances[: int(min(k, KS[-1]))]]


def framed(page: Any, side: str) -> dict[int, str]:
    """Return the rank of each framed token."""
    found: dict[str, str] = page.locator(f"#document .in-{side}").evaluate_all(
        "nodes => Object.fromEntries(nodes.map(node => [node.dataset.token, node.dataset.rank]))"
    )
    return {int(token): rank for token, rank in found.items()}


def linked(page: Any, side: str) -> list[int]:
    """Return the tokens from which curves lead."""
    found: list[str] = page.locator(f"#links .of-{side}").evaluate_all("nodes => nodes.map(node => node.dataset.token)")
    return [int(token) for token in found]


def rows(page: Any, table: str) -> list[list[str]]:
    found: list[list[str]] = page.locator(table).evaluate_all(
        "tables => tables.flatMap(t => [...t.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent)))"
    )
    return found


def token(page: Any, number: int) -> Any:
    return page.locator(f'#document .token[data-token="{number}"]')


def a_target(record: Record, wanted: Any) -> int:
    return next(target for target in range(30, record.num_targets) if wanted(target))


def check_panel(
    page: Any, record: Record, target: int, *, context: str = "real", names: tuple[str, ...] = ("kl", "attention")
) -> None:
    """Check every number of the panel against the record."""
    of, short = record.contexts[context], record.loss_short_nats[target]
    long = of.loss_long_nats[target]
    assert short is not None and long is not None
    panel = page.locator("#panel .numbers dd").all_inner_texts()
    assert panel[:4] == [f"{nats(value)} nats" for value in (of.kl_short_nats[target], short, long, short - long)]
    expected = []
    for name in names:
        choices = of.choices[name]
        expected.append(
            [
                "0",
                nats(of.kl_short_nats[target]),
                nats(short),
                "0.000",
                "\u2013",
                *["\u2013"] * (name == "unmask-one" and context == "real"),
            ]
        )
        for i, k in enumerate(KS):
            loss, random = choices.loss_sparse_nats[target][i], of.choices["random"].loss_sparse_nats[target][i]
            assert loss is not None and random is not None
            over = "\u2013" if name == "random" else nats(random - loss)
            row = [str(k), nats(choices.kl_sparse_nats[target][i]), nats(loss), nats(short - loss), over]
            optimism = next(one for one in record.selectors if one.name == name).optimism_nats
            if optimism is not None and context == "real":
                of_target = optimism[target]
                assert of_target is not None
                row.append(nats(of_target[i]))
            expected.append(row)
    assert rows(page, "#panel table:not(.tokens)") == expected


@in_browser
def test_hover_frames_what_a_token_needs_and_shows_its_numbers(page: Any, record: Record) -> None:
    target = a_target(record, lambda t: smallest(record, t, "kl") == 2 and smallest(record, t, "attention") == 1)
    number = record.first_target + target
    token(page, number).hover()
    by_kl, by_attention = chosen(record, target, "kl", k=2), chosen(record, target, "attention", k=1)
    assert framed(page, "a") == {one: str(rank) for rank, one in enumerate(by_kl, start=1)}
    assert set(framed(page, "b")) == set(by_attention)
    assert (linked(page, "a"), linked(page, "b")) == (by_kl, by_attention)
    assert page.locator("#panel .smallest").all_inner_texts() == [
        "Smallest sufficient k: 2.",
        "Smallest sufficient k: 1.",
    ]
    assert page.locator("#panel p").first.inner_text() == f"token {number}, character {record.offsets[number]}"
    assert (
        page.locator("#panel code").inner_text() == f"olmo-sparsity explore --text FILE --at {record.offsets[number]}"
    )
    check_panel(page, record, target)
    for distance, expected in {
        "near": range(number - LOCAL, number),
        "remote": range(number - FULL, number - LOCAL),
        "unmeasured": range(record.first_target),
    }.items():
        marked = page.locator(f"#document .{distance}")
        assert marked.evaluate_all("nodes => nodes.map(node => Number(node.dataset.token))") == list(expected)
    page.locator("h1").hover()
    assert framed(page, "a") == {} and linked(page, "a") == []


@in_browser
def test_a_click_keeps_a_token_until_the_next(page: Any, record: Record) -> None:
    first, second = record.first_target + 40, record.first_target + 44
    token(page, first).click()
    token(page, second).hover()
    check_panel(page, record, 40)
    token(page, second).click()
    check_panel(page, record, 44)
    assert page.locator('[aria-selected="true"]').get_attribute("data-token") == str(second)
    token(page, second).click()
    assert page.locator('[aria-selected="true"]').count() == 0


@in_browser
def test_the_slider_goes_through_the_measured_k(page: Any, record: Record) -> None:
    target = 50
    token(page, record.first_target + target).click()
    for place, k in enumerate([0, *KS]):
        page.locator("#k").evaluate(
            "(slider, at) => { slider.value = at; slider.dispatchEvent(new Event('input')); }", place
        )
        assert not page.locator("#own").is_checked()
        assert page.locator("#k-shown").inner_text() == page.locator("#k").get_attribute("aria-valuetext") == str(k)
        for side, name in (("a", "kl"), ("b", "attention")):
            assert sorted(framed(page, side)) == sorted(chosen(record, target, name, k=k))
        said = page.locator("#said").inner_text()
        assert f"; {k} token{'' if k == 1 else 's'} chosen by kl" in said and "needs" not in said
        assert [row[0] for row in rows(page, "#panel table:not(.tokens)")].count(str(k)) == 2
        assert page.locator("#panel tr.now th").all_inner_texts() == [str(k)] * 2
        if k == 0:
            assert (
                page.locator("#map")
                .get_attribute("aria-label")
                .startswith("Map of the chosen tokens: no token is chosen by kl; no token is chosen by attention.")
            )
    page.locator("#own").check()
    own = [int(min(smallest(record, target, name), KS[-1])) for name in ("kl", "attention")]
    assert page.locator("#k-shown").inner_text() == page.locator("#k").get_attribute("aria-valuetext") == "each its own"
    assert sorted(framed(page, "a")) == sorted(chosen(record, target, "kl", k=own[0]))
    assert page.locator("#panel tr.now th").all_inner_texts() == [str(k) for k in own]
    page.locator("#own").uncheck()
    assert page.locator("#k-shown").inner_text() == str(KS[-1])


@in_browser
def test_the_other_way_shows_what_uses_a_token(page: Any, record: Record) -> None:
    def users(number: int, name: str) -> list[int]:
        first = record.first_target
        return [
            first + target
            for target in range(record.num_targets)
            if number in chosen(record, target, name, k=smallest(record, target, name))
        ]

    def words(number: int) -> str:
        return f"It is used by {number} later target{'' if number == 1 else 's'}."

    number = next(n for n in range(40, 100) if len(users(n, "kl")) > 2 and users(n, "attention"))
    token(page, number).click()
    page.get_by_label("what uses it").check()
    for side, name in (("a", "kl"), ("b", "attention")):
        assert sorted(framed(page, side)) == users(number, name) == linked(page, side)
    expected = [
        [
            str(chosen(record, user - record.first_target, name, k=9).index(number) + 1),
            str(user - number),
            record.texts[user].strip(),
        ]
        for name in ("kl", "attention")
        for user in users(number, name)
    ]
    shown = rows(page, "#panel table.tokens")
    assert [row[:2] for row in shown] == [row[:2] for row in expected]
    assert [a[2] for a, b in zip(shown, expected, strict=True) if b[2]] == [row[2] for row in expected if row[2]]
    page.locator("#shade").select_option("uses")
    assert token(page, number).get_attribute("aria-label").endswith(f"used by {len(users(number, 'kl'))} later targets")
    ks = record.sufficient_k("kl").tolist()
    uses = Counter(one for target, k in enumerate(ks) for one in chosen(record, target, "kl", k=k))
    places = {uses[place]: place for place in range(10, 100)}  # by the number of targets that use a token
    assert {0, 1, 2} <= set(places)
    for count, place in places.items():
        share = token(page, place).evaluate("node => node.style.getPropertyValue('--heat-share')")
        assert float(share) == pytest.approx(min(1, (math.log2(count) + 1) / 4) if count else 0, abs=6e-4)
    assert page.locator("#panel .users").all_inner_texts() == [
        words(len(users(number, name))) for name in ("kl", "attention")
    ]
    captions = page.locator("#panel table caption").all_text_contents()
    assert captions == [f"{name}: targets that use it" for name in ("kl", "attention")]
    lonely = next(n for n in range(40, 110) if len(users(n, "kl")) == 1)
    token(page, lonely).click()
    assert page.locator("#panel .users").first.inner_text() == "It is used by 1 later target."
    # A token that no full window precedes is used, too.
    token(page, 7).click()
    assert sorted(framed(page, "a")) == users(7, "kl")


@in_browser
@pytest.mark.parametrize("shade", ["kl", "gain", "k"])
def test_tokens_are_shaded_by_their_numbers(page: Any, record: Record, shade: str) -> None:
    page.locator("#shade").select_option(shade)
    real = record.contexts["real"]
    page.locator("#tolerance").select_option("0.01")  # so that some targets need more than the largest measured k
    needed = record.sufficient_k("kl", tolerance=0.01).tolist()
    of_each_k = [needed.index(k) for k in (0, *KS, math.inf)]
    for target in (0, 3, 12, 25, *of_each_k):
        short, long, kl = record.loss_short_nats[target], real.loss_long_nats[target], real.kl_short_nats[target]
        assert short is not None and long is not None and kl is not None
        k = needed[target]
        share, words = {
            "kl": (math.sqrt(kl), f"reaction {nats(kl)} nats"),
            "gain": (math.sqrt(abs(short - long)), f"gain {nats(short - long)} nats"),
            "k": (
                (len(KS) + 1 if k == math.inf else [0, *KS].index(int(k))) / (len(KS) + 1),
                f"smallest sufficient k {'more than 4' if k == math.inf else int(k)}",
            ),
        }[shade]
        node = token(page, record.first_target + target)
        shown = float(node.evaluate("node => node.style.getPropertyValue('--heat-share')"))
        assert shown == pytest.approx(min(1, share), abs=6e-4)
        assert node.get_attribute("aria-label").endswith(f", {words}")
        assert ("against" in node.get_attribute("class").split()) == (shade == "gain" and short < long)
    assert token(page, 2).get_attribute("aria-label").endswith("not a target")


@in_browser
def test_the_null_context_and_other_selectors(page: Any, record: Record) -> None:
    page.get_by_label("null").check()
    page.locator("#beside").select_option("unmask-one")
    for target in (41, 42):
        token(page, record.first_target + target).click()
        check_panel(page, record, target, context="null", names=("kl", "unmask-one"))
        k = smallest(record, target, "kl", "null")
        places = chosen(record, target, "kl", k=k, context="null")
        assert sorted(framed(page, "a")) == sorted(places)
        begin, order = record.null_begins[target], record.null_orders[target] or range(FULL - LOCAL)
        foreign = [record.texts[begin + place] for place in order]
        assert page.locator("#panel h3").last.inner_text() == "The null context"
        assert page.locator("#panel .foreign").inner_text().replace("\u2025", "") == "".join(foreign)
        positions = sorted(place - (record.first_target + target - FULL) for place in places)
        marked = page.locator("#panel .foreign mark").all_inner_texts()
        assert [text.replace("\u2025", "") for text in marked] == [foreign[position] for position in positions]
    page.get_by_label("real").check()
    check_panel(page, record, 42, names=("kl", "unmask-one"))
    page.locator("#selector").select_option("random")
    page.locator("#beside").select_option("")
    check_panel(page, record, 42, names=("random",))
    assert framed(page, "b") == {} and page.locator("#links .of-b").count() == 0


@in_browser
def test_a_token_that_is_no_target_or_has_no_number_says_so(page: Any, record: Record) -> None:
    """No command prints a token that no full window precedes, or a further part of a character."""
    page.locator("h1").hover()
    assert page.locator("#panel").inner_text().startswith("Point at a token, or move to one with the keys")
    token(page, 3).click()
    said = page.locator("#panel").inner_text()
    assert "No full window stands before it, so it is no target." in said and "token 3, character" in said
    assert page.locator("#panel code, #panel dl, #panel table").count() == 0 and framed(page, "a") == {}
    assert token(page, 3).get_attribute("aria-posinset") == "4"
    assert token(page, 3).get_attribute("aria-setsize") == str(len(record.texts))
    part = record.texts.index("", FULL)
    token(page, part).click()
    assert page.locator("#panel dl").count() == 1 and page.locator("#panel code").count() == 0
    real = record.contexts["real"]
    worth = np.array(real.kl_short_nats, dtype=float)
    most = int(worth.argmax())
    page.evaluate("most => { DATA.contexts.real.kl_short_nats[most] = null; redraw(); }", most)
    assert token(page, record.first_target + most).get_attribute("aria-label").endswith(", not a number")
    listed = page.locator("#largest li").all_inner_texts()
    assert len(listed) == 10 and not any(f" token {record.first_target + most}," in one for one in listed)
    token(page, record.first_target + most).click()
    assert page.locator("#panel .numbers dd").first.inner_text() == "\u2013 nats"


@in_browser
def test_the_colours_of_both_sides_are_those_of_their_selectors(page: Any) -> None:
    colour_of = """name => {
      const one = document.createElement("canvas").getContext("2d");
      one.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
      return one.fillStyle;
    }"""
    page.locator("#selector").select_option("random")
    page.locator("#beside").select_option("unmask-one")
    assert page.evaluate(colour_of, "--a") == SELECTORS["random"].look.on_light.lower()
    assert page.evaluate(colour_of, "--b") == SELECTORS["unmask-one"].look.on_light.lower()
    page.locator("#theme").select_option("dark")
    assert page.evaluate(colour_of, "--a") == SELECTORS["random"].look.on_dark.lower()


@in_browser
@pytest.mark.usefixtures("only_here")
def test_selectors_may_be_named_as_the_two_sides_are(exploration: Exploration, browser: Any, tmp_path: Path) -> None:
    for name, like in (("b", "bm25"), ("a", "rarest")):
        SELECTORS[name] = dataclasses.replace(SELECTORS[like], name=name)
    named = renamed(exploration, kl="b", attention="a")
    complaints: list[str] = []
    page = load_page(browser, named.save_html(tmp_path / "named.html"), complaints)
    for side, like in (("a", "bm25"), ("b", "rarest")):
        colour = page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--{side}').trim()")
        assert colour == SELECTORS[like].look.on_light
    assert complaints == []


@in_browser
def test_tokens_of_which_nothing_can_be_seen_are_named(browser: Any, tmp_path: Path) -> None:
    texts = [" \u200c", "a", "\u200d", "e", "\u0301", " b"] * 6
    seen = [" (U+200C)", "a", "(U+200D)", "e", "\u25cc\u0301", " b"] * 6
    complaints: list[str] = []
    page = load_page(browser, made_up_exploration(texts).save_html(tmp_path / "joiners.html"), complaints)
    shown = page.evaluate("layout.places.map(place => place.text)")
    assert [one.strip() for one in shown] == [one.strip() for one in seen]
    for number in (12, 14, 16):  # targets
        page.evaluate(f"choose({number})")
        assert page.locator("#panel h2").inner_text().strip('\u201c\u201d"') == seen[number].strip()
        found = rows(page, "#panel table.tokens")
        assert found and all(word == seen[number - int(distance)].strip() for _, distance, word in found)
    assert complaints == []


@in_browser
def test_the_tolerance_changes_what_is_needed(page: Any, record: Record) -> None:
    target = a_target(
        record, lambda t: [smallest(record, t, "kl", tolerance=of) for of in (0.01, 0.1)] == [math.inf, 1]
    )
    token(page, record.first_target + target).click()
    for tolerance in (0.01, 0.1, 0.5):
        page.locator("#tolerance").select_option(str(tolerance))
        words = [
            "more than 4" if k == math.inf else str(int(k))
            for k in (smallest(record, target, name, tolerance=tolerance) for name in ("kl", "attention"))
        ]
        assert page.locator("#panel .smallest").all_inner_texts() == [f"Smallest sufficient k: {k}." for k in words]
        assert f"; needs {words[0]} token{'' if words[0] == '1' else 's'} by kl" in page.locator("#said").inner_text()


def check_bars_of_map(page: Any, counts: list[list[str]]) -> None:
    """Check what is drawn beside the map: each distance at its height, and there the bar of the first selector above that of the
    second, in their colours and as long as their counts; ``counts``: distance, targets of the first, of the second."""
    drawn = page.evaluate(
        """() => {
          const pen = CanvasRenderingContext2D.prototype;
          const [fillText, fillRect, words, boxes] = [pen.fillText, pen.fillRect, [], []];
          pen.fillText = (...text) => words.push(text);
          pen.fillRect = function (...box) { boxes.push([this.fillStyle, ...box]); };
          mapLayer(byId("map"), DATA, ofMap);
          Object.assign(pen, { fillText, fillRect });
          const [at, one] = [mapScales(DATA, byId("map")), document.createElement("canvas").getContext("2d")];
          const colours = ["--a", "--b"].map((name) => {
            one.fillStyle = inkOf(byId("map"))(name);
            return one.fillStyle;
          });
          const heights = Array.from({ length: DATA.full_len - DATA.local_len }, (_, i) => at.y(DATA.local_len + 1 + i));
          return { words, boxes, colours, heights, bars: at.right + MARGIN.gap, longest: MARGIN.bars, step: at.step };
        }"""
    )
    height_of = {int(row[0]): height for row, height in zip(counts, drawn["heights"], strict=True)}
    distances = {int(text): y for text, _, y in drawn["words"] if text.isdecimal()}
    assert LOCAL + 1 in distances and len(distances) > 1
    assert distances == {distance: pytest.approx(height_of[distance] + 4) for distance in distances}
    most = max(int(number) for row in counts for number in row[1:])
    assert len(set(drawn["colours"])) == 2
    for column, colour in enumerate(drawn["colours"], start=1):
        bars = [box[1:] for box in drawn["boxes"] if box[0] == colour and box[1] == drawn["bars"]]
        assert [width for _, _, width, _ in bars] == pytest.approx(
            [drawn["longest"] * int(row[column]) / most for row in counts]
        )
        for (_, top, _, thick), height in zip(bars, drawn["heights"], strict=True):
            low, high = (height - drawn["step"] / 2, height) if column == 1 else (height, height + drawn["step"] / 2)
            assert low - 1e-6 <= top < top + thick <= high + 1e-6


@in_browser
def test_the_map_counts_targets_by_distance_and_leads_to_them(page: Any, record: Record) -> None:
    page.locator("#distances").evaluate("one => { one.open = true; }")
    expected = [
        [str(distance), *(
            str(sum(
                record.first_target + target - distance in chosen(record, target, name, k=smallest(record, target, name))
                for target in range(record.num_targets)
            ))
            for name in ("kl", "attention")
        )]
        for distance in range(LOCAL + 1, FULL + 1)
    ]  # fmt: skip
    assert rows(page, "#distances table") == expected
    assert [page.locator(f"#distances .of-{side}").inner_text() for side in ("a", "b")] == ["kl", "attention"]
    assert len({tuple(row[1:]) for row in expected}) > 3
    label = page.locator("#map").get_attribute("aria-label")
    for column, name in enumerate(("kl", "attention"), start=1):
        needed = [int(row[0]) for row in expected for _ in range(int(row[column]))]  # the nearest first
        half = needed[(len(needed) - 1) // 2]
        assert f"half of those chosen by {name} lie at most {half} tokens back" in label
    box = page.locator("#map").bounding_box()
    left, right = 44, box["width"] - 8 - 90 - 14
    number = 120
    page.locator("#map").click(position={"x": left + number / 139 * (right - left), "y": 60})
    assert page.locator('[aria-selected="true"]').get_attribute("data-token") == str(number)
    check_panel(page, record, number - record.first_target)
    check_bars_of_map(page, expected)
    # A dot in the colour of the selector where the record has one, and none where it has none.
    page.locator("#beside").select_option("")
    painted = page.evaluate(
        """() => {
          const at = mapScales(DATA, byId("map"));
          const { data, width } = layer.getContext("2d").getImageData(0, 0, layer.width, layer.height);
          const dot = (t, d) => data[4 * (Math.round(at.y(d)) * width + Math.round(at.x(t))) + 3] > 100;
          return Array.from({ length: NUM_TARGETS }, (_, i) =>
            Array.from({ length: DATA.full_len - DATA.local_len }, (_, j) => dot(FIRST + i, DATA.local_len + 1 + j)));
        }"""
    )
    wanted = np.zeros((record.num_targets, FULL - LOCAL), dtype=bool)
    for target in range(record.num_targets):
        for one in chosen(record, target, "kl", k=smallest(record, target, "kl")):
            wanted[target, record.first_target + target - one - LOCAL - 1] = True
    np.testing.assert_array_equal(np.array(painted), wanted)


@in_browser
def test_keys_move_and_turn(page: Any, record: Record) -> None:
    def selected() -> int:
        found = page.locator("#document").get_attribute("aria-activedescendant")
        assert page.locator(f"#{found}").get_attribute("aria-selected") == "true"
        assert page.locator(f"#{found}").is_visible()
        return int(found.removeprefix("t"))

    page.locator("#document").focus()
    page.keyboard.press("ArrowRight")
    assert selected() == 0
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert selected() == 2
    page.keyboard.press("End")
    assert selected() == len(record.texts) - 1
    page.keyboard.press("ArrowUp")
    above = selected()
    layout = page.evaluate("layout.places.map(place => place.line)")
    assert layout[above] == layout[-1] - 1
    page.keyboard.press("ArrowDown")
    assert layout[selected()] == layout[-1]
    page.keyboard.press("Home")
    assert selected() == 0
    page.evaluate("box.style.height = '140px'")
    layout, height = page.evaluate("[layout.places.map(place => place.line), box.clientHeight]")
    page.keyboard.press("PageDown")
    assert layout[selected()] == height // 34 - 1 > 1  # a page of lines of 34 pixels leaves one of them in view
    page.keyboard.press("PageUp")
    assert layout[selected()] == 0
    pressed = "key => box.dispatchEvent(new KeyboardEvent('keydown', { cancelable: true, ...key }))"
    for other in (
        {"key": "End", "ctrlKey": True},
        {"key": "n", "metaKey": True},
        {"key": "r", "altKey": True},
        {"key": "x"},
    ):
        assert page.evaluate(pressed, other) and layout[selected()] == 0  # left to the browser
    assert not page.evaluate(pressed, {"key": "Home"})  # the page does not scroll
    page.keyboard.press("n")
    first = next(target for target in range(record.num_targets) if smallest(record, target, "kl") > 0)
    assert selected() == record.first_target + first
    found = chosen(record, first, "kl", k=smallest(record, first, "kl"))
    assert f"needs {len(found)} token" in page.locator("#said").inner_text()
    page.keyboard.press("r")
    assert page.get_by_label("what uses it").is_checked()
    assert "used by" in page.locator("#said").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#document").get_attribute("aria-activedescendant") is None
    assert page.locator("#said").text_content() == ""
    page.locator("#find").fill("lamp")
    page.locator("#find").press("Enter")
    lamps = [number for number, text in enumerate(record.texts) if text == " lamp"]
    assert selected() == lamps[0]
    for lamp in (*lamps[1:], lamps[0]):  # from the end on to the beginning
        page.locator("#find").press("Enter")
        assert selected() == lamp
    page.locator("#find").fill("LAMP")
    page.locator("#find").press("Enter")
    assert selected() == lamps[1]
    page.locator("#find").fill("Lamps")
    page.locator("#find").press("Enter")
    assert selected() == lamps[1]
    assert page.locator("#said").text_content() == "Lamps: not in the document"


@in_browser
def test_a_letter_that_becomes_longer_in_lower_case_moves_no_hit(browser: Any, tmp_path: Path) -> None:
    texts = ["\u0130", " \u0130\u0130", "zmir", " ve", " Ankara", " b"] * 5
    complaints: list[str] = []
    page = load_page(browser, made_up_exploration(texts).save_html(tmp_path / "turkish.html"), complaints)
    chosen_token = page.locator('[aria-selected="true"]')
    for wanted, places in (("ankara", range(4, 30, 6)), ("\u0130zmir VE", range(1, 30, 6))):
        page.evaluate("choose(null)")
        page.locator("#find").fill(wanted)
        for place in places:
            page.locator("#find").press("Enter")
            assert chosen_token.get_attribute("data-token") == str(place)
    assert complaints == []


def k_words(k: float) -> str:
    return "more than 4" if k == math.inf else str(int(k))


@in_browser
@pytest.mark.parametrize("context", ["real", "null"])
def test_the_targets_that_are_worth_most_are_listed_with_their_numbers(page: Any, record: Record, context: str) -> None:
    page.get_by_label(context).check()
    page.locator("#selector").select_option("attention")
    worth = np.array(record.contexts[context].kl_short_nats, dtype=float)
    most = np.argsort(-worth, kind="stable")[:10]
    listed = page.locator("#largest li")
    assert [one.split(" token ")[1] for one in listed.all_inner_texts()] == [
        f"{record.first_target + target}, {nats(worth[target])} nats, smallest sufficient k "
        f"{k_words(smallest(record, target, 'attention', context))}"
        for target in most.tolist()
    ]
    listed.nth(3).locator("button").click()
    assert page.locator('[aria-selected="true"]').get_attribute("data-token") == str(record.first_target + most[3])


@in_browser
def test_the_legend_has_a_shade_for_each_number(page: Any) -> None:
    """The roots of nats, places among the measured k, and doublings of uses: as tokens are shaded."""
    worth = [0.01, 0.05, 0.25, 1]
    roots = [math.sqrt(value) for value in worth]
    wanted: dict[str, tuple[str, list[tuple[str, float, bool]]]] = {
        "kl": ("Nats, KL(p_all, p_{}):", [(str(of), root, False) for of, root in zip(worth, roots, strict=True)]),
        "gain": (
            "Nats, L_short \u2212 L_long:",
            [
                (f"{sign}{of}", root, sign != "")
                for sign in ("", "\u2212")
                for of, root in zip(worth, roots, strict=True)
            ],
        ),
        "k": ("Smallest sufficient k:", [(of, i / 4, False) for i, of in enumerate(["0", "1", "2", "4", "> 4"])]),
        "uses": (
            "Later targets that use it:",
            [(of, (i + 1) / 4, False) for i, of in enumerate(["1", "2", "4", "8 or more"])],
        ),
    }
    for shade, (title, swatches) in wanted.items():
        page.locator("#shade").select_option(shade)
        shown = page.locator("#legend .token").evaluate_all(
            """all => all.map(t =>
              [t.textContent, Number(t.style.getPropertyValue("--heat-share")), t.classList.contains("against")])"""
        )
        assert [(text, against) for text, _, against in shown] == [(text, against) for text, _, against in swatches]
        assert [share for _, share, _ in shown] == pytest.approx([share for _, share, _ in swatches], abs=6e-4)
        assert page.locator("#legend span").first.inner_text() == title


@in_browser
def test_a_screen_reader_hears_what_a_token_needs_and_how_far_it_lies(page: Any, record: Record) -> None:
    target = a_target(record, lambda t: smallest(record, t, "kl") == 2)
    number, worth = record.first_target + target, record.contexts["real"].kl_short_nats[target]

    def word(one: int) -> str:
        return record.texts[one].strip() or ("\u2423" if record.texts[one] else "\u2025")

    token(page, number).click()
    needed = "; ".join(f"{word(one)}, {number - one} tokens apart" for one in chosen(record, target, "kl", k=2))
    said = page.locator("#said")
    assert said.text_content() == f"{word(number)}: reaction {nats(worth)} nats; needs 2 tokens by kl: {needed}"
    page.keyboard.press("r")
    users = [
        record.first_target + other
        for other in range(record.num_targets)
        if number in chosen(record, other, "kl", k=smallest(record, other, "kl"))
    ]
    using = "; ".join(f"{word(one)}, {one - number} tokens apart" for one in users)
    times = f"used by {len(users)} later target{'' if len(users) == 1 else 's'} by kl"
    assert said.text_content() == f"{word(number)}: reaction {nats(worth)} nats; {times}{f': {using}' if users else ''}"


@in_browser
@pytest.mark.parametrize(("context", "long"), [("real", "L_long, all tokens"), ("null", "L_long, null context")])
def test_the_numbers_of_the_panel_have_their_names(page: Any, record: Record, context: str, long: str) -> None:
    page.get_by_label(context).check()
    page.locator("#selector").select_option("unmask-one")
    token(page, record.first_target + 44).click()
    assert page.locator("#panel .numbers dt").all_inner_texts() == [
        "reaction, KL(p_all, p_{})", "L_short, local tokens alone", long, "long gain", "later targets that use it (unmask-one)",
    ]  # fmt: skip
    number = record.first_target + 44
    uses = sum(
        number in chosen(record, other, "unmask-one", k=smallest(record, other, "unmask-one", context), context=context)
        for other in range(record.num_targets)
    )
    assert page.locator("#panel .numbers dd").last.inner_text() == str(uses)
    heads = page.locator("#panel table:not(.tokens)").first.locator("thead th").all_inner_texts()
    assert heads == ["k", "KL", "loss", "gain", "over random", *["optimism"] * (context == "real")]
    assert page.locator("#panel .of-a").inner_text() == "unmask-one"
    captions = page.locator("#panel table caption").all_text_contents()
    assert captions == [
        f"{name}: {what}" for name in ("unmask-one", "attention") for what in ("the chosen tokens", "nats by k")
    ]
    k = smallest(record, 44, "unmask-one", context)
    shown = rows(page, "#panel table.tokens")[: len(chosen(record, 44, "unmask-one", k=k, context=context))]
    assert [row[:2] for row in shown] == [
        [str(rank), str(number - one)]
        for rank, one in enumerate(chosen(record, 44, "unmask-one", k=k, context=context), start=1)
    ]


@in_browser
def test_n_pressed_first_goes_to_the_first_token_in_view_that_needs_others(browser: Any, tmp_path: Path) -> None:
    complaints: list[str] = []
    long = made_up_exploration([" river"] * 3000)
    page = load_page(browser, long.save_html(tmp_path / "long.html"), complaints)
    needing = [smallest(long.record, target, "kl") > 0 for target in range(long.record.num_targets)]
    begins = page.evaluate("layout.lines.slice(5, 15).map(([first]) => first)")
    number = next(i for i, first in enumerate(begins) if needing[first - long.record.first_target])
    page.evaluate("number => { box.scrollTop = (number + 5) * LINE; }", number)
    page.locator("#document").focus()
    page.keyboard.press("n")
    assert page.evaluate("state.token") == begins[number]
    # The map shows which tokens are in view, and where the chosen one is; its axes are named.
    drawn = page.evaluate(
        """() => {
          const pen = CanvasRenderingContext2D.prototype;
          const [fillText, fillRect, words, boxes] = [pen.fillText, pen.fillRect, [], []];
          box.scrollTop = 40 * LINE;
          pen.fillRect = (...of) => boxes.push(of);
          showMap();
          pen.fillText = (...text) => words.push(text);
          mapLayer(byId("map"), DATA, []);
          Object.assign(pen, { fillText, fillRect });
          const [at, [first, behind]] = [mapScales(DATA, byId("map")), inView()];
          const ends = [layout.lines[first][0], layout.lines[behind - 1][1] - 1].map(at.x);
          return { boxes, ends, chosen: at.x(state.token), words, left: at.x(0), bars: at.right + MARGIN.gap };
        }"""
    )
    (band, line), (first, last) = drawn["boxes"], drawn["ends"]
    assert drawn["left"] < first < last and (band[0], band[0] + band[2]) == pytest.approx((first, max(last, first + 2)))
    assert line[0] + line[2] / 2 == pytest.approx(drawn["chosen"]) and line[3] == band[3]
    named = {words: x for words, x, _ in drawn["words"]}
    assert (named["token of the document \u2192"], named["targets"]) == (drawn["left"], drawn["bars"])
    # Lines are arranged anew in a narrower window.
    lines = page.evaluate("layout.lines.length")
    page.set_viewport_size({"width": 800, "height": 900})
    page.wait_for_function(f"() => layout.lines.length !== {lines}")
    assert page.evaluate("layout.lines.at(-1)[1]") == 3000
    page.context.close()
    assert not complaints


@in_browser
def test_groups_are_framed_and_counted_as_a_whole(browser: Any, tmp_path: Path) -> None:
    complaints: list[str] = []
    words = made_up_exploration([" river"] * 60, groups=True)
    page = load_page(browser, words.save_html(tmp_path / "words.html"), complaints)
    page.locator("#k").evaluate("slider => { slider.value = 1; slider.dispatchEvent(new Event('input')); }")
    token(page, FULL + 20).click()
    both = chosen(words.record, 20, "kl", k=2)
    assert framed(page, "a") == dict.fromkeys(both, "1")
    assert "; 1 word chosen by kl: " in page.locator("#said").inner_text()
    page.context.close()
    assert complaints == []


@in_browser
def test_a_notebook_runs_the_page_in_its_frame(
    browser: Any, exploration: Exploration, record: Record, tmp_path: Path
) -> None:
    (tmp_path / "notebook.html").write_text(
        f"<!doctype html><body>{exploration._repr_html_()}</body>", encoding="utf-8"
    )
    page = browser.new_page()
    page.goto((tmp_path / "notebook.html").as_uri())
    inside = page.wait_for_selector("iframe").content_frame()
    inside.wait_for_selector(f'#document [data-token="{record.first_target}"]').click()
    kl = record.contexts["real"].kl_short_nats[0]
    assert inside.locator("#panel .numbers dd").first.inner_text() == f"{nats(kl)} nats"
    page.close()


@in_browser
def test_every_token_stands_in_the_document_in_order_as_text(page: Any, record: Record) -> None:
    shown = page.evaluate("layout.places.map(place => place.text)")
    assert len(shown) == len(record.texts)
    for text, one in zip(shown, record.texts, strict=True):
        assert text in (one, one.lstrip(" "), "\u2025" if not one else "\u2423")
    lines = page.evaluate("layout.lines")
    assert [begin for begin, _ in lines] == [0, *(behind for _, behind in lines[:-1])] and lines[-1][1] == len(shown)
    assert page.locator("#document img, #document b, #panel b").count() == 0
    for number in range(len(HOSTILE)):
        assert token(page, number).inner_text().strip() == shown[number].strip()


@in_browser
def test_only_lines_in_view_exist(browser: Any, tmp_path: Path) -> None:
    long = made_up_exploration([SEED_WORDS[i % len(SEED_WORDS)] for i in range(5000)], seed=3)
    complaints: list[str] = []
    page = load_page(browser, long.save_html(tmp_path / "long.html"), complaints)
    assert 0 < page.locator("#document .token").count() < 800
    for number in (2500, 4999, 17):
        page.evaluate("number => choose(number)", number)
        assert token(page, number).is_visible()
        assert 0 < page.locator("#document .token").count() < 800
        here, whole = token(page, number).bounding_box(), page.locator("#document").bounding_box()
        assert whole["y"] <= here["y"] and here["y"] + here["height"] <= whole["y"] + whole["height"]
    page.context.close()
    assert complaints == []


@in_browser
def test_the_first_screen_of_a_phone_has_the_answer_and_the_text(browser: Any, path: Path) -> None:
    """The controls, which would fill it, are folded; the keyboard opens them, and a wide window has them open."""
    complaints: list[str] = []
    page = load_page(browser, path, complaints, viewport={"width": 390, "height": 844})
    for shown in (page.locator(".verdict"), page.locator("#controls-box > summary"), page.locator(".line").first):
        box = shown.bounding_box()
        assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= 844
    assert not page.locator("#shade").is_visible()
    page.locator("#controls-box > summary").focus()
    page.keyboard.press("Enter")
    page.locator("#shade").select_option("k")
    assert page.locator("#legend").inner_text().startswith("Smallest sufficient k")
    page.keyboard.press("Enter")
    page.set_viewport_size({"width": 1200, "height": 900})
    page.wait_for_selector("#shade", state="visible")
    assert not page.locator("#controls-box > summary").is_visible()
    page.context.close()
    assert complaints == []


@in_browser
def test_a_page_is_printed_in_the_light_colours(browser: Any, path: Path) -> None:
    complaints: list[str] = []
    page = load_page(browser, path, complaints, color_scheme="dark")
    colour = "getComputedStyle(document.documentElement).getPropertyValue('--good-back').trim()"
    for theme in ("", "dark"):
        page.emulate_media(media="screen")
        page.locator("#theme").select_option(theme)
        assert page.evaluate(colour) == COLOURS["good-back"][1]
        page.emulate_media(media="print")
        assert page.evaluate(colour) == COLOURS["good-back"][0]
    page.context.close()
    assert complaints == []


@in_browser
@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_axe_finds_nothing(browser: Any, path: Path, record: Record, scheme: str, width: int) -> None:
    complaints: list[str] = []
    page = load_page(
        browser, path, complaints, color_scheme=scheme, viewport={"width": width, "height": 844}, bypass_csp=True
    )
    page.locator("#distances").evaluate("one => { one.open = true; }")
    if width < 768:
        assert violations_of(page) == []
        page.locator("#controls-box > summary").click()
    page.locator("#beside").select_option("unmask-one")
    token(page, record.first_target + 3).click()
    assert violations_of(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_label("what uses it").check()
    page.locator("#shade").select_option("gain")
    page.get_by_label("null").check()
    assert violations_of(page) == []
    page.context.close()
    assert complaints == []
