"""Self-contained HTML pages: templates, inline styles and scripts, and a Content-Security-Policy that forbids all else.

Data goes into a page as JSON that its scripts show as text, never as markup. The policy names the hashes of our own scripts
and styles, so nothing else would run, even if a text were taken for markup by mistake.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from olmo_sparsity import __version__
from olmo_sparsity.errors import UserError, printable_lines
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.storage.files import check_replaceable, write_new, write_text
from olmo_sparsity.storage.folders import check_writable, make_folder

# What is in every page of ours.
OWN_PAGE = re.compile(rb'<meta name="generator" content="olmo-sparsity ')


NOTHING = "'none'"  # in a policy
INKS = ("none", "invert(0.92) hue-rotate(180deg)")  # the filter of charts, which are drawn on white
# On light and on dark pages.
COLOURS = {
    "page": ("#fbfbf9", "#121518"),
    "card": ("#ffffff", "#1a1e22"),
    "text": ("#1a1d21", "#eceef0"),
    "muted": ("#535d68", "#a9b3bd"),
    "line": ("#d5dae0", "#3a424a"),
    "grid": ("#e8ebee", "#272d33"),
    "accent": ("#0a569f", "#84bdf7"),
    "good": ("#0b6b3a", "#7fd8a3"),
    "good-back": ("#e5f4ea", "#14301f"),
    "bad": ("#a3141f", "#ff9d9d"),
    "bad-back": ("#fdebec", "#3b1719"),
    "heat": ("#f5a623", "#9a5b00"),
    "cool": ("#5fb0e8", "#1f5f94"),
    "target": ("#f6d5e6", "#5b2346"),
    "target-line": ("#a8327a", "#e58fc3"),
}


def minus(text: str) -> str:
    """Return a text whose negative numbers have a typographic minus sign."""
    return re.sub(r"(?<!\w)-(?=\d)", "\u2212", text)


def _shown(value: object) -> object:
    """Return what a template shows of a value: of a text, which may hold any name, its printable lines."""
    return printable_lines(value) if type(value) is str else value  # markup is our own


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("olmo_sparsity.view"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` escapes <, >, & and ', and leaves only ASCII, which escapes U+2028 and U+2029 as well.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["minus"] = minus
    return environment


def _colours(shown: Collection[str]) -> str:
    """Return a style sheet with the colours of pages and selectors, on light and on dark ones; ``shown``: those on the page.

    A page is printed in the light ones: on paper the dark ones cannot be read.
    """
    of_selectors = {
        f"of-{name}": (selector.look.on_light, selector.look.on_dark)  # one of one's own may have any name, as `text`
        for name, selector in SELECTORS.items()
        if name in shown or not selector.by_name_only
    }
    light, dark = (
        f"color-scheme: {scheme}; "
        + " ".join(f"--{name}: {pair[which]};" for name, pair in (of_selectors | COLOURS | {"ink": INKS}).items())
        for which, scheme in enumerate(("light", "dark"))
    )
    return (
        f":root {{ {light} }}\n"
        f'@media screen and (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}\n'
        f'@media screen {{ :root[data-theme="dark"] {{ {dark} }} }}\n'
    )


def _inline(environment: Environment, names: tuple[str, ...], *generated: str) -> tuple[list[Markup], list[str]]:
    """Return the texts of our own styles or scripts, the generated ones first, and their hashes for the policy."""
    assert environment.loader is not None
    texts = [*generated, *(environment.loader.get_source(environment, name)[0] for name in names)]
    assert not any("</script" in text or "</style" in text for text in texts)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    return [Markup(text) for text in texts], [f"'sha256-{digest}'" for digest in digests]


def render(
    template: str,
    *,
    styles: tuple[str, ...],
    scripts: tuple[str, ...],
    selectors: Collection[str] = (),
    **values: Any,
) -> str:
    """Render a page from one of our templates.

    Args:
        template: name of the template.
        styles: names of the style sheets, in order.
        scripts: names of the scripts, in order.
        selectors: names of those that the page shows; only these have colours, and those that ``all`` stands for.
        values: what the template shows; Jinja escapes it.
    """
    environment = _environment()
    style_texts, style_hashes = _inline(environment, styles, _colours(selectors))
    script_texts, script_hashes = _inline(environment, scripts)
    policy = (
        f"default-src 'none'; script-src {' '.join(script_hashes or [NOTHING])}; style-src {' '.join(style_hashes)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template(template).render(
        styles=style_texts, scripts=script_texts, policy=policy, version=__version__, **values
    )


def check_free(out: Path, overwrite: bool) -> None:
    """Check that a page may be written. Call it before any long work.

    Raises:
        UserError: a page that this tool wrote is there and ``overwrite`` is False, or something else is.
        OSError: no file can be written there.
    """
    if check_replaceable(out, OWN_PAGE.search, what="page") and not overwrite:
        raise _exists(out)
    check_writable(out.parent, out.name)


def _exists(out: Path) -> UserError:
    return UserError(f"{out}: the file exists; --overwrite replaces it, or choose another file")


def frame(page: str, *, height: int) -> str:
    """Return a page as a frame of a notebook, which may run the scripts of the page, and nothing else."""
    style = f"width: 100%; height: {height}px; border: 0"
    return f'<iframe sandbox="allow-scripts" srcdoc="{escape(page, quote=True)}" style="{style}"></iframe>'


def write_page(out: Path, page: str, *, overwrite: bool) -> Path:
    """Write a page atomically, and make the folders above it; return its path.

    Raises:
        UserError: what is there in the meantime must not be replaced. Without ``overwrite`` nothing is, whenever it appears.
    """
    make_folder(out.parent)
    check_free(out, overwrite)
    if overwrite:
        write_text(out, page)
    elif not write_new(out, page.encode()):  # it has appeared since the line above
        raise _exists(out)
    return out
