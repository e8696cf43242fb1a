"""Selectors of a user, from a file or from Python: mistakes are one line each, and a manifest knows their source."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scored import W, scores_of

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_json
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.selectors import SELECTORS, meaning_of, own_entries, selector, sources_of
from olmo_sparsity.selectors.own import names_of
from olmo_sparsity.tables import read_manifest, read_table

GOOD = '''
from __future__ import annotations
from dataclasses import dataclass
from olmo_sparsity.selectors import selector

@dataclass
class Helper:
    weight: float = 2.0

def farthest(s):
    """The tokens at the beginning
    of the window.

    More."""
    return [[-Helper().weight * i for i in range(s.num_candidates)]] * s.num_windows

@selector("my-loss", sees_target=True, cost=lambda many, settings: many + 1)
def my_loss(s):
    """How far the loss falls."""
    return s.loss_short[:, None] - s.loss_single

number = 7
'''
IMPORT = "from olmo_sparsity.selectors import selector\n"
SHA256 = hashlib.sha256(GOOD.encode()).hexdigest()


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder; selectors that a test adds are gone after it."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name, one in SELECTORS.items() if one.source is not None]:
        del SELECTORS[name]
    return tmp_path


def written(text: str, name: str = "own.py") -> None:
    Path(name).write_text(text, encoding="utf-8")


def refusal(*given: Any, run: bool = False) -> str:
    """The one line by which selectors are refused, when they are named or when they run."""
    if run:
        (one,) = (SELECTORS[name] for name in names_of(given))
    with pytest.raises(UserError) as error:
        one.function(scores_of().for_label(None)) if run else names_of(given)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_holds_functions_and_selectors() -> None:
    written(GOOD)
    assert names_of(["kl", "own.py:farthest", "kl", "own.py:my_loss"]) == ["kl", "farthest", "my-loss"]
    farthest, my_loss = SELECTORS["farthest"], SELECTORS["my-loss"]
    assert (farthest.meaning, farthest.sees_target) == ("The tokens at the beginning of the window.", False)
    assert (my_loss.sees_target, my_loss.num_evaluations(9, None)) == (True, 10)
    assert farthest.function(scores_of())[0].tolist() == [-2.0 * i for i in range(16)]
    label = scores_of().for_label(1)
    assert (my_loss.function(label) == SELECTORS["unmask-one"].function(label)).all()
    assert own_entries(["kl", "my-loss"]) == {
        "my-loss": {"file": "own.py", "sha256": SHA256, "meaning": "How far the loss falls.", "sees_target": True}
    }
    assert sources_of(["kl", "farthest"]) == [("farthest", SHA256)]
    assert meaning_of("gone", {"own_selectors": {"gone": {"meaning": "What it was."}}}) == "What it was."
    assert meaning_of("kl", {}) == SELECTORS["kl"].meaning and meaning_of("gone", {}) == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "own.py: no function or selector is named f here"),
        ("f = 5", "own.py: no function or selector is named f here"),
        ("\n\nf = (", "own.py:3: SyntaxError: '(' was never closed"),
        ("\nimport broken", "own.py:2: SyntaxError: "),
        ("\nimport nowhere_to_be_found", "own.py:2: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("x = 1\nraise SystemExit(3)", "own.py:2: SystemExit: 3"),
        ("def g():\n    return 1 / 0\ng()", "own.py:2: ZeroDivisionError: division by zero"),
        ("\nraise KeyError", "own.py:2: KeyError"),
        ("raise ValueError('one\\ntwo\\x1b[31m')", "own.py:1: ValueError: one two"),
        (IMPORT + "f = selector('two words')(print)", "own.py:2: ValueError: 'two wor"),
        (IMPORT + "f = selector('f', needs=['key'])(print)", "own.py:2: ValueError: needs = ['key']"),
        (IMPORT + "f = selector('f', need=1)(print)", "own.py:2: TypeError: "),
    ],
)  # fmt: skip
def test_a_file_that_holds_no_such_selector_is_one_line(
    text: str, line: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(here))
    written("\n\n\n\n(", "broken.py")
    written(text)
    assert refusal("own.py:f").startswith(line)


@pytest.mark.parametrize(
    ("function", "line"),
    [
        ("def f(s):\n  return s.no", "own.py:2: AttributeError: 'Scores' object has no attribute 'no', in the selector f"),
        ("def f(s):\n  raise SystemExit", "own.py:2: SystemExit, in the selector f"),
        ("def f(s): return s.loss_single", "own.py:1: UndeclaredTargetError: losses and the target are for"),
        ("def f(s): return [[1.0]]", "own.py: the selector f returned scores of shape (1, 1), not (3, 16)"),
        ("def f(s): return s.kl_single * float('nan')", "own.py: the selector f returned NaN for a whole window"),
        ("def f(s): return 1e300 + s.kl_single", "own.py: the selector f returned NaN for a whole window, or an inf"),
        ("def f(): return 1", "own.py: TypeError"),
        ("class F:\n  def __call__(self, s): return 1 / 0\nf = F()", "own.py: ZeroDivisionError"),
        ("def f(s): return 'text'", "own.py: ValueError"),
    ],
)  # fmt: skip
def test_a_function_that_fails_is_one_line(function: str, line: str) -> None:
    written(function)
    assert refusal("own.py:f", run=True).startswith(line)


def test_names_that_cannot_be() -> None:
    written("def kl(s): ...\nall = _f = f = kl\n")
    written("def f(s): ...\n", "other.py")
    assert refusal("nowhere.py:f").startswith("nowhere.py: cannot read this file (No such file or directory)")
    assert refusal("own.py:kl") == "own.py:kl: another selector is named kl; choose another name"
    assert refusal("own.py:all").startswith("own.py: 'all': name a selector by a letter")
    assert refusal("own.py:_f").startswith("own.py: '_f': name a selector by a letter")
    assert refusal("own.py:f", "other.py:f").startswith("other.py:f: another selector is named f")


def test_functions_and_selectors_from_python() -> None:
    def last(s: Any) -> Any:
        """The last ones."""
        return np.tile(np.arange(s.num_candidates), (s.num_windows, 1))

    marked = selector("marked", sees_target=True)(lambda s: s.loss_single)
    assert names_of(["kl", last, marked, last]) == ["kl", "last", "marked"]
    assert SELECTORS["last"].function(scores_of()).tolist() == [list(range(16))] * W
    assert [of["file"] for of in own_entries(["last", "marked"]).values()] == ["test_own.py"] * 2
    assert SELECTORS["marked"].function(scores_of().for_label(0)).shape == (W, 16)
    typed: dict[str, Any] = {}
    exec("def typed(s): return s.kl_single\ndef last(s): ...", typed)
    names_of([typed["typed"]])
    assert sources_of(["typed"]) == [("typed", None)]
    assert refusal(last, typed["last"]) == "selectors: another selector is named last; choose another name"
    assert "name a selector by a letter" in refusal(lambda s: s.kl_single)


def test_a_measurement_records_the_source_and_another_source_does_not_continue_it(
    tiny_config: Config, tiny_run: Path, here: Path
) -> None:
    written(GOOD)
    names = names_of(["own.py:farthest", "own.py:my_loss", "random"])
    settings = {"selectors": names, "num_windows": 8, "k": [1, 2], "windows_per_part": 4}
    config = dataclasses.replace(tiny_config, influence=dataclasses.replace(tiny_config.influence, **settings))
    run = Path(shutil.copytree(tiny_run, here / "tiny", symlinks=True))
    tables = measure(config, run)
    manifest = read_json(tables / "manifest.json")
    assert manifest["own_selectors"] == own_entries(["farthest", "my-loss"])
    rows = read_table(tables, "selections").to_pylist()
    assert all(row["positions"] == [0, 1] for row in rows if row["selector"] == "farthest")
    contexts = {name: {row["context"] for row in rows if row["selector"] == name} for name in names}
    assert contexts["farthest"] == {"real", "null"}
    assert contexts["my-loss"] == {"real", "null", "resampled", "null-resampled"}
    for part in (tables / "windows").glob("*1.parquet"):
        part.unlink()
    written(GOOD + "# changed\n")
    names_of(["own.py:farthest", "own.py:my_loss"])
    with pytest.raises(UserError, match="the source of the selector farthest, my-loss has changed"):
        measure(config, run)
    written(GOOD)
    names_of(["own.py:farthest", "own.py:my_loss"])
    written("def another(s): return s.kl_single\n", "other.py")
    for change in ({"seed": 1}, {"selectors": [*names, *names_of(["other.py:another"])]}):
        other = dataclasses.replace(config, influence=dataclasses.replace(config.influence, **change))
        with pytest.raises(UserError, match="measured with other settings"):
            measure(other, tiny_run, out=tables)
    assert measure(config, tiny_run, out=tables) == tables
    assert read_table(tables, "selections").to_pylist() == rows
    written("def fails(s): return 1 / 0\n", "failing.py")
    failing = dataclasses.replace(config.influence, selectors=names_of(["failing.py:fails"]))
    with pytest.raises(UserError, match="ZeroDivisionError"):
        measure(dataclasses.replace(config, influence=failing), run, out=here / "new")
    assert not (here / "new").exists()
    for entry in ({"f": 5}, {"f": {"meaning": 5}}, {"two words": manifest["own_selectors"]["farthest"]}, {"f": {}}):
        write_json(tables / "manifest.json", read_json(tables / "manifest.json") | {"own_selectors": entry})
        with pytest.raises(UserError, match=r"manifest\.json: .*(own|key|expected)"):
            read_manifest(tables)
