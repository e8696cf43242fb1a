"""Every mistake of the table ends its command with the same form: exit code 2, one line, and nothing changed on disk."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import mistake_cases
import pytest
from conftest import TINY_YAML
from mistakes import Case, run_main
from syrupy.assertion import SnapshotAssertion

from olmo_sparsity.config import load_config
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.train.loop import train

CASES: list[Case] = [
    case for name, rows in vars(mistake_cases).items() if name.isupper() and isinstance(rows, list) for case in rows
]

# Words of libraries, of Python and of the machine, which other versions say otherwise.
OF_OTHERS = re.compile(
    "Input should|Unable to parse|Possible options|Did you mean|not valid YAML|JSONDecodeError|transformers|GB free|SyntaxError|"
    "inflate failed|decompress failed|Parquet file size|line 1 column|charsmap|codec can't|"
    r"unexpected extra|\(.* (denied|exists|directory|long)\)",
    re.IGNORECASE,
)
SHOWN = 200  # characters of a line: lists of names and numbers of thousands of digits end it


def as_everywhere(line: str) -> str:
    """Return a line without the folders of this machine, and no longer than ``SHOWN``."""
    line = line.replace(f"{Path(__file__).parents[2]}/", "").replace(f"{Path.cwd()}/", "")
    return line if len(line) <= SHOWN else f"{line[:SHOWN]} ..."


@pytest.fixture(scope="session")
def finished_work(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a user has it after a measurement; tests get copies."""
    folder = tmp_path_factory.mktemp("mistakes") / "work"
    folder.mkdir()
    shutil.copy(corpus_file, folder / "words.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("tiny.yaml").write_text(TINY_YAML.format(source="words.jsonl", cache="data"))
        config, run = load_config(Path("tiny.yaml")), Path("runs/tiny")
        train(config, run)
        shutil.copytree(measure(config, run), "tables")
    return folder


@pytest.fixture(scope="module")
def shared_work(finished_work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy for the mistakes that need no other input: each of them is tested to leave it as it was."""
    return Path(shutil.copytree(finished_work, tmp_path_factory.mktemp("shared") / "work"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case.command[:60]))
def test_a_mistake_gets_one_line(
    case: Case,
    shared_work: Path,
    finished_work: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    if case.make is None:
        monkeypatch.chdir(shared_work)
    else:
        monkeypatch.chdir(shutil.copytree(finished_work, tmp_path / "work"))
        case.make()
    ended = run_main(case.command, monkeypatch, capfd, **dict(case.variables))
    assert case.line in ended.err
    assert ended.err.startswith("olmo-sparsity: error: ")
    assert ended.err.count("\n") == 1
    assert (ended.code, ended.out, ended.changed) == (2, "", [])
    if not OF_OTHERS.search(ended.err):
        assert as_everywhere(ended.err.removeprefix("olmo-sparsity: error: ").strip()) == snapshot


def test_the_table_is_long_and_has_each_mistake_once() -> None:
    assert len(CASES) >= 150
    assert len({(case.command, case.make, case.variables) for case in CASES}) == len(CASES)
