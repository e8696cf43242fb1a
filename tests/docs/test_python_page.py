"""The examples of docs/python.md, run in order on a tiny run; the first one, from a text to a picture, also as a script."""

from __future__ import annotations

import ast
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import made_up_text
from matplotlib.figure import Figure
from shown_commands import ROOT, first_block
from tiny_pretrained import save_llama

from olmo_sparsity.api import Results

PAGE = ROOT / "docs" / "python.md"


@pytest.fixture
def workplace(tiny_run: Path, tiny_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a measured run, a pretrained model and texts, where a reader has them."""
    assert tiny_tables.is_relative_to(tiny_run)
    shutil.copytree(tiny_run, tmp_path / "runs" / "demo")
    (tmp_path / "my_texts").mkdir()
    for number in range(3):
        text = made_up_text(np.random.default_rng(number), 80)
        (tmp_path / "my_texts" / f"{number}.txt").write_text(text, encoding="utf-8")
    shutil.copy(ROOT / "README.md", tmp_path / "README.md")
    save_llama(tmp_path / "models" / "SmolLM2-135M", [made_up_text(np.random.default_rng(9), 400)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_block(code: str, namespace: dict[str, Any]) -> Any:
    """Run a block, and return the value of its last line if that is an expression, as notebooks show it."""
    tree = ast.parse(code)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "<block>", "exec"), namespace)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "<block>", "exec"), namespace)
    return eval(compile(ast.Expression(last.value), "<block>", "eval"), namespace)


def test_every_example_runs(workplace: Path) -> None:
    namespace: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    shown = [run_block(code, namespace) for code in blocks]
    assert sum(isinstance(value, pd.DataFrame) for value in shown) >= 3
    assert any(isinstance(value, Figure) for value in shown) and isinstance(namespace["results"], Results)
    assert len(namespace["windows"]) == 20 and namespace["same"].windows.num_documents > 1
    assert (workplace / "my-windows" / "manifest.json").is_file()


def test_five_lines_lead_from_a_text_to_a_picture(workplace: Path) -> None:
    """As a script."""
    script = workplace / "script.py"
    script.write_text(first_block(PAGE), encoding="utf-8")
    assert len(script.read_text("utf-8").split("\n\n")[1].strip().splitlines()) == 4  # and the import
    runpy.run_path(str(script))
    assert (workplace / "first-picture.png").read_bytes().startswith(b"\x89PNG")
