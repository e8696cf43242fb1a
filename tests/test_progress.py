"""Progress of long work, in a terminal and in a log file, on a clock that the tests set."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from conftest import Messages
from tqdm import tqdm

from olmo_sparsity.cli.messages import set_up_messages
from olmo_sparsity.config import Config
from olmo_sparsity.progress import count_slow_start, listening, progress_bar, stages, tokens_ran
from olmo_sparsity.text import scheduling
from olmo_sparsity.training.loop import train


class Clock:
    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("tqdm.std.time", clock)
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # its thread reads another clock
    return clock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(written: str) -> list[str]:
    """Return the lines that a terminal shows, with carriage returns and moves to the line above."""
    lines, row, column = [""], 0, 0
    text = written.replace("\x1b[A", "\v")
    for character in text:
        if character == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif character == "\r":
            column = 0
        elif character == "\v":
            row -= 1
        else:
            lines[row] = lines[row][:column].ljust(column) + character + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]


def work(clock: Clock, *, steps: int, total: int | None, seconds_per_step: float = 1.0) -> None:
    with progress_bar("train", " steps", total=total) as bar:
        for step in range(steps):
            clock.seconds += seconds_per_step
            bar.set_postfix(loss=f"{step / 100:.2f}", refresh=False)
            bar.update()


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (90, "train: 40%| bar | 40/100 [00:40<01:00, 1.00 steps/s, loss=6.916, tokens/s=3,586]"),
        (75, "train: 40%| bar | 40/100 [00:40<01:00, 1.00 steps/s, loss=6.916]"),
        (60, "train: 40%| bar | 40/100 [00:40<01:00, 1.00 steps/s]"),
        (45, "train: 40%| bar | 40/100 [00:40<01:00]"),
    ],
)
def test_a_bar_in_a_terminal_cuts_no_number(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, columns: int, shown: str
) -> None:
    """What does not fit is left out as a whole, whatever the width of the terminal."""
    monkeypatch.setattr(sys, "stderr", Terminal())
    set_up_messages()
    with progress_bar("train", " steps", total=100, ncols=columns) as bar:
        clock.seconds += 40
        bar.set_postfix({"loss": "6.916", "tokens/s": "3,586"}, refresh=False)
        bar.update(40)
        written = str(bar)
        assert len(written) <= columns
        assert re.sub("[|].*[|]", "| bar |", written).replace("  ", " ") == shown


def test_elsewhere_than_in_a_terminal_a_line_is_logged_every_half_minute(clock: Clock, messages: Messages) -> None:
    work(clock, steps=100, total=100)
    assert messages.lines == [
        "train: 30%, 30 of 100 steps, 00:30 elapsed, 01:10 left, 1.00 steps/s, loss=0.29",
        "train: 60%, 60 of 100 steps, 01:00 elapsed, 00:40 left, 1.00 steps/s, loss=0.59",
        "train: 90%, 90 of 100 steps, 01:30 elapsed, 00:10 left, 1.00 steps/s, loss=0.89",
        "train: 100%, 100 of 100 steps, 01:40 elapsed, 00:00 left, 1.00 steps/s, loss=0.99",
    ]


def test_the_last_state_is_logged_once(clock: Clock, messages: Messages) -> None:
    """Also where its line is due at the end of the work."""
    work(clock, steps=60, total=60)
    assert [line.split(", ")[1] for line in messages.lines] == ["30 of 60 steps", "60 of 60 steps"]


def test_a_slow_start_is_left_out_of_the_time_that_is_left(clock: Clock, messages: Messages) -> None:
    """The first step compiles for 10 minutes, and the others take a second each."""
    with progress_bar("train", " steps", total=101) as bar:
        clock.seconds += 600
        count_slow_start(bar)
        for _ in range(100):
            clock.seconds += 1
            bar.update()
    assert messages.lines[0] == "train: 31%, 31 of 101 steps, 10:30 elapsed, 01:10 left, 1.00 steps/s"
    assert all("00:10 left" in line for line in messages.lines if "91 of" in line)
    assert messages.lines[-1].startswith("train: 100%, 101 of 101 steps, 11:40 elapsed, 00:00 left")


def test_a_terminal_names_the_stage_of_the_work(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    set_up_messages()
    with stages("reading", "drawing") as begin_next:
        assert "reading:   0%" in screen(terminal.getvalue())[0]
        clock.seconds += 5
        begin_next()
        assert screen(terminal.getvalue())[0].startswith("drawing:  50%")
    assert screen(terminal.getvalue())[0].startswith("drawing: 100%")


def test_stages_of_short_work_log_nothing(clock: Clock, messages: Messages) -> None:
    with stages("reading", "drawing") as begin_next:
        clock.seconds += 5
        begin_next()
    assert messages.lines == []


def test_long_stages_are_logged_with_one_colon(clock: Clock, messages: Messages) -> None:
    with stages("reading", "drawing") as begin_next:
        clock.seconds += 35
        begin_next()
        clock.seconds += 40
    assert [line.partition("%")[0] for line in messages.lines] == ["drawing: 50", "drawing: 100"]


def test_without_a_total_it_counts(clock: Clock, messages: Messages) -> None:
    work(clock, steps=3, total=None, seconds_per_step=20.0)
    assert messages.lines[0] == "train: 2 steps, 00:40 elapsed, 0.05 steps/s, loss=0.01"


def test_short_work_logs_nothing(clock: Clock, messages: Messages, tiny_config: Config, tmp_path: Path) -> None:
    work(clock, steps=29, total=29)
    assert messages.lines == []
    train(tiny_config, tmp_path / "run")  # whose bar gets a loss at every step
    assert not [line for line in messages if line.startswith("train:")]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("reason", ["quiet", "rank"])
def test_nothing_is_shown_with_quiet_or_in_other_processes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, reason: str, terminal: bool
) -> None:
    stderr = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    if reason == "rank":
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
    set_up_messages(quiet=reason == "quiet")
    work(clock, steps=100, total=100)
    assert stderr.getvalue() == ""
    logging.getLogger("olmo_sparsity.anything").error("out of memory")
    assert stderr.getvalue() == "error: out of memory\n"


def test_the_leader_of_several_processes_shows_progress(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    set_up_messages()
    work(clock, steps=31, total=100)
    assert stderr.getvalue().startswith("train: 30%, 30 of 100 steps")


def test_in_a_terminal_messages_stand_above_the_bar(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    set_up_messages()
    logger = logging.getLogger("olmo_sparsity.training")
    with progress_bar("train", " steps", total=4, ncols=60) as bar:
        for step in range(4):
            clock.seconds += 1
            bar.update()
            logger.info(f"message {step}")
            *above, shown = screen(terminal.getvalue())
            assert above == [f"message {number}" for number in range(step + 1)]
            assert shown.startswith(f"train: {25 * (step + 1):3d}%|") and f"{step + 1}/4" in shown
    lines = screen(terminal.getvalue())
    assert [line for line in lines if "message" in line] == [f"message {step}" for step in range(4)]
    assert len([line for line in lines if "train:" in line]) == 1


class FollowingBar:
    """Of the bar of ``prepare``, what its thread calls."""

    disable = False

    def __init__(self) -> None:
        self.n, self.words, self.updates = 0, "", threading.Semaphore(0)

    def set_postfix_str(self, words: str, refresh: bool) -> None:
        self.words = words

    def update(self, number: int) -> None:
        self.n += number
        self.updates.release()


def test_the_bar_of_prepare_shows_the_sums_over_all_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is updated, the documents are those that are written."""
    bar = FollowingBar()
    monkeypatch.setattr(scheduling, "progress_bar", lambda *_, **__: nullcontext(bar))
    monkeypatch.setattr(scheduling, "PROGRESS_SECONDS", 1e-4)
    progress = [0] * 6
    with scheduling._progress_bar(progress):
        for documents in (4, 7):
            progress[:] = [documents, 1_200_000_000, 30_000, 3, 1_040_000, 2_010_000]
            while bar.updates.acquire(blocking=False):  # those of before
                pass
            assert all(bar.updates.acquire(timeout=60) for _ in range(3))
            assert (bar.n, bar.words) == (documents + 3, "1,201.0M tokens, 2.0 MB")


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
