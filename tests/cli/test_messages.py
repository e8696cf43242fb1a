"""What the commands show on standard error, with and without --quiet and --verbose."""

from __future__ import annotations

import logging
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app, main
from olmo_sparsity.cli.messages import PACKAGE_LOGGER, print_line, set_up_messages

TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"


@pytest.fixture
def train_command(
    tiny_yaml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Run ``olmo-sparsity [OPTIONS] train [BEHIND]``, and return the lines on standard error."""

    def run(*options: str, behind: tuple[str, ...] = ()) -> list[str]:
        arguments = [*options, "train", "--config", str(tiny_yaml), "--run", str(tmp_path / "run"), *behind]
        monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err.splitlines()

    return run


def test_the_messages_of_training(train_command: Callable[..., list[str]]) -> None:
    lines = train_command()
    assert any("trained 12 steps" in line for line in lines)
    assert not any("saved" in line or re.match(TIME, line) for line in lines)


def test_quiet_shows_warnings_only(train_command: Callable[..., list[str]]) -> None:
    assert train_command("--quiet") == []


def test_the_options_may_stand_behind_the_command(train_command: Callable[..., list[str]]) -> None:
    """They count wherever they stand, and ``--quiet`` takes precedence."""
    assert train_command(behind=("--quiet",)) == []
    (line,) = train_command(behind=("-v",))
    assert re.match(rf"{TIME} olmo_sparsity\.training\.loop: .*already trained", line)
    assert train_command("--verbose", behind=("-q",)) == train_command("-q", behind=("-v",)) == []


def test_verbose_shows_details_with_time_and_module(train_command: Callable[..., list[str]], tmp_path: Path) -> None:
    lines = train_command("--verbose")
    assert all(re.match(rf"{TIME} olmo_sparsity\.[a-z_.]+: ", line) for line in lines)
    for detail in (
        r"run: device cpu \(training\.device: auto\), 1 CPU threads, precision fp32 \(training\.precision: fp32\)",
        r"run: batches of 16 rows: 16 rows per pass, passes per step in each process: 1$",
        r"loop: saved .*checkpoints/step4 \(step 4\) in \d+\.\d\d s",
        r"checkpoint: .*step4: deleted",
        r"loop: .*trained 12 steps",
    ):
        assert any(re.search(detail, line) for line in lines), detail
    run = tmp_path / "run"
    shutil.rmtree(run / "checkpoints" / "step12")
    lines = train_command("-v")
    assert any(
        re.search(r"run: loaded .*checkpoints/step8: 1,024 tokens and \d+\.\d s of training", line) for line in lines
    )


def test_messages_are_not_doubled(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        set_up_messages()
    logging.getLogger("olmo_sparsity.model").info("once")
    assert capsys.readouterr().err == "once\n"


def test_a_handler_of_somebody_elses_stays() -> None:
    own = logging.NullHandler()
    PACKAGE_LOGGER.addHandler(own)
    set_up_messages()
    assert own in PACKAGE_LOGGER.handlers


@pytest.mark.parametrize("options", [{}, {"quiet": True}, {"verbose": True}])
def test_of_several_processes_the_leader_alone_shows_more_than_errors(
    options: dict[str, bool], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    levels = ("debug", "info", "warning", "error", "critical")
    for rank in (0, 1):
        for name, value in (("RANK", rank), ("WORLD_SIZE", 2)):
            monkeypatch.setenv(name, str(value))
        set_up_messages(**options)
        for level in levels:
            getattr(logging.getLogger("olmo_sparsity.model"), level)("said")
        leaders = {"quiet": levels[2:], "verbose": levels}.get(next(iter(options), ""), levels[1:])
        shown = leaders if rank == 0 else levels[3:]
        marks = ["" if level in ("debug", "info") else f"{level}: " for level in shown]
        assert [line[line.find(f"{mark}said") :] for mark, line in zip(
            marks, capsys.readouterr().err.splitlines(), strict=True
        )] == [f"{mark}said" for mark in marks]  # fmt: skip


def test_control_characters_reach_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither in messages, whose lines stay lines, nor in results, which are one line each."""
    set_up_messages()
    logging.getLogger("olmo_sparsity.model").info("red \x1b[31m\rand \u202e\nnext")
    print_line("a\x1b[2J\nb")
    print_line("c\u202e", to_stderr=True)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("a\ufffd[2J\u21b5b\n", "red \ufffd[31m\u21b5and \ufffd\nnext\nc\ufffd\n")


@pytest.mark.parametrize("command", [(), ("train",), ("config",), ("export",), ("export", "hf")])
def test_h_is_help(command: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(app, [*command, option]) for option in ("-h", "--help"))
    assert short.exit_code == long.exit_code == 0
    assert short.output == long.output
    assert "Usage:" in short.output


@pytest.mark.parametrize("command", [(), ("influence",), ("export", "hf")])
def test_help_shows_no_value_behind_a_flag(command: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*command, "--help"]).output
    assert "--verbose" in shown and "--help" in shown
    assert "bool" not in shown


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_the_commands(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script that --show-completion prints asks the program itself for words."""
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: (shell, f"/bin/{shell}"))
    script = CliRunner().invoke(app, ["--show-completion"], prog_name="olmo-sparsity")
    assert script.exit_code == 0
    assert "olmo-sparsity" in script.output and "_OLMO_SPARSITY_COMPLETE" in script.output
    assert {"bash": "complete -o", "zsh": "compdef", "fish": "--command"}[shell] in script.output
    monkeypatch.setenv("_OLMO_SPARSITY_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("COMP_WORDS", "olmo-sparsity su")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "olmo-sparsity su")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    words = CliRunner().invoke(app, [], prog_name="olmo-sparsity")
    assert "summary" in words.output and "train" not in words.output
