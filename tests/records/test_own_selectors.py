"""Selectors of one's own: what a file must hold, and what a manifest can say, which is data and never code."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from known_selectors import only_here as only_here

from olmo_sparsity.errors import UserError
from olmo_sparsity.records import own_selectors
from olmo_sparsity.records.own_selectors import OwnSelector, declare_recorded, declared_selectors, names_of, own_entries
from olmo_sparsity.records.selector import OwnSource, ScoringSize
from olmo_sparsity.records.selectors import SELECTORS, main_among
from olmo_sparsity.records.window_input import NEEDS, WindowInput

pytestmark = pytest.mark.usefixtures("only_here")

GOOD = '''
from __future__ import annotations
from dataclasses import dataclass
from olmo_sparsity.records.own_selectors import OwnSelector

@dataclass
class Helper:
    weight: float = 2.0

def by_length(window):
    """How long {the text} is.

    More."""
    return [Helper().weight * len(text) for text in window.texts]

seeing = OwnSelector(by_length, needs=["keys", "texts"], sees_target=True, color="#0fA9c8", marker="s", meaning="x")
number = 7
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(text: str | bytes, name: str = "own.py:f") -> str:
    Path("own.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError) as error:
        declared_selectors([name])
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_file_gives_a_selector(folder: Path) -> None:
    (folder / "own.py").write_text(GOOD)
    assert declared_selectors(["kl", "own.py:by_length", "kl", "own.py:by_length", "own.py:seeing"]) == [
        "kl",
        "by_length",
        "seeing",
    ]
    plain, seeing = SELECTORS["by_length"], SELECTORS["seeing"]
    assert plain.own is not None
    assert (plain.own.file, plain.own.sha256) == ("own.py", hashlib.sha256(GOOD.encode()).hexdigest())
    assert plain.meaning.format(unit="token", units="tokens") == "How long {the text} is."
    assert plain.needs == {"token_ids", "texts", "positions"} and not plain.sees_target
    assert (seeing.look.marker, seeing.meaning, seeing.sees_target) == ("s", "x", True)
    assert {seeing.look.color, seeing.look.on_light, seeing.look.on_dark} == {"#0fA9c8"}
    size = ScoringSize(num_candidates=12, max_k=4, lasso_masks=8)
    assert [(of.num_evaluations(size), of.cost) for of in (plain, seeing)] == [(0, "0"), (1, "1")]
    assert main_among(["mask-one", "seeing", "kl"]) == ["seeing", "kl"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "own.py: nothing is named f there; it holds no function"),
        ("def g(window): ...\nh = g", "own.py: nothing is named f there; there are g, h"),
        ("from os.path import join\ndef _g(window): ...", "own.py: nothing is named f there; it holds no function"),
        ("f = 5", "own.py: f is no function, but int"),
        ("\n\nf = (", "own.py:3: SyntaxError: '(' was never closed"),
        ("\nimport nowhere_to_be_found", "own.py:2: ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("x = 1\nraise SystemExit(3)", "own.py:2: SystemExit: 3"),
        (
            "def g():\n    return 1 / 0\ng()",
            "own.py:2: ZeroDivisionError: division by zero",
        ),  # where it is, not the call
        ("\ndef f(): ...", "own.py:2: f must take one argument, the window; it takes ()"),
        ("def f(window, other): ...", "own.py:1: f must take one argument, the window; it takes (window, other)"),
        (
            "from shutil import copyfile as f",  # it has no line in this file
            "own.py: f must take one argument, the window; it takes (src, dst, *, follow_symlinks=True)",
        ),
        ("def g():\n    raise ValueError('one\\ntwo')\ng()", "own.py:2: ValueError: one"),
        ("\nraise KeyError", "own.py:2: KeyError"),
        (b"\xff\xfe", "own.py:"),
    ],
)
def test_a_file_that_is_no_selector_is_one_line(folder: Path, text: str | bytes, line: str) -> None:
    said = refused(text)
    assert said == line or (line.endswith(":") and said.startswith(line))


def test_a_syntax_error_of_an_imported_module_has_the_line_of_the_import(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And names the module's own place; also where the function imports it."""
    monkeypatch.syspath_prepend(folder)
    (folder / "helper_of_own.py").write_text("\n\n\n\nx = (\n")
    for text, line in (
        ("\n\nimport helper_of_own", 3),
        ("def g():\n    import helper_of_own\n\n\ng()", 2),
    ):
        said = "SyntaxError: '(' was never closed (helper_of_own.py, line 5)"
        assert refused(text) == f"own.py:{line}: {said}"
    (folder / "own.py").write_text("def f(window):\n    import helper_of_own")
    declared_selectors(["own.py:f"])
    with pytest.raises(UserError, match=rf"^own.py:2: selector f: {re.escape(said)}$"):
        SELECTORS["f"].score(OneWindow())  # type: ignore[arg-type]


class OneWindow:
    """A window of which nothing is asked."""

    def inputs(self, needs: Any, *, with_label: bool) -> list[WindowInput]:
        return [WindowInput(2, 1, {})]


def test_a_file_elsewhere_is_named_as_it_was_given_and_recorded_without_its_folder(folder: Path) -> None:
    (folder / "of mine").mkdir()
    (folder / "of mine" / "own.py").write_text("def g(window): ...\ndef f(): ...")
    assert declared_selectors(["of mine/own.py:g"]) == ["g"]
    own = SELECTORS["g"].own
    assert own is not None and own.file == "own.py"
    for name, said in (
        ("f", "own.py:2: f must take one argument"),
        ("", "of mine/own.py: nothing is named so there; there are g, f"),
    ):
        with pytest.raises(UserError, match=f"^{said}"):
            declared_selectors([f"of mine/own.py:{name}"])
    with pytest.raises(
        UserError, match=r"^of mine/no\.py: cannot read this file \(No such file or directory\); --selector "
    ):
        declared_selectors(["of mine/no.py:g"])


def test_how_long_a_name_is(folder: Path) -> None:
    longest = "a" * 40
    assert names_of([OwnSelector(named, name=longest)]) == [longest]
    with pytest.raises(UserError, match=f"'{longest}a': the name of a selector has at most 40 letters, digits, "):
        names_of([OwnSelector(named, name=f"{longest}a")])
    for function in (lambda window: None, Longest()):  # without a name of their own
        with pytest.raises(UserError, match=r"begins with a letter; name it with Selector\(\.\.\., name='mine'\)$"):
            names_of([function])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("needs=['age']", "f needs age, and there is token_ids"),
        ("needs=['keys', 'age', 'rank']", "f needs age, rank, and there is token_ids"),
        ("needs=['target']", "say sees_target=True"),
        ("needs='keys'", "must be a list of names, as ['keys']"),
        ("needs=None", "needs = None: must be a list of names"),
        ("needs=[5]", "f needs 5, and there is token_ids"),
        ("color=5", "color = 5: must be text"),
        ("marker=5", "marker = 5: must be text"),
        ("meaning=5", "meaning = 5: must be text"),
        ("sees_target='no'", "sees_target = 'no': must be True or False"),
        ("color='red'", "color = red: must be #rrggbb"),
        ("marker='potato'", "marker = potato: no marker"),
        ("name='kl'", "own.py: kl is the name of a selector of olmo-sparsity; choose another name"),
        ("name='h2 o'", "the name of a selector has at most 40 letters"),
        ("name='all'", "all has another meaning in options or tables; choose another name"),
    ],
)
def test_a_selector_that_cannot_be_is_one_line(folder: Path, arguments: str, line: str) -> None:
    source = "from olmo_sparsity.records.own_selectors import OwnSelector\ndef g(window): ...\n"
    assert line in refused(f"{source}f = OwnSelector(g, {arguments})")


@pytest.mark.parametrize("content", [None, "", "f = (", "f = 5", "def f(): ..."])
def test_messages_name_a_file_without_control_characters(folder: Path, content: str | None) -> None:
    name = "red\x1b[31m\n.py"
    if content is not None:
        Path(name).write_text(content)
    with pytest.raises(UserError, match=r"red.*\.py") as error:
        declared_selectors([f"{name}:f"])
    assert str(error.value).isprintable()


def test_two_of_one_name_are_refused(folder: Path) -> None:
    for name in ("one.py", "two.py"):
        Path(name).write_text("def f(window): ...")
    with pytest.raises(UserError, match=r"two.py:f: a selector is named f already, one.py:f; rename one"):
        declared_selectors(["one.py:f", "two.py:f"])
    with pytest.raises(UserError, match=r"one.py:f: a selector is named f already; rename one"):
        declared_selectors(["kl", "one.py:f", "f"])
    with pytest.raises(UserError, match=r"one.py:f: a selector is named f already, f; rename one"):
        declared_selectors(["f", "one.py:f"])
    with pytest.raises(UserError, match=r"selectors\[2\]: another selector is named f, too; rename one"):
        names_of(["kl", lambda_named("f"), lambda_named("f")])
    with pytest.raises(UserError, match=r"selectors\[0\] = 5: must be text, a function of one window, or a Selector"):
        names_of([5])
    with pytest.raises(UserError, match=rf"^selectors\[1\] = {'1' * 60}: must be text"):
        names_of(["kl", int("1" * 70)])


class Longest:
    """An object that can be called: it has neither a name nor a source of its own."""

    def __call__(self, window: WindowInput) -> list[int]:
        return [len(text) for text in window.texts]


def test_what_has_no_source_or_does_not_tell_its_arguments_can_be_a_selector(folder: Path) -> None:
    """Built-in functions, of which Python knows no signature; objects; functions that were typed in."""
    typed_in: dict[str, Any] = {}
    exec("def typed(window): ...", typed_in)
    partial = functools.partial(sorted, key=len)
    given = [max, OwnSelector(Longest(), name="longest"), OwnSelector(partial, name="part"), typed_in["typed"]]
    names = names_of(given)
    assert names == ["max", "longest", "part", "typed"]
    assert own_selectors.sources_of(names) == [(name, None) for name in names]
    assert {entry["file"] for entry in own_entries(names).values()} == {"<function>"}
    assert names_of([np.add, OwnSelector(np.negative, name="minus")]) == ["add", "minus"]
    assert own_selectors.sources_of(["add", "minus"]) == [("add", None), ("minus", None)]
    assert names_of([OwnSelector(functools.partial(np.add, 1), name="plus")]) == ["plus"]
    (folder / "own.py").write_text("f = max")
    assert declared_selectors(["own.py:f"]) == ["f"]


def named(window: WindowInput) -> None:
    """A function of this file."""


def test_a_function_that_is_given_from_python_is_known_by_its_own_lines(folder: Path) -> None:
    assert names_of([named, "kl"]) == ["named", "kl"]
    own = SELECTORS["named"].own
    assert own == OwnSource("test_own_selectors.py", hashlib.sha256(inspect.getsource(named).encode()).hexdigest())
    assert own_selectors.sources_of(["kl", "named"]) == [("named", own.sha256)]


def test_a_function_with_some_of_its_arguments_says_what_the_function_says(folder: Path) -> None:
    """And not what ``functools.partial`` is; its errors have the line of the function."""
    text = "from functools import partial\ndef g(power, window):\n    '''How long.'''\n    return 1 / power\nf = partial(g, 0)"
    (folder / "own.py").write_text(text)
    declared_selectors(["own.py:f"])
    assert SELECTORS["f"].meaning == SELECTORS["f"].definition == "How long."
    assert refused("def g(window): ...\nfrom functools import partial\nf = partial(g, 0)").startswith(
        "own.py:1: f must"
    )
    names_of(
        [OwnSelector(functools.partial(divided, 0), name="part"), OwnSelector(functools.partial(len), name="built-in")]
    )
    assert (SELECTORS["part"].meaning, SELECTORS["built-in"].meaning) == (
        "One by a number.",
        (len.__doc__ or "").partition("\n")[0],
    )
    line = divided.__code__.co_firstlineno + 2
    with pytest.raises(UserError, match=rf"^test_own_selectors\.py:{line}: selector part: ZeroDivisionError"):
        SELECTORS["part"].score(OneWindow())  # type: ignore[arg-type]


def divided(number: int, window: WindowInput) -> float:
    """One by a number."""
    return 1 / number


def lambda_named(name: str) -> OwnSelector:
    return OwnSelector(lambda window: None, name=name)


@pytest.mark.parametrize("name", ["f", "by_length", "a-5"])
def test_the_look_of_a_selector_that_names_none_depends_on_its_name(name: str) -> None:
    """So it is the same in every measurement; its meaning is then a line of its docstring, if it has one."""
    number = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % 8
    names_of([lambda_named(name)])
    look = SELECTORS[name].look
    assert (look.color, look.on_light, look.on_dark) == own_selectors.COLORS[number]
    assert look.marker == own_selectors.MARKERS[number]
    assert SELECTORS[name].meaning == SELECTORS[name].definition == f"score of {name}"
    names_of([OwnSelector(lambda window: None, name=name, meaning="word " * 80)])
    assert SELECTORS[name].meaning == "word " * 40


def test_no_two_of_ones_own_look_alike_while_there_are_looks() -> None:
    """Names of the same number get the next ones; a marker is no selector's of the package."""
    names = [f"own-{number}" for number in range(99)]
    alike = [name for name in names if int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % 8 == 6][:10]
    assert len(alike) == 10
    names_of([lambda_named(name) for name in alike])
    looks = [SELECTORS[name].look for name in alike]
    first = own_selectors.MARKERS[6:] + own_selectors.MARKERS[:6]
    assert tuple(look.marker for look in looks) == (
        *first,
        *first[:2],
    )  # the ninth is drawn as the first, the tenth as the second
    assert [look.color for look in looks[:3]] == [own_selectors.COLORS[number][0] for number in (6, 7, 0)]
    names_of([lambda_named(alike[1])])
    assert SELECTORS[alike[1]].look == looks[1]
    of_package = {selector.look.marker for selector in SELECTORS.values() if selector.own is None}
    assert of_package.isdisjoint(own_selectors.MARKERS)


def test_a_manifest_gives_back_the_look_and_runs_nothing(folder: Path) -> None:
    (folder / "own.py").write_text(GOOD)
    declared_selectors(["own.py:seeing", "own.py:by_length"])
    loaded = SELECTORS["seeing"]
    entries = json.loads(json.dumps(own_entries(["kl", "seeing"])))
    assert entries == {
        "seeing": {
            "file": "own.py", "sha256": hashlib.sha256(GOOD.encode()).hexdigest(), "needs": ["keys", "texts"],
            "sees_target": True, "meaning": "x",
            "look": {"color": "#0fA9c8", "marker": "s", "on_light": "#0fA9c8", "on_dark": "#0fA9c8"},
        }
    }  # fmt: skip
    declare_recorded(entries, where="x")
    assert SELECTORS["seeing"] is loaded  # what was loaded stays
    assert own_entries(["seeing", "by_length"])["by_length"]["meaning"] == "How long {the text} is."
    del SELECTORS["seeing"]
    (folder / "own.py").write_text("raise AssertionError")
    declare_recorded(entries, where="x")
    read = SELECTORS["seeing"]
    assert (read.look, read.meaning, read.sees_target, read.own) == (loaded.look, loaded.meaning, True, loaded.own)
    assert read.needs == {"keys", "texts"}
    assert main_among(["mask-one", "seeing"]) == ["seeing"]  # it was asked for
    words = {**entries["seeing"], "meaning": f"\x1b{{one}} of {'many ' * 50}", "file": "red\x1b.py"}
    declare_recorded({"other": words}, where="x")
    said = SELECTORS["other"].meaning.format(unit="token", units="tokens")
    assert said.isprintable() and len(said) == 200 and "{one} of many " in said
    own = SELECTORS["other"].own
    assert own is not None and own.file.isprintable() and own.file.endswith(".py")
    typed_in = {**entries["seeing"], "file": "<function>", "sha256": None, "sees_target": False}
    declare_recorded({"seeing": typed_in}, where="x")  # of other tables, which are read after the first
    assert SELECTORS["seeing"].own == OwnSource("<function>", None) and not SELECTORS["seeing"].sees_target
    with pytest.raises(AssertionError, match="never run"):
        read.score(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"selectors\[1\] = seeing: only tables name it; give the function itself"):
        names_of(["kl", "seeing"])


@pytest.mark.parametrize(
    "change",
    [
        {"look": {}},
        *(
            {"look": {"color": "#000000", "marker": "s", "on_light": "#000000", "on_dark": "#000000", ground: "red;}"}}
            for ground in ("color", "on_light", "on_dark")
        ),
        {"look": {"color": "#000000", "marker": "$\\input{x}$", "on_light": "#000000", "on_dark": "#000000"}},
        {"meaning": 5},
        {"sees_target": "no"},
        {"needs": None},
        {"needs": 5},
        {"needs": "keys"},
        {"needs": ["keys", "age"]},
        {"needs": [["keys"]]},
    ],
)
def test_a_manifest_that_was_changed_is_refused(folder: Path, change: dict[str, Any]) -> None:
    (folder / "own.py").write_text(GOOD)
    declared_selectors(["own.py:seeing"])
    entries = own_entries(["seeing"])
    del SELECTORS["seeing"]
    with pytest.raises(UserError, match=r"m.json: own_selectors.seeing is not as olmo-sparsity writes it"):
        declare_recorded({"seeing": {**entries["seeing"], **change}}, where="m.json")
    for changed in ({"a;}b": entries["seeing"]}, ["seeing"], "seeing"):
        with pytest.raises(
            UserError, match=r"^m\.json: own_selectors.* is not as olmo-sparsity writes it; measure again$"
        ):
            declare_recorded(changed, where="m.json")
    assert "seeing" not in SELECTORS


def test_a_manifest_cannot_take_the_place_of_a_built_in_selector(folder: Path) -> None:
    (folder / "own.py").write_text(GOOD)
    declared_selectors(["own.py:seeing"])
    kl = SELECTORS["kl"]
    declare_recorded({"kl": own_entries(["seeing"])["seeing"]}, where="x")
    assert SELECTORS["kl"] is kl


def test_every_need_can_be_read_and_is_described() -> None:
    window = WindowInput(2, 1, dict.fromkeys(NEEDS, 5))
    for need in (*NEEDS, "target"):
        described = inspect.getattr_static(WindowInput, need)
        assert isinstance(described, property) and described.__doc__
    assert all(getattr(window, need) == 5 for need in NEEDS)
    with pytest.raises(own_selectors.UndeclaredNeedError, match="sees_target=True"):
        _ = window.target
    some = WindowInput(2, 1, dict.fromkeys(("keys", "texts", "target"), 5))  # a target is no need
    with pytest.raises(
        own_selectors.UndeclaredNeedError, match=r"^values .*Selector\(\.\.\., needs=\['keys', 'texts', 'values'\]\)$"
    ):
        _ = some.values
