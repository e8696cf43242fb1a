"""Mutation testing: ``python -m benchmarks.mutants [--number 40] [--seed 0] [--under olmo_sparsity/statistics ...]``.

Draws changes of one line at random, and runs the tests that run the line, then those that coverage cannot follow, until one
fails. A mutant that no test notices has survived: either a test is missing, or the change changes nothing. It happens in clones
of HEAD, so a stop leaves no mutant behind. Which tests run a line is measured once for each commit, by a run of all tests under
coverage, all of which must pass. Tests that take too long have noticed a change only if they end in time without it.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGES = ("olmo_sparsity", "analysis")
PYTEST = [sys.executable, "-P", "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip
RENAMED = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "argmin": "argmax",
    "argmax": "argmin",
    "minimum": "maximum",
}
# Tests that coverage cannot follow: their commands run in other processes, or read text in threads of the library tokenizers.
ELSEWHERE = [
    "tests/text/test_sources.py", "tests/cli/test_mistakes.py", "tests/cli/test_endings.py", "tests/guard", "tests/reference",
    "tests/measure/test_measured_parts.py", "tests/train/test_processes.py",
]  # fmt: skip
WORDLESS = (ast.JoinedStr, ast.Import, ast.ImportFrom)  # Python 3.11 gives no places inside f-strings
GUARDS = ("frozen", "strict")  # arguments that only stop mistakes of the code


@dataclass(frozen=True)
class Mutant:
    """A line of a module, and what takes its place."""

    path: str
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}\n  - {self.before.strip()}\n  + {self.after.strip()}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants of a module; each still compiles."""
    lines = source.splitlines()
    found = []
    for node in _nodes(ast.parse(source)):
        if node.lineno != node.end_lineno:  # type: ignore[attr-defined]
            continue
        line, begin, end = node.lineno, node.col_offset, node.end_col_offset  # type: ignore[attr-defined]
        content = lines[line - 1].encode()
        for text in _changes(node):
            after = (content[:begin] + text.encode() + content[end:]).decode()
            found.append(Mutant(path, line, lines[line - 1], after))
    return found


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The statements and expressions of a module, without annotations, text and guards."""
    if isinstance(node, ast.keyword) and node.arg in GUARDS:
        return
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, WORDLESS) and name not in ("annotation", "returns"):
                if isinstance(child, (ast.stmt, ast.expr)):
                    yield child
                yield from _nodes(child)


def _changes(node: ast.AST) -> Iterator[str]:
    """What takes the place of a node, as source."""
    match node:
        case ast.Compare(left=left, ops=[op, *others], comparators=comparators) if type(op) in SWAPPED:
            yield ast.unparse(ast.Compare(left, [SWAPPED[type(op)](), *others], comparators))  # type: ignore[list-item]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPPED:
            yield ast.unparse(ast.BinOp(left, SWAPPED[type(op)](), right))  # type: ignore[arg-type]
        case ast.BoolOp(op=op, values=values):
            yield ast.unparse(ast.BoolOp(SWAPPED[type(op)](), values))  # type: ignore[arg-type]
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in SWAPPED:
            yield ast.unparse(ast.AugAssign(target, SWAPPED[type(op)](), value))  # type: ignore[arg-type]
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield ast.unparse(operand)
        case ast.IfExp(body=body, orelse=otherwise):
            yield ast.unparse(body)
            yield ast.unparse(otherwise)
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield str(value + 1 if abs(value) < 100 else 0)
        case ast.Name(id=name) if name in RENAMED:
            yield RENAMED[name]
        case ast.Expr(value=ast.Call()):
            yield "pass"
        case ast.Break() | ast.Continue():
            yield ast.unparse(SWAPPED[type(node)]())


def _environment(checkout: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}


def measure_coverage(checkout: Path, database: Path, tests: list[str], *, workers: int) -> None:
    """Run the tests, and write which of them run each line."""
    options = ["-n", f"{workers}", "--cov-context=test", "--cov-report=", *(f"--cov={name}" for name in PACKAGES)]
    subprocess.run([*PYTEST, *options, *tests], cwd=checkout, env=_environment(checkout), check=True)
    shutil.move(checkout / ".coverage", database)


def tests_of(mutant: Mutant, covered: dict[int, list[str]]) -> list[str]:
    """The tests that run the line, those of its room first; where only an import runs it, those that run its module.

    What a fixture runs for one test, others of its file may look at.
    """
    lines = [mutant.line] if any(covered.get(mutant.line, [])) else [*covered]
    names = {name.rpartition("|")[::2] for line in lines for name in covered.get(line, []) if name}
    files = {name.partition("::")[0] for name, step in names if step == "setup"}
    tests = files | {name for name, _step in names if name.partition("::")[0] not in files}
    room = Path(mutant.path).parent.name
    return sorted(tests, key=lambda name: (room not in Path(name.partition("::")[0]).parts, name))


def run_tests(tests: list[str], *, checkout: Path, seconds: float) -> str:
    """The first line that tells of a failure; nothing where all tests pass."""
    try:
        ended = subprocess.run(
            [*PYTEST, "-x", "-rfE", "--tb=no", *tests], cwd=checkout, env=_environment(checkout), capture_output=True, text=True,
            timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "timed out"
    if "ERROR: not found" in ended.stderr + ended.stdout:  # the change renames cases of a test
        return run_tests(sorted({name.partition("::")[0] for name in tests}), checkout=checkout, seconds=seconds)
    told = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return (told or ["exit code"])[0] if ended.returncode else ""


def outcome(mutant: Mutant, tests: list[str], *, checkout: Path, seconds: float) -> str:
    """What happens to the tests when the line is changed: survived, killed, or too slow to tell."""
    path = checkout / mutant.path
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    lines[mutant.line - 1] = f"{mutant.after}\n"
    path.write_text("".join(lines), encoding="utf-8")
    try:
        told = run_tests(tests, checkout=checkout, seconds=seconds)
    finally:
        path.write_text(source, encoding="utf-8")
    if told == "timed out" and run_tests(tests, checkout=checkout, seconds=seconds):
        return "too slow to tell"
    return f"killed ({told})" if told else "survived"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=40, help="of mutants; default 40")
    parser.add_argument("--seed", type=int, default=0, help="of the draw; default 0")
    parser.add_argument("--under", nargs="+", default=PACKAGES, help="folders or modules to change; default all")
    parser.add_argument("--tests", nargs="+", default=["tests"], help="tests to run; default all")
    parser.add_argument("--workers", type=int, default=2, help="processes; default 2")
    parser.add_argument("--seconds", type=float, default=600, help="limit for the tests of a mutant; default 600")
    given = parser.parse_args()
    import coverage

    def git(*arguments: Any) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    name = "-".join([git("rev-parse", "--short", "HEAD"), *given.tests]).replace("/", "-")
    database = Path(tempfile.gettempdir()) / f"coverage-of-tests-{name}.sqlite"
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.workers) as pool:
        checkouts: Queue[Path] = Queue()
        for number in range(given.workers):
            checkout = Path(folder) / f"{number}" / "checkout"
            git("clone", "--quiet", "--shared", ROOT, checkout)
            checkouts.put(checkout)
        if not database.exists():
            measure_coverage(checkout, database, given.tests, workers=given.workers)
        data = coverage.CoverageData(str(database))
        data.read()
        covered = {path.partition("/checkout/")[2]: data.contexts_by_lineno(path) for path in data.measured_files()}
        sources = {
            path.relative_to(checkout).as_posix(): path for name in PACKAGES for path in (checkout / name).rglob("*.py")
        }
        chosen = [name for name in sorted(sources) if name.startswith(tuple(given.under))]
        mutants = [mutant for name in chosen for mutant in mutants_of(name, sources[name].read_text(encoding="utf-8"))]
        others = ELSEWHERE if given.tests == ["tests"] else []

        def tell(mutant: Mutant) -> str:
            tests = tests_of(mutant, covered.get(mutant.path, {}))
            run = [*tests, *others] if tests else given.tests  # no test is known to run its module
            mine = checkouts.get()
            ended = outcome(mutant, run, checkout=mine, seconds=given.seconds)
            checkouts.put(mine)
            print(f"{ended}, {len(tests)} tests: {mutant}", flush=True)
            return ended.partition(" (")[0]

        counts.update(pool.map(tell, random.Random(given.seed).sample(mutants, min(given.number, len(mutants)))))
    print(", ".join(f"{number} {ended}" for ended, number in counts.most_common()))


if __name__ == "__main__":
    main()
