"""The examples of docs/python.md and the cells of the notebook, run in order on a tiny run."""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import made_up_text
from matplotlib.figure import Figure
from shown_commands import ROOT
from tiny_pretrained import save_llama

from olmo_sparsity.api import Model, Results
from olmo_sparsity.api.exploration import Exploration

REAL = "models/SmolLM2-135M"
NOTEBOOK = ROOT / "docs" / "notebooks" / "measure.ipynb"


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
    save_llama(tmp_path / REAL, [made_up_text(np.random.default_rng(9), 400)])
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


def test_every_example_of_the_page_runs(workplace: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    namespace: dict[str, Any] = {}
    shown = [run_block(code, namespace) for code in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)]
    assert sum(isinstance(value, pd.DataFrame) for value in shown) >= 5
    assert isinstance(namespace["results"], Results)
    assert len(namespace["windows"]) == 20
    assert namespace["same"].windows.num_documents > 1
    for name in ("figure4.png", "my-windows/manifest.json"):
        assert (workplace / name).is_file()


def test_every_cell_of_the_notebook_runs_and_none_is_executed_in_the_file(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Jupyter starts, which is the folder of the notebook."""
    (workplace / "pyproject.toml").touch()
    (workplace / "docs" / "notebooks").mkdir(parents=True)
    monkeypatch.chdir(workplace / "docs" / "notebooks")
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    namespace: dict[str, Any] = {}
    shown = []
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None
            code = re.sub('^REAL = ".*"$', f'REAL = "{REAL}"', "".join(cell["source"]), flags=re.MULTILINE)
            shown.append(run_block(code, namespace))
    for kind in (Model, Results, pd.DataFrame, Figure):
        assert any(isinstance(value, kind) for value in shown), kind
    assert sum(isinstance(value, Exploration) for value in shown) == 2
    assert isinstance(shown[-1], Exploration)
