"""Pages in Debian's Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from needs import CHROMIUM
from playwright.sync_api import sync_playwright

in_browser = pytest.mark.needs("Chromium")
FLAGS = """
    --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update
    --disable-sync --disable-dev-shm-usage
""".split()  # noqa: SIM905


@contextmanager
def chromium() -> Iterator[Any]:
    """Start a browser."""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def load_page(browser: Any, path: Path, complaints: list[str], address: str = "", **context: Any) -> Any:
    """Return a page in a browser context of its own. What it logs or requests is added to ``complaints``."""
    made = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, "reduced_motion": "reduce", **context})
    page = made.new_page()
    page.set_default_timeout(15_000)
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith(("file:", "blob:")) else complaints.append(f"asked: {request.url}")
        ),
    )
    page.goto(path.as_uri() + address)
    return page


def violations_of(page: Any) -> list[str]:
    """Return what axe finds on a page that was opened with ``bypass_csp``, in words."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response
    assert len(found["passes"]) > 20
    return [
        f"{v['impact']} {v['id']}: {v['nodes'][0]['html'][:300]} {v['nodes'][0]['failureSummary']}"
        for v in found["violations"]
    ]
