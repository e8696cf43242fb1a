"""Errors that end a command with one line instead of a traceback, and the characters that such a line may hold."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

MARKS = {" ": " ", "\n": "\u21b5", "\r": "\u21b5", "\t": "\u2192", "\u2028": "\u21b5", "\u2029": "\u21b5"}
JOINERS = "\u200c\u200d"  # zero-width; Persian, Indic scripts and emoji are written with them


class UserError(Exception):
    """A mistake that the user can correct.

    The message is one line that says where the mistake is, what is wrong and how to correct it. The command line prints it
    and exits with code 2.
    """


class Interrupted(Exception):
    """The user stopped the command after its work was saved; running it again continues. Exit code 130."""


def usage_line(error: Any, *, program: str, advice: str = "") -> str:
    """Return one line about a mistake in the arguments, with the command that it was made in.

    Args:
        error: Typer's, which this module does not import.
        program: the name of the program, which the line does not begin with.
        advice: what to do, besides reading the help.
    """
    message = " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ")
    command = error.ctx.command_path if error.ctx is not None else program
    words = command.removeprefix(program).strip()
    see = " See" if message.endswith("?") else "; see"
    return f"{words + ': ' if words else ''}{message[:1].lower()}{message[1:]}{advice}{see} {command} --help"


def only_one(option: str, given: Optional[Sequence[Path]], *, advice: str) -> Optional[Path]:
    """Return the folder that an option names; None: it was not given. Of an option that is no list the last would count alone.

    Raises:
        UserError: it was given several times.
    """
    if given and len(given) > 1:
        raise UserError(f"{option} {f' {option} '.join(map(str, given))}: {advice}")
    return given[0] if given else None


def printable(text: str) -> str:
    """Return a text on one line that is safe to show anywhere.

    Line breaks and tabs become arrows; other control characters, among them those that change the direction of writing,
    and halves of surrogate pairs become U+FFFD. Zero-width joiners and non-joiners stay.
    """
    return "".join(MARKS.get(c, c if c in JOINERS or unicodedata.category(c)[0] != "C" else "\ufffd") for c in text)


def printable_lines(text: str) -> str:
    """Return a text whose lines are each ``printable``."""
    return "\n".join(map(printable, text.split("\n")))
