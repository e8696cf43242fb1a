"""Mutants: each changes one line of a module, which compiles, and to something else."""

from __future__ import annotations

import ast
from pathlib import Path

from benchmarks import mutants
from benchmarks.mutants import ROOT, Mutant, mutants_of


def test_every_mutant_changes_one_line_to_other_code() -> None:
    source = (ROOT / "olmo_sparsity" / "statistics" / "intervals.py").read_text(encoding="utf-8")
    lines, before, found = source.splitlines(), ast.dump(ast.parse(source)), mutants_of("intervals.py", source)
    assert len(found) > 150
    for mutant in found[::5]:
        assert lines[mutant.line - 1] == mutant.before
        changed = [*lines[: mutant.line - 1], mutant.after, *lines[mutant.line :]]
        assert ast.dump(ast.parse("\n".join(changed))) != before, mutant


def test_what_is_changed() -> None:
    source = 'def f(a: int = 3) -> bool:\n    g(f"{a + 1}", "é", not a, strict=True)\n    return min(a, -1) <= 2 and a % 2 == 0\n'
    after = sorted(mutant.after.strip() for mutant in mutants_of("m.py", source))
    line = "return min(a, -1) <= 2 and a % 2 == 0"
    expected = ["def f(a: int = 4) -> bool:", "pass", 'g(f"{a + 1}", "é", a, strict=True)', line.replace("min", "max")]
    expected += [line.replace(*of) for of in (("and", "or"), ("<=", "<"), ("==", "!="), ("-1", "1"), ("-1", "-2"))]
    expected += [line.replace(*of) for of in (("<= 2", "<= 3"), ("% 2", "* 2"), ("% 2", "% 3"), ("== 0", "== 1"))]
    assert after == sorted(expected)


def test_tests_of_a_line_are_those_that_run_it_and_of_an_import_those_of_its_module() -> None:
    covered = {1: [""], 2: ["tests/a.py::x|call", "tests/view/b.py::y[|]|call"], 3: ["tests/a.py::x|setup"]}
    run_by = [mutants.tests_of(Mutant("olmo_sparsity/view/m.py", line, "", ""), covered) for line in (1, 2, 3)]
    other = "tests/view/b.py::y[|]"  # of the room
    assert run_by == [[other, "tests/a.py"], [other, "tests/a.py::x"], ["tests/a.py"]]  # a fixture's: the whole file
    assert mutants.tests_of(Mutant(str(Path("m.py")), 1, "", ""), {}) == []
