"""HTML pages that load nothing: templates, inline styles and scripts, and the policy that forbids all else.

Data goes into a page as JSON that its scripts show as text, never as markup. The Content-Security-Policy names the hashes of
our own scripts and styles, so that nothing else would run even where a text had slipped through.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any, Optional

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from olmo_sparsity import __version__
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.wording import interval
from olmo_sparsity.storage.files import write_text
from olmo_sparsity.storage.folders import make_folder


def minus_interval(value: Optional[dict[str, Any]], digits: int = 2) -> str:
    """An estimate in words, as ``interval`` has it, with a real minus sign."""
    return interval(value, digits).replace("-", "\u2212")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("olmo_sparsity.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # `tojson` escapes <, >, & and ' and leaves only ASCII, so that U+2028 and U+2029 are escaped, too.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["interval"] = minus_interval
    return environment


def _inline(environment: Environment, names: tuple[str, ...]) -> tuple[list[Markup], list[str]]:
    """(our own styles or scripts, as they stand in the page; their hashes for its Content-Security-Policy)."""
    assert environment.loader is not None
    texts = [environment.loader.get_source(environment, name)[0] for name in names]
    assert not any("</script" in text or "</style" in text for text in texts)
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    return [Markup(text) for text in texts], [f"'sha256-{digest}'" for digest in digests]


def render(template: str, styles: tuple[str, ...], scripts: tuple[str, ...], **values: Any) -> str:
    """A page of one of our templates; ``values`` are what it shows, escaped by the template library."""
    environment = _environment()
    style_texts, style_hashes = _inline(environment, styles)
    script_texts, script_hashes = _inline(environment, scripts)
    policy = (
        f"default-src 'none'; script-src {' '.join(script_hashes)}; style-src {' '.join(style_hashes)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template(template).render(
        styles=style_texts, scripts=script_texts, policy=policy, version=__version__, **values
    )


def check_free(out: Path, overwrite: bool) -> None:
    """Asked before the work.

    Raises:
        UserError: something is there already, and ``overwrite`` was not said; or it is a folder.
    """
    if out.is_dir():
        raise UserError(f"{out}: this is a folder; --out names the HTML file to write")
    if out.exists() and not overwrite:
        raise UserError(f"{out}: already there; --overwrite writes it anew, --out FILE writes another")


def write_page(out: Path, page: str) -> None:
    """Writes a page whole or not at all, and the folders above it."""
    make_folder(out.parent)
    write_text(out, page)
