"""Progress of long work, in a terminal and in a log file, on a clock that the tests set."""

from __future__ import annotations

import io
import logging
import shutil
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest
from conftest import Messages
from tqdm import tqdm

from olmo_sparsity.cli.app import set_up_messages
from olmo_sparsity.files import read_json
from olmo_sparsity.measure.parts import missing
from olmo_sparsity.progress import listening, progress_bar, tokens_ran
from olmo_sparsity.tables import part_path, read_parts


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tqdm.std.time", clock)
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # its thread reads another clock
    return clock


def work(clock: Clock, *, steps: int) -> None:
    """Work that takes a second a step."""
    with progress_bar("train", " steps", total=steps) as bar:
        for step in range(steps):
            clock.seconds += 1
            bar.set_postfix(loss=f"{step / 100:.2f}", refresh=False)
            bar.update()


def test_elsewhere_than_in_a_terminal_a_line_is_logged_every_half_minute(clock: Clock, messages: Messages) -> None:
    work(clock, steps=100)
    assert messages == [
        "train: 30%, 30 of 100 steps, 00:30 elapsed, 01:10 left, 1.00 steps/s, loss=0.29",
        "train: 60%, 60 of 100 steps, 01:00 elapsed, 00:40 left, 1.00 steps/s, loss=0.59",
        "train: 90%, 90 of 100 steps, 01:30 elapsed, 00:10 left, 1.00 steps/s, loss=0.89",
        "train: 100%, 100 of 100 steps, 01:40 elapsed, 00:00 left, 1.00 steps/s, loss=0.99",
    ]
    messages.clear()
    with progress_bar("prepare", " documents") as bar:  # of nobody knows how many
        for _ in range(40):
            clock.seconds += 1
            bar.update()
    assert messages == [f"prepare: {n} documents, 00:{n} elapsed, 1.00 documents/s" for n in (30, 40)]


def test_the_bar_of_a_measurement_goes_on_where_it_was(
    clock: Clock, messages: Messages, tiny_tables: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tiny_tables, tmp_path / "copy"))
    tables = {name: next(read_parts(copy, name)) for name in ("windows", "selections")}
    part_path(copy, "windows", part=0).unlink()
    with closing(missing(copy, read_json(copy / "manifest.json"), part_size=25)) as left:
        for _, write in left:
            clock.seconds += 31
            write(tables)
    assert any(line.startswith("influence: 100%, 60 of 60 windows") for line in messages)


def test_short_work_logs_nothing(clock: Clock, messages: Messages) -> None:
    work(clock, steps=29)
    assert messages == []


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("reason", ["quiet", "rank"])
def test_nothing_is_shown_with_quiet_or_in_other_processes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, reason: str, terminal: bool
) -> None:
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", stderr)
    if reason == "rank":
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
    set_up_messages(verbose=False, quiet=reason == "quiet")
    work(clock, steps=100)
    assert stderr.getvalue() == ""
    logging.getLogger("olmo_sparsity.anything").error("out of memory")
    assert stderr.getvalue() == "error: out of memory\n"


def test_tokens_are_told_to_who_listens_and_to_the_one_before_afterwards() -> None:
    heard: list[int] = []
    inside: list[int] = []
    tokens_ran(1)
    with listening(heard.append):
        tokens_ran(5)
        with suppress(KeyboardInterrupt), listening(inside.append):
            tokens_ran(7)
            raise KeyboardInterrupt
        tokens_ran(2)
    tokens_ran(9)
    assert (heard, inside) == ([5, 2], [7])
