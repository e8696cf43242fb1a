"""Values of other types than their keys are refused, in files and in overrides, and none is read as another than was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from olmo_sparsity.config.files import load_config
from olmo_sparsity.errors import UserError

WRONG = [
    ("model.weight_tying", "17", "17: must be true or false"),
    ("model.weight_tying", "1", "1: must be true or false"),
    ("model.weight_tying", "0.0", "0.0: must be true or false"),
    ("context.bos", "2", "2: must be true or false"),
    ("model.init_std", ".nan", "nan: must be"),
    ("model.init_std", ".inf", "inf: must be"),
    ("model.init_std", "'nan'", "'nan': must be a number"),
    ("model.init_std", "true", "true: must be a number"),
    ("training.learning_rate", "-.inf", "-inf: must be"),
    ("training.max_grad_norm", ".inf", "inf: must be"),
    ("data.validation_percent", ".nan", "nan: must be"),
    ("training.steps", "true", "true: must be a whole number"),
    ("training.steps", "1.0", "1.0: must be a whole number"),
    ("training.steps", "'7'", "'7': must be a whole number"),
    ("training.steps", "1:30", "1:30: must be a whole number"),  # 90 in YAML 1.1
    ("training.steps", "010", "010: must be a whole number"),  # 8 in YAML 1.1
    ("training.steps", "0x10", "0x10: must be a whole number"),
    ("training.steps", "2024-01-01", "2024-01-01: must be a whole number"),
    ("training.steps", "!!bool maybe", "maybe: must be a whole number"),
    ("training.steps", "!!int 1:30", "1:30: must be a whole number"),
    ("training.learning_rate", "!!float 1:30", "1:30: must be a number"),
    ("training.steps", "!!timestamp x", "x: must be a whole number"),
    ("training.steps", "!nope 1", "1: must be a whole number"),
    ("training.steps", "9" * 5000, f"{'9' * 60}...: must be a whole number"),
    ("training.steps", "[1]", ": a list, where this must be a whole number"),
    ("training.learning_rate", "1:30.5", "1:30.5: must be a number"),
    ("training.learning_rate", "1e400", "inf: must be positive"),
    ("model.weight_tying", "'true'", "'true': must be true or false"),
    ("training.threads", "false", "false: must be a whole number, or null"),
    ("influence.k", "[1, true]", "true: must be a whole number"),
    ("influence.k", "[1, [2]]", ": a list, where this must be a whole number"),
    ("influence.k", "8", "8: must be a list of whole numbers"),
    ("influence.selectors", "kl", "kl: must be a list of names"),
    ("influence.anchor", "bOs", "bOs: must be one of auto, bos, none"),
    ("influence.k", "[1, '???']", "???: this stands for a missing value"),
    ("influence.k", "{a: 1}", ": a mapping of keys to values, where this must be a list of whole numbers"),
    ("influence.data", "true", "true: must be text (in quotes if need be), or null"),
    ("data.source", "on", "on: must be text"),
    ("data.source", "null", "null: must be text"),
    ("data.source", "false", "false: must be text"),
    ("name", "true", "true: must be text"),
    ("name", "'???'", "???: this stands for a missing value"),
    ("training.steps", "???", "???: this stands for a missing value"),
    ("training.seed", "'???'", "???: this stands for a missing value"),
    ("model.init_std", "???", "???: this stands for a missing value"),
]


@pytest.mark.parametrize(("dotted", "value", "error"), WRONG)
def test_a_wrong_value_is_refused(tmp_path: Path, dotted: str, value: str, error: str) -> None:
    section, _, key = dotted.rpartition(".")
    path = tmp_path / "config.yaml"
    path.write_text(f"{section}:\n  {key}: {value}\n" if section else f"\n{key}: {value}\n")
    with pytest.raises(UserError) as in_a_file:
        load_config(path)
    assert str(in_a_file.value).startswith(str(path))
    said = f"{dotted}{error}" if error.startswith(":") else f"{dotted} = {error}"
    assert said in str(in_a_file.value)
    with pytest.raises(UserError) as in_an_override:
        load_config(None, [f"{dotted}={value}"])
    assert said in str(in_an_override.value)


@pytest.mark.parametrize("value", ["[1", "{a", "'", "a: b: c", '"\\UFFFFFFFF"', "[" * 1000, "*x"])
def test_an_override_that_is_no_yaml_is_one_line(value: str) -> None:
    with pytest.raises(UserError) as error:
        load_config(None, [f"name={value}"])
    assert str(error.value) == f"override {f'name={value}'!r}: the value is not valid YAML; put text in quotes"


@pytest.mark.parametrize(
    ("dotted", "written", "value"),
    [
        ("training.learning_rate", "1e-3", 1e-3),  # text in YAML 1.1
        ("training.learning_rate", "1", 1.0),
        ("training.learning_rate", ".5", 0.5),
        ("training.learning_rate", "5.", 5.0),
        ("training.learning_rate", "+2E-3", 2e-3),
        ("training.learning_rate", "1.5E2", 150.0),
        ("training.steps", "+7", 7),
        ("training.steps", "1_000", 1000),
        ("training.threads", "null", None),
        ("training.threads", "", None),
        ("model.weight_tying", "off", False),
        ("influence.anchor", "none", "none"),
        ("name", "2024", "2024"),
        ("name", "2024-12-31", "2024-12-31"),
        ("name", "1e5", "1e5"),  # a commit may look like a number
        ("name", "007", "007"),
        ("data.source", "1:30", "1:30"),
        ("data.source", "'on'", "on"),
    ],
)
def test_a_value_is_read_as_it_was_written(tmp_path: Path, dotted: str, written: str, value: object) -> None:
    section, _, key = dotted.rpartition(".")
    path = tmp_path / "config.yaml"
    path.write_text(f"{section}:\n  {key}: {written}\n" if section else f"{key}: {written}\n")
    for config in (load_config(path), load_config(None, [f"{dotted}={written}"])):
        found = getattr(getattr(config, section) if section else config, key)
        assert found == value and type(found) is type(value)
