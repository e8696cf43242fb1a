"""Errors that end a command with one line instead of a traceback."""

from __future__ import annotations


class UserError(Exception):
    """A mistake of the user's, told in one line: what, where, and what to do. The command line exits with 2."""


class Interrupted(Exception):
    """The user stopped the work; it was saved and can go on. The command line exits with 130."""
