"""What is used where nothing is given, of every public function and command: what the documentation promises."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from olmo_sparsity import api
from olmo_sparsity.cli.app import app

# Of each function what is not None where it is left out; what is None is taken from the configuration, or is not known.
FUNCTIONS: dict[str, dict[str, Any]] = {
    "explore": {"source": "text"},
    "figure4": {"selector": "kl"},
    "losses": {},
    "measure": {},
    "open_model": {"overrides": ()},
    "read_results": {},
    "scores": {"selectors": ("kl",)},
    "window_at": {"source": "text"},
    "windows_from_table": {},
    "windows_from_texts": {"num_windows": 100, "source": "texts"},
    "windows_from_tokens": {"source": "tokens"},
    "selector": {},
    "Results.save": {"overwrite": False},
}
COMMANDS: dict[str, dict[str, Any]] = {
    "hypothesis": {"selector": "kl"},
    "list": {"folder": Path("runs")},
    "show": {"context": "real"},
}


def defaults_of(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.default for one in parameters if one.default not in (one.empty, None)}


def commands_in(group: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for part, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_in(command, f"{name}{part} ")
        else:
            yield f"{name}{part}", command


def test_what_a_function_does_where_nothing_is_said() -> None:
    public = {name for name, function in vars(api).items() if inspect.isfunction(function)}
    assert public == {name for name in FUNCTIONS if name[0].islower()}
    found = {name: api.Results.save if name == "Results.save" else getattr(api, name) for name in FUNCTIONS}
    assert {name: defaults_of(function) for name, function in found.items()} == FUNCTIONS


def test_what_a_command_does_where_nothing_is_said() -> None:
    """No switch is on, and nothing is overwritten."""
    found: dict[str, dict[str, Any]] = {}
    for name, command in commands_in(get_command(app)):
        defaults = {option.name: getattr(option.default, "value", option.default) for option in command.params}
        switches = {option.name for option in command.params if getattr(option, "is_flag", False)}
        assert switches == {option for option, default in defaults.items() if default is False}, name
        found[name] = {option: of for option, of in defaults.items() if of is not None and of is not False}
    assert {name: defaults for name, defaults in found.items() if defaults} == COMMANDS
    assert set(found) > {"train", "influence", "synth eval", "export hf"}
