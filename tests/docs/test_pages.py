"""The pages: their links, what they name, what is generated, what the README says was found, and the site as a whole."""

from __future__ import annotations

import functools
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from pages import IN_NAVIGATION, PAGES, ROOT, code_lines

import olmo_sparsity
from olmo_sparsity.config import Config, to_dict
from olmo_sparsity.measure.scores import Scores
from olmo_sparsity.selectors import SELECTORS
from olmo_sparsity.selectors.registry import OBSERVED
from olmo_sparsity.statistics.quantities import QUANTITIES
from olmo_sparsity.tables import COLUMNS

DOCS = ROOT / "docs"
ALL_PAGES = sorted({*PAGES, ROOT / "CHANGELOG.md", *(ROOT / "experiments").glob("*.md")})


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
    """The text of a page as it is on the site: with what is generated, without blocks of code."""
    text = reference.filled_in(page.read_text(encoding="utf-8"))
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors_of(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda path: path.stem)
def test_internal_links_resolve(page: Path) -> None:
    for alternative, link in re.findall(r"(!\[[^\]]*)?\]\(([^)\s]+)\)", text_of(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if path.startswith("api/"):
            assert target.stem in reference.rooms(), link  # generated, a page for each room
        elif not re.match(r"https?://", link):
            assert target.is_file() and (not anchor or anchor in anchors_of(text_of(target))), link
        assert not alternative or len(alternative) > 40, link  # says what the picture shows


def test_pages_and_pictures_are_reached() -> None:
    generated = {
        *reference.SHOWN_FILES,
        "api/index.md",
        *(f"api/{room}.md" for room in reference.rooms() if room != "cli"),
    }
    assert sorted(IN_NAVIGATION) == sorted({path.name for path in DOCS.glob("*.md")} | generated)
    shown = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert [path.name for path in (DOCS / "images").iterdir() if f"images/{path.name}" not in shown] == []
    assert [path.name for path in (DOCS / "data").iterdir() if f"data/{path.name}" not in shown] == []


def test_targets_modules_and_files_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {
        *re.findall(r"^(\w[\w-]*):", makefile, re.MULTILINE),
        *(p.stem for p in (ROOT / "experiments").glob("*.yaml")),
    }
    for page in ALL_PAGES:
        for span in [*re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")), *code_lines(page)]:
            for target in re.findall(r"^make ([a-z-]\S*)", span):
                assert target in targets, (page.name, span)
            for module in re.findall(r"^python -m ((?:analysis|benchmarks|experiments)(?: [a-z]\w*|[\w.]*))", span):
                assert importlib.util.find_spec(module.replace(" ", ".")) is not None, (page.name, span)
            for path in re.findall(
                r"\b(?:scripts|configs|olmo_sparsity|analysis|tests|benchmarks|experiments)/[\w/.-]+\.\w+\b", span
            ):
                assert (ROOT / path).is_file(), (page.name, span)


def test_what_is_generated_and_what_selectors_can_ask_is_on_the_pages() -> None:
    generated = reference.filled_in(
        (DOCS / "reference.md").read_text("utf-8") + (DOCS / "selectors.md").read_text("utf-8")
    )
    keys = [f"{key}:" for section in to_dict(Config()).values() if isinstance(section, dict) for key in section]
    columns = [column.name for table in COLUMNS.values() for column in table]
    inner = {"for_label", "label", "read", "singles", "losses_short_WA", "losses_long_WA", "kl_short_to_long"}
    inner |= {"context", "seed", "lasso_masks", "tokenizer", "store"}
    asked = {name for name in vars(Scores) if name[0] != "_"} - inner | {*OBSERVED, "max_k"}
    options = ["--shard I/N", "--k ", "-h, --help"]
    named = [*keys, *columns, *QUANTITIES, *SELECTORS, *options, *asked]
    assert [name for name in named if f"`{name}" not in generated and f"  {name}" not in generated] == []


def test_the_readme_says_what_the_tutorial_and_the_results_show() -> None:
    """Each number of the demo is in the summary that the tutorial quotes, each of SmolLM2 among the results."""
    readme, results = ((ROOT / name).read_text("utf-8") for name in ("README.md", "docs/results.md"))
    quoted = (DOCS / "get-started.md").read_text("utf-8").partition("```text")[2].partition("```")[0]
    rows = [line.split("|") for line in readme.partition("## What we found")[2].splitlines() if line.startswith("|")][
        2:
    ]
    assert len(rows) == 4
    for _, _, demo, smollm2, _ in rows:
        for said, text in ((demo, quoted), (smollm2, results.partition("## Pretrained models")[2])):
            shown = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))]
            for share, number in re.findall(r"(\d+)%|(\d+\.\d+)", said):
                hundredths = round(float(share or 100 * float(number)))
                assert any(hundredths in (round(value), round(100 * value)) for value in shown), (said, share or number)
    assert "    olmo-sparsity train\n    olmo-sparsity influence --k 8\n    make figures\n" in readme


def test_citation_and_changelog_name_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == olmo_sparsity.__version__
    assert f"\n## {olmo_sparsity.__version__}\n" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.needs("mkdocs")
def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    result = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    for page in tmp_path.rglob("*.html"):
        loaded = r'<(?:script|img|iframe)[^>]*src="?https?:|<link[^>]*rel="?(?:stylesheet|preconnect)[^>]*https?:'
        assert not re.findall(loaded, page.read_text(encoding="utf-8")), page.name
