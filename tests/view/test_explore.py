"""The page of an explored document, and how pages are written: numbers that differ in every place show what is shown where."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_pages import chromium, in_browser, load_page, violations_of

from olmo_sparsity.api import Exploration
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.view.pages import check_free, write_page

LOCAL, FULL, KS = 3, 9, [1, 2, 4]
NAMES = ["kl", "attention", "unmask-one"]
HOSTILE = [
    "</script><img src=x onerror=alert(1)>", " <b>bold</b>", "<!--<script>", " \"&amp;'", " {{ 7 * 7 }}", " \u2028line",
    " \u202eright", "\n", "  ", " $$ \\u003c",
]  # fmt: skip
SEED_WORDS = [" river", " stone", "s", ".", " the", " window", "\n", " lamp"]
TEXTS = [printable(word) for word in [*HOSTILE, *SEED_WORDS * 7, *HOSTILE, *SEED_WORDS * 8][:140]]
NUM_TARGETS = len(TEXTS) - FULL


def made_up(long_gain: float = 0.3, visibility: str = "hidden") -> Exploration:
    """An exploration of invented tokens and numbers, of which no two are alike to three digits."""
    rng = np.random.default_rng(0)

    def numbers(low: float, high: float, *shape: int) -> Any:
        return np.round(rng.uniform(low, high, (NUM_TARGETS, *shape)), 5)

    def choices(name: str) -> dict[str, Any]:
        order = np.argsort(rng.random((NUM_TARGETS, FULL - LOCAL)), axis=1)[:, : KS[-1]]
        return {
            "name": name, "definition": f"the rule of {name}", "sees_target": name == "unmask-one", "ranks": None,
            "positions": order.tolist(), "loss": numbers(1, 9, len(KS)).tolist(),
            "kl": (numbers(0, long_gain, len(KS)) / [1, 3, 9]).tolist(),
        }  # fmt: skip

    views = 2 + len(NAMES) * len(KS)
    tokens = np.argsort(rng.random((NUM_TARGETS, views, 40)), axis=2)[:, :, :5]
    data = {
        "texts": TEXTS, "offsets": np.cumsum([0, *map(len, TEXTS[:-1])]).tolist(), "first": FULL, "local_len": LOCAL,
        "full_len": FULL, "units": ["token", "tokens"], "ks": KS, "tolerances": [0.01, 0.05, 0.1, 0.5], "tolerance": 0.05,
        "loss_short_nats": numbers(1, 9).tolist(), "loss_long_nats": numbers(1, 9).tolist(),
        "kl_short_nats": numbers(0, long_gain).tolist(), "null_kl_short_nats": numbers(0, long_gain).tolist(),
        "random_loss": numbers(1, 9, len(KS)).tolist(), "selectors": [choices(name) for name in NAMES],
        "likely": {
            "texts": [f" w{number}" for number in range(39)] + ["<i>"], "tokens": tokens.tolist(),
            "shares": np.sort(numbers(0, 0.2, views, 5), axis=2)[:, :, ::-1].tolist(),
            "targets": tokens[:, 1, 0].tolist(),
        },
    }  # fmt: skip
    influence = {"unit": "token", "null_context": "shuffled"}
    manifest = {"run": "runs & co", "visibility": visibility, "influence": influence}
    return Exploration("made <b>up</b>.txt", manifest, data)


@pytest.fixture(scope="module")
def exploration() -> Exploration:
    return made_up()


@pytest.fixture(scope="module")
def path(exploration: Exploration, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exploration.save_html(tmp_path_factory.mktemp("pages") / "document.html")


def needed(data: dict[str, Any], target: int, number: int = 0, tolerance: float = 0.05) -> float:
    """The smallest sufficient k, by its definition."""
    steps = zip([0, *KS], [data["kl_short_nats"][target], *data["selectors"][number]["kl"][target]], strict=True)
    return next((k for k, kl in steps if kl <= tolerance), math.inf)


# --- without a browser


def test_the_page_holds_the_data_and_hostile_text_stays_text(path: Path, exploration: Exploration) -> None:
    page = path.read_text()
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert json.loads(text) == exploration.data
    assert "<img" not in page and "<b>up" not in page and "runs &amp; co" in page
    policy = html.unescape(re.findall(r'Security-Policy" content="(.*?)"', page)[0])
    assert policy.startswith("default-src 'none'; script-src 'sha256-") and "unsafe" not in policy
    for address in ("http:", "https:", "@import", "url("):
        assert address not in page


def test_targets_and_the_first_sentence_follow_the_definition(exploration: Exploration) -> None:
    data, targets = exploration.data, exploration.targets
    assert targets.index.tolist() == list(range(FULL, len(TEXTS))) and targets["text"].tolist() == TEXTS[FULL:]
    for number, name in enumerate(NAMES):
        k = [needed(data, target, number) for target in range(NUM_TARGETS)]
        assert targets[f"sufficient_k_{name}"].tolist() == k
    moved = [k for target in range(NUM_TARGETS) if (k := needed(data, target)) > 0]
    half = next(k for k in KS if sum(one <= k for one in moved) * 2 >= len(moved))
    numbers = list(map(int, re.findall(r"(?<![\w.])\d+(?![\w.])", exploration.found)))
    assert numbers == [len(moved), NUM_TARGETS, half] and half > 1


def test_nothing_and_too_much_are_said_and_entries_have_their_name(exploration: Exploration) -> None:
    nothing = made_up(long_gain=0.01).found
    assert f" 0 of {NUM_TARGETS} " in nothing and "picked by" not in nothing
    assert "more than 4 tokens picked by kl" in made_up(long_gain=20.0).found
    page = made_up(visibility="contextual").to_html()
    assert "Which earlier entries does" in page and "<dt>Entry</dt>" in page
    (shown,) = re.findall(
        r'<iframe sandbox="allow-scripts" srcdoc="(.*?)" style=', exploration._repr_html_(), re.DOTALL
    )
    assert html.unescape(shown) == exploration.to_html() and '"' not in shown


def test_only_a_page_of_ours_is_replaced_and_only_if_asked(
    exploration: Exploration, path: Path, tmp_path: Path
) -> None:
    page, foreign, link = (tmp_path / name for name in ("a/page.html", "foreign.html", "link.html"))
    assert write_page(page, path.read_text(), overwrite=False) == page
    with pytest.raises(UserError, match="the file exists; --overwrite replaces it"):
        write_page(page, "other", overwrite=False)
    with pytest.raises(UserError, match="the file exists"):
        exploration.save_html(path)
    assert page.read_text() == path.read_text()
    write_page(page, "other", overwrite=True)
    assert page.read_text() == "other"
    foreign.write_text("<html>mine</html>")
    link.symlink_to(foreign)
    for file, said in ((foreign, "no page that olmo-sparsity wrote"), (link, "symbolic link"), (tmp_path, "a folder")):
        with pytest.raises(UserError, match=said):
            check_free(file, overwrite=True)
    assert foreign.read_text() == "<html>mine</html>"


# --- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def page(browser: Any, path: Path) -> Iterator[Any]:
    complaints: list[str] = []
    loaded = load_page(browser, path, complaints)
    loaded.wait_for_selector("html[data-ready]")
    yield loaded
    assert complaints == []
    loaded.context.close()


def framed(page: Any, side: str) -> list[int]:
    return sorted(
        page.evaluate(f"[...document.querySelectorAll('.document .{side}')].map((n) => Number(n.dataset.token))")
    )


def frames(data: dict[str, Any], token: int, number: int, k: float) -> list[int]:
    positions = data["selectors"][number]["positions"][token - FULL][: int(min(k, KS[-1]))]
    return sorted(token - FULL + position for position in positions)


def cells(page: Any, caption: str) -> list[list[str]]:
    """The rows of a table of the panel, the head first."""
    return page.evaluate(
        "(caption) => [...[...document.querySelectorAll('.panel table')].find((t) => t.caption.textContent === caption).rows]"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))",
        caption,
    )


def number(text: str) -> float:
    return float(text.replace("\u2212", "-"))


@in_browser
def test_the_document_is_there_as_text_and_fits(browser: Any, path: Path, exploration: Exploration) -> None:
    for width in (390, 1440):
        complaints: list[str] = []
        page = load_page(browser, path, complaints, viewport={"width": width, "height": 900})
        page.wait_for_selector("html[data-ready]")
        shown = page.evaluate("document.getElementById('document').textContent")
        assert shown == "".join(text + "\n" * ("\u21b5" in text) for text in TEXTS)
        assert page.evaluate("document.documentElement.scrollWidth") == width and complaints == []
        assert page.locator("#controls[open]").count() == (width == 1440)
        gains = np.subtract(exploration.data["loss_short_nats"], exploration.data["loss_long_nats"])
        assert page.evaluate("state.token") == FULL + int(gains.argmax())
        page.context.close()


@in_browser
def test_a_click_shows_what_is_predicted_and_what_is_picked(page: Any, exploration: Exploration) -> None:
    data, target = exploration.data, 77
    page.locator(f"#t{FULL + target}").click()
    k = needed(data, target)
    index = KS.index(int(min(k, KS[-1]))) if k else None
    assert index is not None
    head, *rows = cells(page, "The most likely tokens here")
    assert head == ["rank", "local tokens only", f"+ {KS[index]} by kl", "all tokens"]
    views = [0, 2 + index, 1]
    likely = data["likely"]
    for rank in range(5):
        for view, cell in zip(views, rows[rank][1:], strict=True):
            text, share = cell.rsplit(" ", 1)
            assert text == likely["texts"][likely["tokens"][target][view][rank]].strip()
            assert float(share[:-1]) == pytest.approx(100 * likely["shares"][target][view][rank], abs=0.51)
    hits = page.evaluate("[...document.querySelectorAll('.panel .hit')].map((cell) => cell.textContent.split(' ')[0])")
    assert hits and set(hits) == {likely["texts"][likely["targets"][target]].strip()}
    of_kl = data["selectors"][0]["loss"][target]
    losses = [data["loss_short_nats"][target], of_kl[index], data["loss_long_nats"][target]]
    assert [number(cell) for cell in rows[6][1:]] == pytest.approx(losses, abs=6e-4)
    kl = [data["kl_short_nats"][target], data["selectors"][0]["kl"][target][index], 0]
    assert [number(cell) for cell in rows[7][1:]] == pytest.approx(kl, abs=6e-4)
    by_k = cells(page, "Nats by k")[1:]
    for i, row in enumerate(by_k):
        random, of_k = data["random_loss"][target][i], data["selectors"][0]["kl"][target][i]
        expected = [KS[i], of_k, losses[0] - of_kl[i], random - of_kl[i]]
        assert [number(cell) for cell in row] == pytest.approx(expected, abs=6e-4)
    assert framed(page, "in-a") == frames(data, FULL + target, 0, k)
    words = page.locator(".panel p").all_inner_texts()
    assert any(f"{data['null_kl_short_nats'][target]:.3f}" in one for one in words)
    page.locator("#t2").click()
    assert "not measured" in page.locator("#panel").inner_text() and framed(page, "in-a") == []


@in_browser
def test_the_controls_change_k_the_tolerance_and_the_second_selector(page: Any, exploration: Exploration) -> None:
    data, token = exploration.data, 100
    page.locator(f"#t{token}").click()
    page.mouse.move(0, 0)
    assert page.locator("#second").input_value() == "" and framed(page, "in-b") == []
    page.locator("#tolerance").select_option("0.01")
    assert framed(page, "in-a") == frames(data, token, 0, needed(data, token - FULL, tolerance=0.01))
    for step, k in enumerate([0, *KS]):
        page.locator("#k").fill(str(step))
        assert framed(page, "in-a") == frames(data, token, 0, k) and not page.locator("#own").is_checked()
    page.locator("#second").select_option("attention")
    assert framed(page, "in-b") == frames(data, token, 1, KS[-1])
    assert cells(page, "The most likely tokens here")[0][2:4] == ["+ 4 by kl", "+ 4 by attention"]
    page.locator("#own").check()
    assert framed(page, "in-b") == frames(data, token, 1, needed(data, token - FULL, 1, 0.01))
    gains = np.abs(np.subtract(data["loss_short_nats"], data["loss_long_nats"]))
    for shade, shares in (("kl", np.sqrt(data["kl_short_nats"])), ("gain", np.sqrt(gains))):
        page.locator("#shade").select_option(shade)
        found = page.evaluate(
            "[...document.querySelectorAll('.document .token')].map((n) => n.style.getPropertyValue('--share'))"
        )
        assert [float(one) for one in found[FULL:]] == pytest.approx(np.minimum(1, shares), abs=6e-4)


@in_browser
def test_keys_move_through_the_document_and_a_screen_reader_hears_it(page: Any, exploration: Exploration) -> None:
    box = page.locator("#document")
    page.locator("#t60").click()
    page.mouse.move(0, 0)
    last = len(TEXTS) - 1
    keys = [("ArrowRight", 61), ("ArrowLeft", 60), ("Home", 0), ("End", last), ("ArrowRight", last), ("Home", 0)]
    for key, token in keys:
        box.press(key)
        assert page.evaluate("state.token") == token and box.get_attribute("aria-activedescendant") == f"t{token}"
    box.press("n")
    first = next(target for target in range(NUM_TARGETS) if needed(exploration.data, target) > 0) + FULL
    assert page.evaluate("state.token") == first
    reaction = exploration.data["kl_short_nats"][first - FULL]
    assert f"reaction {reaction:.3f} nats; kl picks " in page.locator("#said").inner_text()
    tops = page.evaluate("nodes.map((node) => node.getClientRects()[0].top)")
    box.press("ArrowDown")
    below = page.evaluate("state.token")
    next_line = min(top for top in tops[first:] if top > tops[first] + 20)
    assert below > first and next_line == pytest.approx(tops[below], abs=3)
    box.press("ArrowUp")
    assert tops[page.evaluate("state.token")] == pytest.approx(tops[first], abs=3)
    page.locator("#find").fill("WINDOW")
    page.locator("#find").press("Enter")
    assert TEXTS[page.evaluate("state.token")] == " window"


@in_browser
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1440, "light")])
def test_axe_finds_nothing(browser: Any, path: Path, scheme: str, width: int) -> None:
    page = load_page(browser, path, [], viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    page.wait_for_selector("html[data-ready]")
    page.evaluate("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    page.locator("#second").select_option("attention")
    assert violations_of(page) == []
    page.context.close()
