"""Options of commands that measure stand for keys of ``influence``."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

from olmo_sparsity.cli import exploring, measuring
from olmo_sparsity.cli.app import app
from olmo_sparsity.config import Config, with_keys
from olmo_sparsity.records.selectors import ALL_SELECTORS


class Resolved(Exception):
    """Ends a command where its options become a configuration."""


@pytest.mark.parametrize(
    ("line", "keys"),
    [
        ("influence", {}),
        ("influence --k 6 --seed 0", {"k": [1, 2, 4, 6], "k_grid": None, "seed": 0}),
        ("influence --k geometric --unit word", {"k_grid": "geometric", "unit": "word"}),
        ("influence --selector kl --selector random --selector kl", {"selectors": ["kl", "random"]}),
        ("influence --selector all", {"selectors": list(ALL_SELECTORS)}),
        ("influence --precision bf16 --visibility contextual", {"precision": "bf16", "visibility": "contextual"}),
        (
            "context-curve --num-windows 5 --data c4 --local-len 3 --visibility hidden",
            {"num_windows": 5, "data": "c4", "local_len": 3, "visibility": "hidden"},
        ),
        ("influence --num-windows 7 --data c4", {"num_windows": 7, "data": "c4"}),
        ("influence --local-len 3 --full-len 9", {"local_len": 3, "full_len": 9}),
        (
            "explore --text a.txt --unit block:4 --local-len 3 --full-len 9 --visibility contextual",
            {"unit": "block:4", "local_len": 3, "full_len": 9, "visibility": "contextual"},
        ),
        ("context-curve --full-len 99", {"full_len": 99}),
    ],
)
def test_options_give_the_values_of_their_keys(
    line: str, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, dict[str, Any]]] = []

    def resolve(*_: Any, keys: dict[str, dict[str, Any]], **__: Any) -> None:
        found.append(keys)
        raise Resolved

    for module in (measuring, exploring):
        monkeypatch.setattr(module, "resolve", resolve)
    assert isinstance(CliRunner().invoke(app, shlex.split(line)).exception, Resolved)
    assert found == [{"influence": keys}]
    changed = with_keys(Config(), found[0])
    assert keys.items() <= vars(changed.influence).items()
