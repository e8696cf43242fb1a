"""What stands in each section of a page is of its own record: figures, captions, labels, and the tables behind the figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from olmo_sparsity.view import pages

# The figures and the table of each section of a report, in their order.
# A word of the name that screen readers give the figure, and one of the title of the table behind it.


@pytest.mark.parametrize(
    "page", sorted((Path(pages.__file__).parent / "templates").glob("*.html")), ids=lambda page: page.name
)
def test_what_has_a_label_for_screen_readers_has_a_role(page: Path) -> None:
    """Of elements that have none of their own, a label is not announced without one; of a picture it is ``img``."""
    markup = page.read_text(encoding="utf-8")
    labelled = re.findall(r"<(div|span|p|canvas|svg|table)\b([^>]*\baria-label(?:ledby)?=[^>]*)>", markup)
    for element, attributes in labelled:
        (role,) = re.findall(r'\brole="([^"]+)"', attributes) or ["none"]
        assert role == "img" if element in ("canvas", "svg") else role in ("img", "region", "group", "listbox")
    assert page.name not in ("explore.html", "parts.html") or labelled
