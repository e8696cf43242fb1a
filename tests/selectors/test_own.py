"""Selectors of a user: from a file or from Python; mistakes are one line each, and a manifest knows their source."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scored import W, scores_of

from olmo_sparsity import selectors
from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.selectors import SELECTORS, meaning_of
from olmo_sparsity.selectors.own import check_recorded, declared_selectors, names_given, own_entries, sources_of
from olmo_sparsity.selectors.registry import selector
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.reading import read_table

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

@selector("my-loss", sees_target=True, cost="M + 1", num_evaluations=lambda many, k: many + 1)
def my_loss(s):
    """How far the loss falls."""
    return s.loss_short[:, None] - s.loss_single

number = 7
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder; selectors that a test declares are gone after it."""
    monkeypatch.chdir(tmp_path)
    before = dict(SELECTORS)
    yield tmp_path
    SELECTORS.clear()
    SELECTORS.update(before)


def written(text: str, name: str = "own.py") -> Path:
    path = Path(name)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_holds_functions_and_selectors() -> None:
    written(GOOD)
    assert declared_selectors(["kl", "own.py:farthest", "kl", "own.py:my_loss"]) == ["kl", "farthest", "my-loss"]
    sha256 = hashlib.sha256(GOOD.encode()).hexdigest()
    farthest, my_loss = SELECTORS["farthest"], SELECTORS["my-loss"]
    assert farthest.source == my_loss.source == ("own.py", sha256)
    assert (farthest.meaning, farthest.sees_target) == ("The tokens at the beginning of the window.", False)
    assert (my_loss.meaning, my_loss.sees_target, my_loss.cost) == ("How far the loss falls.", True, "M + 1")
    assert farthest.score(scores_of())[0].tolist() == [-2.0 * i for i in range(16)]
    label = scores_of().of_label(1)
    assert (my_loss.score(label) == SELECTORS["unmask-one"].score(label)).all()
    assert own_entries(["kl", "my-loss"]) == {
        "my-loss": {"file": "own.py", "sha256": sha256, "meaning": "How far the loss falls.", "sees_target": True}
    }
    assert sources_of(["kl", "farthest"]) == [("farthest", sha256)]
    assert meaning_of("gone", {"own_selectors": {"gone": {"meaning": "What it was."}}}) == "What it was."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "own.py: no function or selector is named f there"),
        ("f = 5", "own.py: no function or selector is named f there"),
        ("\n\nf = (", "own.py:3: SyntaxError: '(' was never closed"),
        ("\nimport nowhere_to_be_found", "own.py:2: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("x = 1\nraise SystemExit(3)", "own.py:2: SystemExit: 3"),
        ("def g():\n    return 1 / 0\ng()", "own.py:2: ZeroDivisionError: division by zero"),
        ("\nraise KeyError", "own.py:2: KeyError"),
        ("raise ValueError('one\\ntwo')", "own.py:1: ValueError: one two"),
    ],
)
def test_a_file_that_holds_no_such_selector_is_one_line(text: str, said: str) -> None:
    written(text)
    with pytest.raises(UserError) as error:
        declared_selectors(["own.py:f"])
    assert str(error.value) == said


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            "def f(s): return s.nothing",
            "own.py:1: AttributeError: 'Scores' object has no attribute 'nothing', in the selector f",
        ),
        ("def f(s): return [[1.0]]", "own.py: the selector f returned scores of shape (1, 1), not (3, 16)"),
        ("def f(s):\n  raise SystemExit", "own.py:2: SystemExit, in the selector f"),
        (
            "def f(s): return s.loss_short[:, None] - s.loss_single",
            "own.py:1: UndeclaredTargetError: losses and the target are for",
        ),
        ("def f(s): return s.kl_single * float('nan')", "own.py: the selector f returned"),
        ("def f(s): return 1e300 + s.kl_single", "own.py: the selector f returned"),
        ("def f(): return 1", "own.py: TypeError"),
        ("def f(s): return 'text'", "own.py: ValueError"),
    ],
)
def test_a_function_that_fails_is_one_line(function: str, said: str) -> None:
    written(function)
    (name,) = declared_selectors(["own.py:f"])
    with pytest.raises(UserError) as error:
        SELECTORS[name].score(scores_of().of_label(None))
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (
            ["nowhere.py:f"],
            "nowhere.py: cannot read this file (No such file or directory); --selector FILE.py:NAME names one",
        ),
        (["own.py:kl"], "own.py: kl is the name of a selector of olmo-sparsity; choose another"),
        (["own.py:all"], "own.py: 'all': the name of a selector has at most 40"),
        (["own.py:_f"], "own.py: '_f': the name of a selector has at most 40"),
        (["own.py:named"], "own.py: 'two words': the name of a selector has at most 40"),
        (["own.py:f", "other.py:f"], "other.py:f: a selector is named f already, own.py:f; rename one"),
    ],
)
def test_names_that_cannot_be(names: list[str], said: str) -> None:
    both = "def kl(s): ...\nall = _f = f = kl\n"
    written(both + "from olmo_sparsity.selectors import selector\nnamed = selector('two words')(kl)\n")
    written(both + "# another\n", "other.py")
    with pytest.raises(UserError) as error:
        declared_selectors(names)
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


def test_functions_and_selectors_from_python() -> None:
    def last(s: Any) -> Any:
        """The last ones."""
        return np.tile(np.arange(s.num_candidates), (s.num_windows, 1))

    marked = selector("marked", sees_target=True)(lambda s: s.loss_single)
    assert names_given(["kl", last, marked]) == ["kl", "last", "marked"]
    assert SELECTORS["last"].score(scores_of()).tolist() == [list(range(16))] * W
    assert SELECTORS["last"].source is not None and SELECTORS["last"].source[0] == "test_own.py"
    assert SELECTORS["marked"].score(scores_of().of_label(0)).shape == (W, 16)
    typed: dict[str, Any] = {}
    exec("def typed(s): return s.kl_single", typed)
    names_given([typed["typed"]])
    assert sources_of(["typed"]) == [("typed", None)]
    for given, said in (
        (5, r"selectors\[1\] = 5: must be a name, a function or a selector"),
        (last, "another selector is named last"),
    ):
        with pytest.raises(UserError, match=said):
            names_given([last, given])
    with pytest.raises(UserError, match="has at most 40 letters"):
        names_given([lambda s: s.kl_single])


def test_a_measurement_records_the_source_and_a_resume_with_another_is_refused(
    tiny_config: Config, tiny_run: Path, here: Path
) -> None:
    written(GOOD)
    settings = dataclasses.replace(
        tiny_config.influence,
        selectors=declared_selectors(["own.py:farthest", "own.py:my_loss", "random"]),
        num_windows=8,
        k=[1, 2],
        windows_per_part=4,
    )
    config = dataclasses.replace(tiny_config, influence=settings)
    tables = measure(config, tiny_run, out=here / "tables")
    entries = read_json(tables / "manifest.json")["own_selectors"]
    assert (
        set(entries) == {"farthest", "my-loss"}
        and entries["my-loss"]["sha256"] == hashlib.sha256(GOOD.encode()).hexdigest()
    )
    rows = [row for row in read_table(tables, "selections").to_pylist() if row["selector"] == "farthest"]
    assert {row["context"] for row in rows} == {"real", "null"} and all(row["positions"] == [0, 1] for row in rows)
    labels = {row["context"] for row in read_table(tables, "selections").to_pylist() if row["selector"] == "my-loss"}
    assert labels == {"real", "null", "resampled", "null-resampled"}
    for part in (tables / "windows").glob("*1.parquet"):
        part.unlink()
    written(GOOD + "# changed\n")
    declared_selectors(["own.py:farthest", "own.py:my_loss"])
    with pytest.raises(
        UserError, match="the source of the selector farthest, my-loss has changed since these tables were begun"
    ):
        measure(config, tiny_run, out=tables)
    written(GOOD)
    declared_selectors(["own.py:farthest", "own.py:my_loss"])
    assert measure(config, tiny_run, out=tables) == tables


@pytest.mark.parametrize("entries", [{"f": 5}, {"f": {"meaning": 5}}, {"two words": {"meaning": "x"}}, {"f": {}}])
def test_what_a_manifest_says_is_checked(entries: dict[str, Any]) -> None:
    check_recorded({"f": {"meaning": "What it says."}}, where="tables")
    with pytest.raises(UserError, match=r"^tables: own_selectors: not as it was written; restore the file$"):
        check_recorded(entries, where="tables")


def test_a_selector_that_is_added_in_one_place_is_known_everywhere() -> None:
    assert all(name == one.name for name, one in selectors.SELECTORS.items())
    for one in SELECTORS.values():
        assert one.meaning and one.cost and one.meaning[-1] not in " \n"
