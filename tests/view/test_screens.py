"""What commands print, word for word: the screens in ``screens/`` were read by a person."""

from __future__ import annotations

import html
import io
import re
import shutil
import sys
from pathlib import Path

import pytest
from started_commands import exit_code
from unlike_tables import CONTEXTUAL, made_up_tables

GUARD = Path(__file__).parents[1] / "guard" / "data"
SEEDS = " ".join(f"--run runs/seed{seed}" for seed in range(3))
SCREENS = {
    "prepare": "prepare --config guard.yaml",
    "merge-check": "merge --check words few",
    "train": "train --config guard.yaml name=tiny training.steps=6 training.eval_every=3 training.checkpoint_every=6",
    "influence": "influence --run runs/guard --k 2",
    "synth-eval": "synth eval parity --config synthetic/parity.yaml",
    "export": "export hf runs/guard exported",
    "summary": "summary --run runs/made-up",
    "summary-few-documents": "summary --tables few",
    "summary-no-gain": "summary --tables none",
    "summary-of-words": "summary --tables words",
    "summary-of-seeds": "summary --run runs/seed1 --run runs/seed2",
    "summary-markdown": "summary --run runs/made-up --md",
    "summary-latex": "summary --run runs/made-up --tex",
    "compare": "compare runs/seed0 runs/seed1",
    "compare-selectors": "compare runs/made-up:kl runs/made-up:unmask-one --every",
    "list": "list",
    "show": "show runs/made-up 3",
    "show-words": "show words 5 --selector unmask-one",
    "explore": "explore --run runs/guard --text note.txt --at 120 --k 2",
    "explore-by-keys": "explore --run runs/guard --text note.txt --at 120 influence.selectors=[attention] influence.k=[1]",
    "explore-page": "explore --run runs/guard --text note.txt --k 1 --out report.html",
    "hypothesis": f"hypothesis {SEEDS}",
    "report": "report --run runs/made-up --out report.html",
    "report-few-documents": "report --tables few --out report.html",
}

# Commands that run a model: machines round its numbers differently, so decimals are hidden, and hashes.
COMPUTED = ("prepare", "train", "influence", "synth", "export", "explore")
VARYING = re.compile(r"(?<=by at most )\S+|-?\d+\.\d+|(?<=-)[0-9a-f]{6,12}\b")
COPIED = {"corpus": "corpus", "synthetic": "synthetic", "runs": "runs", "run": "runs/guard", "tables/words": "words"}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("screens")
    for name, copy in COPIED.items():
        shutil.copytree(GUARD / name, folder / copy)
    shutil.copy(GUARD / "guard.yaml", folder)
    shutil.copy(GUARD / "corpus" / "note-3.txt", folder / "note.txt")
    made_up_tables(folder / "runs/made-up/influence/measured", num_documents=400)
    made_up_tables(folder / "few", num_documents=12)
    made_up_tables(folder / "none", num_documents=80, long_gain=0.0, setup=CONTEXTUAL)
    return folder


def text_of(page: Path) -> str:
    """A page without its styles, scripts, pictures and setup; a line for each block and each row of a table."""
    found = re.sub(r"<(style|script|svg|pre).*?</\1>|\n", " ", page.read_text(), flags=re.DOTALL)
    found = re.sub(r"<[^>]*>", " ", re.sub(r"</(title|h\d|p|tr|dt|dd|summary|caption)>", "\n", found))
    lines = (" ".join(line.split()) for line in html.unescape(found).split("\n"))
    return "".join(f"{line}\n" for line in lines if line)


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_reads_as_before(
    name: str, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where one has changed, the new one is in the folder that is named: read it, and put it into ``screens/``."""
    is_computed = SCREENS[name].startswith(COMPUTED)
    if is_computed:
        workplace = shutil.copytree(workplace, tmp_path / "copy")
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("COLUMNS", "80")
    assert exit_code(*SCREENS[name].split()) == 0
    printed = "".join(capsys.readouterr())
    if (page := Path("report.html")).exists():
        printed += text_of(page)
        page.unlink()
    if name == "export":
        printed += Path("exported/README.md").read_text()
    if is_computed:
        printed = VARYING.sub("...", printed)
    new, before = tmp_path / f"{name}.txt", Path(__file__).parent / "screens" / f"{name}.txt"
    new.write_text(printed)
    assert before.exists() and printed == before.read_text(), new


BARS = {
    "train": {"prepare": "199 documents", "train": "6/6"},
    "influence": {"prepare": "199 documents", "influence": "24/24"},
    "synth-eval": {"train": "40/40", "synthetic": "64/64"},
}


@pytest.mark.parametrize("name", BARS)
def test_the_bars_of_a_terminal_reach_their_ends(
    name: str, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shutil.copytree(workplace, tmp_path / "copy"))
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    assert exit_code(*SCREENS[name].split()) == 0
    states = re.findall(r"(\w+): (?: *\d+%\|.*?\| )?(\d+(?:/\d+| documents))", terminal.getvalue())
    assert dict(states) == BARS[name], terminal.getvalue()
    if name == "train":
        assert re.search(r"6/6 .*loss=\d.*tokens/s=\d.*validation=\d", terminal.getvalue())
