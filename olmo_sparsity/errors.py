"""Errors that end a command with one line instead of a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A mistake that the user can correct.

    The message is one line that says where the mistake is, what is wrong and how to correct it. The command line prints it
    and exits with code 2.
    """


class Interrupted(Exception):
    """The user stopped the command after its work was saved; running it again continues. Exit code 130."""
