"""A flag that a key is declared with stands for the key, in the commands that the declaration names."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.cli.flags import Keys, with_flags
from olmo_sparsity.config import Config, with_keys
from olmo_sparsity.records.selectors import ALL_SELECTORS


def given(command: str, line: str) -> Keys:
    """Return the keys that a command gets from a command line; of sections without any, none."""
    found: Keys = {}

    def probe(first: str = "a", *, keys: Keys, last: str = "b") -> None:
        assert (first, last) == ("a", "b")
        found.update(keys)

    program = typer.Typer()
    program.command()(with_flags(command, probe))
    assert CliRunner().invoke(program, shlex.split(line), catch_exceptions=False).exit_code == 0
    return {section: values for section, values in found.items() if values}


@pytest.mark.parametrize(
    ("command", "line", "keys"),
    [
        ("influence", "", {}),
        ("influence", "--k 6 --seed 0", {"influence": {"k": [1, 2, 4, 6], "k_grid": None, "seed": 0}}),
        ("influence", "--selector kl --selector random --selector kl", {"influence": {"selectors": ["kl", "random"]}}),
        ("influence", "--selector all", {"influence": {"selectors": list(ALL_SELECTORS)}}),
        ("influence", "--screen 9", {"influence": {"screen": 9}}),
        ("influence", "--screen patching:9", {"influence": {"screen": 9, "screen_by": "patching"}}),
        ("influence", "--save-candidates --path plain", {"influence": {"save_candidates": True, "path": "plain"}}),
        (
            "influence",
            "--train-len 2048 --rope-scaling yarn:2.5",
            {"pretrained": {"train_len": 2048, "rope_scaling": "yarn", "rope_factor": 2.5}},
        ),
        ("context-curve", "--rope-scaling none", {"pretrained": {"rope_scaling": "none", "rope_factor": None}}),
        ("explore", "--unit block:4 --anchor none", {"influence": {"unit": "block:4", "anchor": "none"}}),
        ("explore", "--unit word --positions compact", {"influence": {"unit": "word", "positions": "compact"}}),
        (
            "context-curve",
            "--num-windows 5 --max-visible 7 --data c4",
            {"influence": {"num_windows": 5, "data": "c4"}, "context_curve": {"max_visible": 7}},
        ),
    ],
)
def test_flags_give_the_values_of_their_keys(command: str, line: str, keys: Keys) -> None:
    assert given(command, line) == keys
    changed = with_keys(Config(), keys)
    for section, values in keys.items():
        assert values.items() <= vars(getattr(changed, section)).items()


def declared() -> list[Any]:
    sections = [getattr(Config(), field.name) for field in dataclasses.fields(Config) if field.name != "name"]
    fields = [field for section in sections for field in dataclasses.fields(section)]
    return [(command, field) for field in fields if (flag := field.metadata["flag"]) for command in flag.commands]


@pytest.mark.parametrize(
    ("command", "field"), declared(), ids=lambda value: value if isinstance(value, str) else value.name
)
def test_commands_have_the_flags_that_keys_declare(command: str, field: dataclasses.Field[Any]) -> None:
    flag = field.metadata["flag"]
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "2000", "TERMINAL_WIDTH": "2000"}).output
    (line,) = (line for line in shown.splitlines() if f"--{flag.name or field.name.replace('_', '-')} " in line[:40])
    assert (flag.help or field.metadata["help"]) in " ".join(line.split())
