"""Data flows one way: the imports say so."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import olmo_sparsity

PACKAGE = Path(olmo_sparsity.__file__).parent
ORDER = """
    config_keys config_measuring config config_files manifest torchrun corpus vocabulary stores encoding workers
    tokens windows positions batches model checkpoint model_card export runs parallel speed optimization watching training
    classes held_out visibility compact losses selectors tables parts merging influence context_curve planted
    validation bootstrap statistics breakdowns curves detection excerpts pages comparison report show console options
    cli __main__
""".split()  # noqa: SIM905


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("olmo_sparsity"):
            part = node.module.removeprefix("olmo_sparsity").lstrip(".")
            found |= {part} if part else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.removeprefix("olmo_sparsity.") for a in node.names if a.name.startswith("olmo_sparsity.")}
    return {name for name in found if (PACKAGE / f"{name}.py").exists()}


def test_every_module_has_its_place() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"} == set(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_a_module_imports_only_from_those_before_it(name: str) -> None:
    later = set(ORDER[ORDER.index(name) :])
    assert not imports_of(PACKAGE / f"{name}.py") & later


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.stem)
def test_a_module_fits_on_a_few_screens(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 450


@pytest.mark.parametrize("path", sorted((PACKAGE / "templates").iterdir()), ids=lambda path: path.name)
def test_a_template_is_read_without_scrolling(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= 450
    assert max(map(len, lines)) <= 130


READ_TABLES = """
    config_keys config_measuring config config_files torchrun corpus positions classes tables parts merging bootstrap
    statistics breakdowns curves detection excerpts pages comparison report show console options cli
""".split()  # noqa: SIM905
TORCHLESS = [f"olmo_sparsity.{name}" for name in READ_TABLES]
TORCHLESS += ["olmo_sparsity.workers"]  # each of its processes would import them
TORCHLESS += [f"analysis.{path.stem}" for path in (PACKAGE.parent / "analysis").glob("*.py") if path.stem[0] != "_"]


def test_neither_torch_nor_olmo_is_imported() -> None:
    """One interpreter imports them one after another: the first that brings one of these in is named."""
    code = (
        "import sys, importlib\n"
        f"for name in {TORCHLESS}:\n"
        "    importlib.import_module(name)\n"
        "    found = [m for m in ('torch', 'olmo', 'transformers') if m in sys.modules]\n"
        "    assert not found, (name, found)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert result.returncode == 0, result.stderr
