"""Values of other types than their keys, which OmegaConf converts without a word, are refused: in files and in overrides."""

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
    ("model.init_std", "'nan'", "nan: must be"),
    ("model.init_std", "true", "true: must be a number"),
    ("training.learning_rate", "-.inf", "-inf: must be"),
    ("training.max_grad_norm", ".inf", "inf: must be"),
    ("data.validation_percent", ".nan", "nan: must be"),
    ("training.steps", "true", "true: must be a number"),
    ("training.threads", "false", "false: must be a number"),
    ("influence.k", "[1, true]", "true: must be a number"),
    ("influence.k", "[1, '???']", "???: this stands for a missing value"),
    ("influence.k", "{a: 1}", ": a mapping of keys to values, where a list was expected"),
    ("influence.data", "true", "true: must be text"),
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


def test_numbers_and_texts_that_yaml_reads_otherwise_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        "name: 2024\nmodel: {init_std: 1, weight_tying: false}\ntraining: {threads: null, learning_rate: 1e-3}\n"
    )
    config = load_config(path)
    assert (config.name, config.model.init_std, config.model.weight_tying) == ("2024", 1.0, False)
    assert (config.training.threads, config.training.learning_rate) == (None, 1e-3)
