"""Self-contained HTML pages: Jinja templates, inline styles and scripts, and a Content-Security-Policy that forbids all else.

The policy names the hashes of our own styles and scripts, so nothing that a text smuggles in could run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from olmo_sparsity import __version__
from olmo_sparsity.errors import UserError, printable_lines
from olmo_sparsity.files import check_replaceable, check_writable, make_folder, write_text

TEMPLATES = Path(__file__).parent / "templates"
OWN_PAGE = re.compile(rb'<meta name="generator" content="olmo-sparsity ')  # in every page of ours
POLICY = "default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'"


def render(name: str, *, own_style: str = "", **values: Any) -> str:
    """Render ``NAME.html``, a template that extends `page.html`, with `page.css`, ``NAME.css`` and ``NAME.js``, if there is one.

    Values are escaped, and control characters in them replaced.
    """
    jinja = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: printable_lines(value) if type(value) is str else value,  # markup is our own
    )  # fmt: skip
    # `tojson` escapes <, >, & and ', and leaves only ASCII, so U+2028 and U+2029 are escaped too.
    jinja.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    jinja.filters["minus"] = lambda text: re.sub(r"(?<!\w)-(?=\d)", "\u2212", text)
    parts = {
        ending: [*TEMPLATES.glob(f"page.{ending}"), *TEMPLATES.glob(f"{name}.{ending}")] for ending in ("css", "js")
    }
    styles, scripts = ([Markup(of.read_text(encoding="utf-8")) for of in parts[ending]] for ending in ("css", "js"))
    styles += [Markup(own_style)] if own_style else []
    values |= {"styles": styles, "scripts": scripts, "policy": POLICY.format(_hashes(scripts), _hashes(styles))}
    return jinja.get_template(f"{name}.html").render(version=__version__, **values)


def _hashes(texts: list[Markup]) -> str:
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    return " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"


def check_free(page: Path, overwrite: bool) -> None:
    """Raise a UserError unless a page may be written here. Call it before long work."""
    if check_replaceable(page, OWN_PAGE.search, what="page") and not overwrite:
        raise UserError(f"{page}: the file exists; --overwrite replaces it, or choose another file")
    check_writable(page.parent)


def write_page(page: Path, text: str, *, overwrite: bool) -> Path:
    """Write a page atomically, with the folders above it; without `overwrite` nothing is replaced."""
    make_folder(page.parent)
    check_free(page, overwrite)
    write_text(page, text)
    return page
