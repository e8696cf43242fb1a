"""The report: every number on the page is that of the frame or of the tables; no script; and it can be read in a real browser."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Optional

import pandas as pd
import pyarrow.parquet as pq
import pytest
from browser_pages import chromium, in_browser, load_page, violations_of
from unlike_tables import CONTEXTUAL, PRETRAINED, M, made_up_tables, unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.errors import printable
from olmo_sparsity.statistics.quantities import QUANTITIES, first_blind, pick, read_estimates
from olmo_sparsity.view.report import write_report
from olmo_sparsity.view.summary import recovered_table, spectrum_table
from olmo_sparsity.view.words import AROUND, near_visible, words

HOSTILE = [
    "</script><img src=x onerror=alert(1)>", " <b>bold</b>", "<!--<script>", " \"&amp;'", " {{ 7 * 7 }}",
    " \u2028line\u2029", " \u202eright", "\n", " $$ \\u003c", "</style><style>*{}",
]  # fmt: skip
MAIN = ["kl", "attention", "unmask-one", "random", "nearest"]
KEYS = ("quantity", "group", "selector", "context", "k", "x")
NUMBER = re.compile(r"([\u2212-]?[\d.]+)%?(?: \[([\u2212-]?[\d.]+), ([\u2212-]?[\d.]+)\])?")
VOID = {"meta", "br", "rect", "use", "path"}


class Node(HTMLParser):
    """A page, or an element of one: its tag, its attributes, and everything in it."""

    def __init__(self, tag: str = "", attributes: Sequence[tuple[str, Optional[str]]] = ()) -> None:
        super().__init__()
        self.tag, self.attributes, self.children = tag, dict(attributes), list[Any]()
        self.open = [self]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, Optional[str]]]) -> None:
        node = Node(tag, attrs)
        self.open[-1].children.append(node)
        self.open += [node] if tag not in VOID else []

    def handle_endtag(self, tag: str) -> None:
        assert tag in VOID or self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    def all(self, tag: str = "", **attributes: str) -> Iterator[Node]:
        for child in self.children:
            if isinstance(child, Node):
                has = {name: (value or "").split() for name, value in child.attributes.items()}
                if tag in ("", child.tag) and all(of in has.get(name, []) for name, of in attributes.items()):
                    yield child
                yield from child.all(tag, **attributes)

    def table(self) -> pd.DataFrame:
        head, *rows = [[cell.text for cell in row.children if isinstance(cell, Node)] for row in self.all("tr")]
        return pd.DataFrame(rows, columns=head)


def parsed(page: Path) -> Node:
    root = Node()
    root.feed(page.read_text().replace("\u00a0", " "))
    assert root.open == [root]
    return root


def numbers_of(text: str) -> list[float]:
    """A number and the ends of its interval, where it has one; of a percentage as a share."""
    found = NUMBER.fullmatch(text)
    assert found, text
    of_one = 100 if "%" in text else 1
    return [float(one.replace("\u2212", "-")) / of_one for one in found.groups() if one is not None]


def assert_is(text: str, row: Optional[pd.Series], digits: int) -> None:
    """A cell holds the number of a row of the frame, with its interval if it has one."""
    assert row is not None, text
    expected = [row[name] for name in ("value", "low", "high") if not math.isnan(row[name])]
    assert numbers_of(text) == pytest.approx(expected, abs=0.501 * 10**-digits, rel=0)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("a_name_that_is_wider_than_a_phone_and_cannot_be_broken")
    settings: dict[str, dict[str, Any]] = {
        "passed": {},
        "failed": {"long_gain": 0.0, "setup": CONTEXTUAL},
        # All of its windows are shown.
        "few": {"num_documents": 2, "texts": ["first", *HOSTILE], "setup": {"run": HOSTILE[0]}},
        "pretrained": {"setup": PRETRAINED, "selectors": ["unmask-one", "random"]},
    }
    made = {name: made_up_tables(folder / name, **{"selectors": MAIN, **of}) for name, of in settings.items()}
    manifest = unlike_manifest()
    manifest["influence"] |= {
        "k": [1, 3, 5],
        "selectors": ["kl", "unmask-one", "random", "nearest"],
        "resampled_draws": 2,
    }
    rows = unlike_rows(manifest)
    for row in rows["selections"]:
        if (row["selector"], row["context"]) == ("kl", "real"):  # three tokens give back the whole gain
            of = rows["windows"][row["window_id"]]
            row["loss_sparse_nats"][1:] = [of["loss_long_nats"]] * 2
            row["gain_sparse_nats"][1:] = [of["gain_long_nats"]] * 2
    made["enough"] = write_rows(folder / "enough", manifest, rows)
    return made | {"words": shutil.copytree(Path(__file__).parents[1] / "guard/data/tables/words", folder / "words")}


@pytest.fixture(scope="module")
def pages(tables: dict[str, Path]) -> dict[str, Path]:
    return {name: write_report(of, of.parent / f"{name}.html", overwrite=False) for name, of in tables.items()}


# --- numbers


def keys_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a row of the frame is of."""
    return tuple(None if pd.isna(row[name]) else row[name] for name in KEYS)


@pytest.mark.parametrize("which", ["passed", "failed", "words"])
def test_all_numbers_are_those_of_the_frame(tables: dict[str, Path], pages: dict[str, Path], which: str) -> None:
    """Each number that is for reports is there once, under its keys, as the frame has it; of classes those of one choice."""
    names = {quantity.header: name for name, quantity in QUANTITIES.items()}
    frame = read_estimates(tables[which])
    rows, blind = {keys_of(row): pd.Series(row) for row in frame.to_dict("records")}, first_blind(frame)
    found = []
    for of in next(parsed(pages[which]).all("section", **{"aria-label": "Details"})).all("table"):
        for row in of.table().to_dict("records"):
            row["group"], row["x"] = row.pop("class", None), float(row["x"]) if "x" in row else None
            keys = {name: row.pop(name, None) for name in ("group", "selector", "context", "k", "x")}
            for head, text in ({row["quantity"]: row["value"]} if "quantity" in row else row).items():
                k, is_share = keys["k"], head.startswith(("k = ", "share"))
                name = {"s": "window_share", "k": "spectrum_share"}[head[0]] if is_share else names[head]
                k = int(head[4:]) if head.startswith("k = ") else None if k is None else int(k)
                key = keys_of({"quantity": name, **keys, "k": k})
                assert (text == "-") == (key not in rows)
                if text != "-":
                    assert_is(text, rows[key], 2 if is_share else QUANTITIES[name].digits)
                    found.append(key)
    shown = [key for key in rows if key[0] not in QUANTITIES or "report" in QUANTITIES[key[0]].show]
    expected = [key for key in shown if key[1] is None or key[2] is None or key[2:5] == (blind, "real", 1)]
    assert sorted(map(str, found)) == sorted(map(str, expected)) and len(found) > 200


def test_both_tables_are_those_of_the_summary_where_the_gate_passed(
    pages: dict[str, Path], tables: dict[str, Path]
) -> None:
    for which, frame in ((which, read_estimates(tables[which])) for which in ("passed", "failed", "few")):
        shown = [of.table() for of in parsed(pages[which]).all("table")]
        for table in (recovered_table(frame), spectrum_table(frame)):
            assert len(table) == 0 or sum(table.equals(of) for of in shown) == 1
        starts = [of.columns[0] for of in shown]
        assert (which == "passed") == ("Gain given back (R)" in starts) == ("Predict as all do" in starts)


@pytest.mark.parametrize("which", ["passed", "words"])
def test_the_five_windows_are_those_of_the_tables(tables: dict[str, Path], pages: dict[str, Path], which: str) -> None:
    """At the best, worst and three middle places by gain at the smallest k; with the losses, and the picked words marked."""
    selections = pq.read_table(tables[which] / "selections").to_pandas().query("context == 'real'")
    selections = selections[selections["selector"] == first_blind(read_estimates(tables[which]))]
    windows = pq.read_table(tables[which] / "windows").to_pandas().set_index("window_id")
    selections = selections.assign(gain=selections["gain_sparse_nats"].str[0]).sort_values(["gain", "window_id"])
    places = [round(share * (len(selections) - 1)) for share in (1, 0.75, 0.5, 0.25, 0)]
    cards = list(parsed(pages[which]).all("article"))
    for card, (_, choice) in zip(cards, selections.iloc[places].iterrows(), strict=True):
        window = windows.loc[choice["window_id"]]
        assert f"Window {choice['window_id']}, {window['target_class']}" in card.text
        losses = [window["loss_short_nats"], choice["loss_sparse_nats"][0], window["loss_long_nats"]]
        rows = [[cell.text for cell in row.all("td")] for row in card.all("tr")]
        for (_, share, nats), loss, bar in zip(rows, losses, card.all("rect"), strict=True):
            assert float(nats.removesuffix(" nats")) == pytest.approx(loss, abs=0.000501)
            assert float(share.removesuffix("%")) == pytest.approx(100 * math.exp(-loss), rel=0.006)
            assert float(bar.attributes["width"] or "") == pytest.approx(100 * math.exp(-loss), abs=0.006)
        boxes = [box.text for box in card.all("b", **{"class": "target"})]
        assert boxes == [printable(window["target_text"]).removeprefix(" ") or "\u2423"]
        group = [choice["positions"][0]]
        if which == "words":
            group = range(choice["group_first"][0], choice["group_last"][0] + 1)
        marks, picked = "".join(of.text for of in card.all("mark")), "".join(window["token_texts"][j] for j in group)
        assert re.sub(r"\W", "", picked) in re.sub(r"\W", "", marks) and marks


def test_a_long_text_is_cut_around_the_picked_words(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    cards = [(which, card) for which in ("passed", "failed") for card in parsed(pages[which]).all("article")]
    cut = 0
    for which, card in cards:
        windows = pq.read_table(tables[which] / "windows").to_pandas().set_index("window_id")
        number = int(re.findall(r"Window (\d+)", card.text)[0])
        earlier = next(iter(card.all("p"))).text.removeprefix("earlier").replace("\u2026", "").split()
        picked = [" ".join(mark.text.split()) for mark in card.all("mark")]
        texts = [text.strip() for text in windows.loc[number, "token_texts"][:M]]
        places = [at for at in range(M) if texts[at] in picked]
        if len(places) == 1:
            assert earlier == [text for at, text in enumerate(texts) if abs(at - places[0]) <= AROUND]
            cut += len(earlier) < M
    assert cut == sum("\u2026" in card.text for _, card in cards) > 0
    shown = near_visible(words([f" {at}" for at in range(60)], {15: 1, 45: 2}))
    expected = ["\u2026", *map(str, range(5, 26)), "\u2026", *map(str, range(35, 56)), "\u2026"]
    assert " ".join(word.text for word in shown) == " ".join(expected)


# --- words


def checks_of(page: Node) -> dict[str, tuple[str, str]]:
    """The state of each control, and what is said of it."""
    (of,) = page.all("dl", **{"class": "checks"})
    pairs = ((term.text.split(": "), value.text) for term, value in zip(of.all("dt"), of.all("dd"), strict=True))
    return {name: (state, text) for (name, state), text in pairs}


def test_answers_and_controls_follow_the_intervals(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    for which in ("passed", "failed", "few"):
        frame, page = read_estimates(tables[which]), parsed(pages[which])
        gain = pick(frame, "gate_gain_nats")
        assert gain is not None
        verdict = "YES" if gain["low"] > 0 else "NO" if gain["high"] < 0 else "NOT SHOWN"
        verdict = verdict if gain["low"] == gain["low"] else "TOO FEW DOCUMENTS"
        assert next(page.all("p", **{"class": "verdict"})).text == verdict
        checks = checks_of(page)
        for name, quantity in (("Null context", "excess_over_random_nats"), ("Damping", "gain_over_damping_nats")):
            row = pick(frame, quantity, selector=first_blind(frame), context="real", k=1)
            assert row is not None
            side = "passed" if row["low"] > 0 else "failed" if row["high"] < 0 else "open"
            assert checks[name][0] == (side if verdict == "YES" else "open")
            (number,) = re.findall(rf"{NUMBER.pattern} nats", checks[name][1])
            assert float(number[0].replace("\u2212", "-")) == pytest.approx(row["value"], abs=0.000501)
        assert checks["Documents"][0] == ("failed" if which == "few" else "passed")


def test_what_k_counts_has_its_name(pages: dict[str, Path]) -> None:
    for which, one, many in map(str.split, ("passed token tokens", "failed entry entries", "words word words")):
        page = parsed(pages[which])
        assert f"earlier {many}" in next(page.all("h1")).text
        assert f"1 {one} picked by " in next(page.all("article")).text
    assert "3 tokens picked by kl" in next(parsed(pages["enough"]).all("article")).text


def test_a_pretrained_model_whose_selector_sees_the_target(pages: dict[str, Path]) -> None:
    """It gains more than damping by luck, which is no passed control; and no training row is known."""
    page = parsed(pages["pretrained"])
    assert "someone/Made-Up-2M" in next(page.all("header")).text
    assert [of.text for of in page.all("p", **{"class": "verdict"})][:2] == ["YES", "DOES NOT APPLY"]
    states = {name: state for name, (state, _) in checks_of(page).items()}
    assert states == {"Null context": "open", "Damping": "open", "Optimism": "open", "Documents": "passed"}
    assert "1 token picked by unmask-one" in next(page.all("article")).text


# --- the file


def test_nothing_runs_and_text_stays_text(pages: dict[str, Path]) -> None:
    """The policy forbids scripts and everything from elsewhere; what a text holds is shown, and no element of its own."""
    for path in pages.values():
        page = parsed(path)
        (policy,) = [of.attributes["content"] or "" for of in page.all("meta") if of.attributes.get("http-equiv")]
        assert "default-src 'none'" in policy and "script-src 'none'" in policy and "unsafe" not in policy
        tags = {of.tag for of in page.all()}
        assert not tags & {"script", "img", "iframe", "link", "object", "embed", "form", "image"}
        names = {name for of in page.all() for name in of.attributes}
        assert not [name for name in names if name.startswith("on") or name in ("style", "src")]
        assert not [of for of in page.all() for value in of.attributes.values() if "javascript:" in (value or "")]
    page = parsed(pages["few"])
    assert HOSTILE[0] in next(page.all("h1")).text
    words = " ".join("".join(of.text for of in page.all("article")).split())
    for text in HOSTILE:
        assert printable(text).strip() in words


# --- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@in_browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_everyone_can_read_it(browser: Any, pages: dict[str, Path], width: int, scheme: str) -> None:
    """No fault for axe, with all details open; no scrolling sideways; nothing that the policy had to stop; five screens."""
    complaints: list[str] = []
    context = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
    page = load_page(browser, pages["passed"], complaints, **context)
    if width == 1440:
        assert page.evaluate("document.documentElement.scrollHeight") <= 5 * 900
        boxes = [page.locator(what).bounding_box() for what in (".answers", "figure")]
        assert all(box["y"] + box["height"] <= 900 for box in boxes)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelectorAll('details').forEach(of => of.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert complaints == []
    page = load_page(browser, pages["passed"], [], **context, bypass_csp=True)
    page.evaluate("document.querySelectorAll('details').forEach(of => of.open = true)")
    assert violations_of(page) == []
