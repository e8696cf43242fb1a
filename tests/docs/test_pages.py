"""The pages: their links, what they name, what is generated, and the site as a whole."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from shown_commands import IN_NAVIGATION, PAGES, ROOT, code_lines

import olmo_sparsity
from olmo_sparsity.config import Config, to_dict
from olmo_sparsity.statistics.quantities import QUANTITIES
from olmo_sparsity.tables import COLUMNS

DOCS = ROOT / "docs"
ROOT_PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


def load_reference() -> ModuleType:
    """Import docs/reference.py, which is no part of a package."""
    spec = importlib.util.spec_from_file_location("docs_reference", DOCS / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = load_reference()


@functools.cache
def text_of(page: Path) -> str:
    """Return the text of a page as it is on the site: with what is generated, without blocks of code."""
    text = reference.filled_in(page.read_text(encoding="utf-8"))
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT_PAGES}), ids=lambda path: path.stem)
def test_internal_links_resolve(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", text_of(page))
    for link in links:
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if path.startswith("api/"):
            assert target.stem in reference.rooms(), link  # generated, a page for each room
            continue
        assert target.is_file(), link
        assert not anchor or anchor in anchors_of(text_of(target)), link


def test_every_page_is_in_the_navigation() -> None:
    written = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    generated = {
        *reference.SHOWN_FILES,
        "api/index.md",
        *(f"api/{room}.md" for room in reference.rooms() if room != "cli"),
    }
    assert sorted(IN_NAVIGATION) == sorted(written | generated)


def test_every_picture_is_shown() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    for path in (DOCS / "images").iterdir():
        assert f"images/{path.name}" in text, path.name


def test_targets_modules_and_files_exist() -> None:
    targets = set(re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in [*PAGES, *ROOT_PAGES]:
        text = page.read_text(encoding="utf-8")
        spans = re.findall(r"`([^`\n]+)`", text) + list(code_lines(page))
        for span in spans:
            if match := re.match(r"make ([a-z-]+)", span):
                assert match[1] in targets, (page.name, span)
            if match := re.match(r"python -m ((?:analysis|benchmarks|olmo_sparsity)[\w.]*)", span):
                assert importlib.util.find_spec(match[1]) is not None, (page.name, span)
            if match := re.match(r"python -m analysis ([a-z]\w*)", span):
                assert importlib.util.find_spec(f"analysis.{match[1]}") is not None, (page.name, span)
            for path in re.findall(
                r"\b(?:scripts|configs|olmo_sparsity|analysis|tests|benchmarks)/[\w/.-]+\.\w+\b", span
            ):
                assert (ROOT / path).is_file(), (page.name, span)


def test_the_reference_has_every_key_with_its_default() -> None:
    text = reference.configuration_reference()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert yaml.safe_load("".join(blocks)) == to_dict(Config())
    assert all(f"\n### {section}\n" in text for section in to_dict(Config()) if section != "name")


def test_the_reference_has_every_column_with_its_meaning() -> None:
    text = reference.columns_reference().replace("\\", "")
    assert reference.COLUMNS_MARK in (DOCS / "reference.md").read_text(encoding="utf-8")
    for table, columns in COLUMNS.items():
        section = text.partition(f"### {table}\n")[2].partition("\n### ")[0]
        for column in columns:
            assert any(
                line.startswith(f"| `{column.name}` | ") and column.meaning in line for line in section.splitlines()
            ), column.name


def test_the_reference_has_every_quantity_with_its_definition() -> None:
    lines = reference.quantities_reference().replace("\\", "").splitlines()
    assert reference.QUANTITIES_MARK in (DOCS / "reference.md").read_text(encoding="utf-8")
    for name, quantity in QUANTITIES.items():
        assert any(line.startswith(f"| `{name}` | {quantity.header} | {quantity.definition} |") for line in lines), name


def test_the_reference_has_every_option() -> None:
    text = reference.commands_reference()
    for heading in ("### influence", "### figures", "#### export hf"):
        assert f"{heading}\n" in text
    for option in ("--k ", "--shard I/N", "-h, --help"):
        assert f"* `{option}" in text, option


def test_every_module_is_on_an_api_page() -> None:
    pages = {room: reference.api_page(room) for room in reference.rooms()}
    package = Path(olmo_sparsity.__file__).parent
    for path in package.glob("*/**/*.py"):
        if path.stem != "__init__":
            room, *inner = path.relative_to(package).with_suffix("").parts
            assert f"::: olmo_sparsity.{'.'.join([room, *inner])}\n" in pages[room]


def test_citation_and_changelog_name_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == olmo_sparsity.__version__
    assert citation["license"] == "MIT"
    assert f"\n## {olmo_sparsity.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.needs("mkdocs")
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]*src="?https?:', text), page.name
        assert not re.findall(r'<link[^>]*rel="?(?:stylesheet|preconnect)[^>]*https?:', text), page.name


def test_the_arguments_that_docstrings_explain_are_there() -> None:
    """The site, which is built strictly, says each by its name."""
    for path in sorted((*(ROOT / "olmo_sparsity").rglob("*.py"), *(ROOT / "analysis").glob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and "\nArgs:\n" in (words := ast.get_docstring(node) or ""):
                explained = re.findall(r"^    (\S[^:]*):", words.split("\nArgs:\n")[1].split("\n\n")[0], re.MULTILINE)
                arguments = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
                assert explained and set(explained) <= arguments, (path.name, node.name, explained)


def test_every_picture_of_the_site_opens_on_its_own() -> None:
    plain = '<p><img alt="A" src="images/a.png" /> and <img alt="B" src="b.svg"></p>'
    linked = '<a href="images/c.svg"><img alt="C" src="images/c.svg" /></a>'
    found = reference.with_links_to_pictures(plain + linked)
    assert re.findall(r'<a class="enlarged" href="([^"]+)"><img alt="." src="\1"[^>]*></a>', found) == [
        "images/a.png",
        "b.svg",
    ]
    assert linked in found and found.count("<a ") == found.count("<img ") == 3
    assert re.sub(r'<a class="enlarged"[^>]*>(<img [^>]*>)</a>', r"\1", found) == plain + linked


# Pictures whose numbers stand in no table of the pages: on the picture alone.
ONLY_ON_THE_PICTURE = {"demo-figure5", "demo-training"}


def test_every_number_of_an_alternative_text_stands_on_a_page() -> None:
    """An alternative text says what was found; decimals that no page has would be those of another picture."""
    pages = {page: page.read_text(encoding="utf-8") for page in {*PAGES, *ROOT_PAGES}}
    image = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")
    text = " ".join(image.sub("", page) for page in pages.values())
    said = [found for page in pages.values() for found in image.findall(page)]
    assert len(said) > 10
    for words, path in said:
        name = Path(path).stem
        assert len(words) > 40, path
        decimals = re.findall(r"(?<![\d.])-?\d+\.\d+", words)
        assert name in ONLY_ON_THE_PICTURE or all(
            re.search(rf"(?<![\d.]){number}(?!\d)", text) for number in decimals
        ), path
    assert all(
        len({words for words, path in said if Path(path).name == one}) == 1 for one in {Path(p).name for _, p in said}
    )
