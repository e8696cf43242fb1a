"""The selector that docs/selectors.md builds, run as a user runs it: stopped half way, continued, shown, and changed."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from olmo_sparsity.view.tables import shown_selectors
from shown_commands import ROOT, first_block

from olmo_sparsity import api
from olmo_sparsity.cli.app import main
from olmo_sparsity.measure.scores import Scores
from olmo_sparsity.selectors import SELECTORS
from olmo_sparsity.selectors.registry import OBSERVED
from olmo_sparsity.statistics.quantities import read_estimates

pytestmark = pytest.mark.usefixtures("only_here")

PAGE = ROOT / "docs" / "selectors.md"
COMMAND = (
    "influence --run {run} --selector kl --selector random --selector my_selector.py:unusual --num-windows 40 --out {out} "
    "influence.windows_per_part=10 influence.resampled_draws=0"
)


@pytest.fixture
def only_here() -> Iterator[None]:
    """Selectors that the test declares are gone after it."""
    before = dict(SELECTORS)
    yield
    SELECTORS.clear()
    SELECTORS.update(before)


@pytest.fixture
def workplace(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(tiny_run, tmp_path / "run")
    (tmp_path / "my_selector.py").write_text(first_block(PAGE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, code: int = 0) -> str:
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    captured = capfd.readouterr()
    assert (ended.value.code or 0) == code, captured.err
    return captured.out if code == 0 else captured.err


def tables(folder: Path) -> list[Any]:
    return [pq.read_table(path).to_pylist() for path in sorted(folder.glob("*/part-*.parquet"))]


def test_it_is_stopped_half_way_continued_shown_and_refused_when_its_source_changes(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(COMMAND.format(run="run", out="whole"), monkeypatch, capfd)
    run(COMMAND.format(run="run", out="again") + " --shard 1/2", monkeypatch, capfd)
    assert 0 < len(tables(workplace / "again")) < len(tables(workplace / "whole"))

    source = (workplace / "my_selector.py").read_bytes()
    (workplace / "my_selector.py").write_bytes(source + b"# changed\n")
    line = run(COMMAND.format(run="run", out="again"), monkeypatch, capfd, code=2)
    assert "again: the source of the selector unusual has changed since these tables were begun" in line
    (workplace / "my_selector.py").write_bytes(source)
    run(COMMAND.format(run="run", out="again"), monkeypatch, capfd)
    assert tables(workplace / "again") == tables(workplace / "whole")
    assert any(row["selector"] == "unusual" for row in tables(workplace / "whole")[0])

    (workplace / "my_selector.py").write_text("raise AssertionError('a table runs no code')")
    del SELECTORS["unusual"]
    assert "unusual" in run("summary --tables whole --every", monkeypatch, capfd)
    assert shown_selectors(read_estimates(workplace / "whole")) == ["kl", "random", "unusual"]
    run("report --tables whole --out page.html", monkeypatch, capfd)
    page = (workplace / "page.html").read_text(encoding="utf-8")
    assert "unusual" in page
    assert "unusual" in run("show whole 3 --selector unusual", monkeypatch, capfd)
    assert ":unusual" in run("compare whole:unusual whole:kl", monkeypatch, capfd)


def test_from_python_it_gives_the_same_choices(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run(COMMAND.format(run="run", out="whole"), monkeypatch, capfd)
    space: dict[str, Any] = {}
    exec(compile(first_block(PAGE), "<typed in>", "exec"), space)
    measured = api.read_results("whole")
    model = api.open_model("run")
    table = measured.windows
    rows = [[*ids, target] for ids, target in zip(table["token_ids"], table["target_id"], strict=True)]
    windows = api.windows_from_tokens(model, rows, doc_ids=table["doc_id"])
    results = api.measure(model, windows, selectors=[space["unusual"], "random"], k=[1, 4])
    columns = ["window_id", "positions"]
    of_run = measured.selections.query("selector == 'unusual' and context == 'real'")
    of_python = results.selections.query("selector == 'unusual' and context == 'real'")
    for (_, one), (_, other) in zip(of_run[columns].iterrows(), of_python[columns].iterrows(), strict=True):
        assert one["positions"][:4].tolist() == other["positions"].tolist()
    assert results.manifest["own_selectors"]["unusual"]["sha256"] is None  # typed in
    late = api.selector("late")(lambda s: [range(s.num_candidates)] * s.num_windows)
    named = api.scores(model, windows, selectors=[late])
    assert (named["score"] == named["position"]).all()


def test_the_page_names_what_a_selector_can_ask() -> None:
    inner = {"for_label", "label", "read", "singles", "losses_short_WA", "losses_long_WA"}
    inner |= {"context", "seed", "lasso_masks", "tokenizer", "store"}
    asked = {name for name in vars(Scores) if name[0] != "_"} - inner - {"kl_short_to_long"}
    named = re.findall(r"`(\w+)(?:\(\w+\))?`", PAGE.read_text(encoding="utf-8"))
    assert asked | {*OBSERVED, "max_k"} <= set(named)


def test_a_run_that_it_trains_does_not_need_it(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The configuration of a run is read by commands that do not run the file."""
    (workplace / "tiny.yaml").write_text((workplace / "run" / "config.yaml").read_text("utf-8"), encoding="utf-8")
    command = COMMAND.format(
        run="fresh --config tiny.yaml --train training.steps=2 training.checkpoint_every=2", out="out"
    )
    run(command, monkeypatch, capfd)
    of_run = (
        (workplace / "fresh" / "config.yaml").read_text("utf-8"),
        (workplace / "fresh" / "manifest.json").read_text("utf-8"),
    )
    assert not any("unusual" in text for text in of_run)
    assert '"unusual"' in (workplace / "out" / "manifest.json").read_text("utf-8")
    run(command, monkeypatch, capfd)  # finds all of it
