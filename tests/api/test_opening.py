"""What ``open_model`` hands on, and how windows of one text are measured; nothing is measured here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from olmo_sparsity import api
from olmo_sparsity.api import opening
from olmo_sparsity.api.opening import settings_of_text
from olmo_sparsity.config import Config
from olmo_sparsity.config.files import load_config, pretrained_config_path
from olmo_sparsity.errors import UserError

CHANGES = {
    "local_len": 6,
    "full_len": 18,
    "visibility": "contextual",
    "anchor": "none",
    "precision": "fp32",
    "device": "cuda:5",
}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, Path]]:
    """The configurations and folders that would be opened."""
    found: list[tuple[Config, Path]] = []
    monkeypatch.setattr(opening, "open_configured", lambda config, run: found.append((config, run)))
    return found


@pytest.mark.parametrize("name", [None, *CHANGES])
def test_each_argument_is_its_key_beside_overrides_of_others(
    name: str | None, tiny_run: Path, opened: list[tuple[Config, Path]]
) -> None:
    others = {
        "local_len": "influence.local_len=5",
        "full_len": "influence.full_len=19",
        "device": "training.device=cpu",
    }
    overrides = ["influence.path=masked", *(override for key, override in others.items() if key != name)]
    before = load_config(tiny_run / "config.yaml", overrides)
    given = {} if name is None else {name: CHANGES[name]}
    api.open_model(tiny_run, overrides=overrides, **given)  # type: ignore[arg-type]
    ((config, run),) = opened
    training = dataclasses.replace(before.training, **({"device": "cuda:5"} if name == "device" else {}))
    influence = dataclasses.replace(before.influence, **({} if name in (None, "device") else given))
    assert (config, run) == (dataclasses.replace(before, training=training, influence=influence), tiny_run)
    assert (before.influence.path, before.influence.local_len) == ("masked", None if name == "local_len" else 5)


@pytest.mark.parametrize("name", CHANGES)
def test_what_an_argument_gives_is_no_override(name: str, tiny_run: Path, opened: list[tuple[Config, Path]]) -> None:
    """One of the two would have no effect."""
    key = f"training.{name}" if name == "device" else f"influence.{name}"
    overrides = ["influence.path=masked", f"{key}={CHANGES[name]}"]
    said = rf"^overrides\[1\] = {key}={CHANGES[name]}: the argument {name} gives {key}; leave it out of overrides$"
    with pytest.raises(UserError, match=said):
        api.open_model(tiny_run, overrides=overrides, **{name: CHANGES[name]})  # type: ignore[arg-type]
    assert not opened


def test_the_model_is_no_override(tiny_run: Path, opened: list[tuple[Config, Path]]) -> None:
    for model in (tiny_run, "org/name"):
        for name in ("model", "revision"):
            with pytest.raises(UserError, match=rf": give it by the argument {name}, not by overrides$"):
                api.open_model(model, overrides=[f"pretrained.{name}=other"])
    assert not opened


@pytest.mark.parametrize(
    "override",
    ["context.train_len=12", "model.d_model=64", "context.local_len=4", "data.source=c4", "pose.num_chunks=2"],
)
def test_a_run_is_measured_with_what_it_was_trained_with(
    override: str, tiny_run: Path, opened: list[tuple[Config, Path]]
) -> None:
    """Another value would change no weights, only what is said of them. Keys that training does not depend on may change."""
    with pytest.raises(
        UserError, match=rf": this run was made with {override.partition('=')[0]} = .*; leave it out of overrides"
    ):
        api.open_model(tiny_run, overrides=[override])
    assert not opened
    api.open_model(tiny_run, overrides=["training.threads=1", "data.on_error=skip", "influence.local_len=4"])
    assert len(opened) == 1


def test_a_pretrained_model_may_be_measured_at_any_length(opened: list[tuple[Config, Path]]) -> None:
    """The lengths of ``pretrained.yaml`` are no lengths of its training."""
    api.open_model("org/name", revision="v1", full_len=200, overrides=["influence.min_preceding=300"])
    ((config, run),) = opened
    lengths = config.measured_lengths
    assert (lengths.full_len, lengths.max_position, config.influence.min_preceding) == (200, None, 300)
    assert (config.pretrained.model, config.pretrained.revision, run) == ("org/name", "v1", Path("runs/org-name-v1"))


def test_a_path_may_begin_in_the_home_folder(
    tiny_run: Path, opened: list[tuple[Config, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tiny_run.parent))
    api.open_model(f"~/{tiny_run.name}")
    assert opened == [(load_config(tiny_run / "config.yaml"), tiny_run)]


def test_a_name_is_looked_for_on_the_hub(
    opened: list[tuple[Config, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the configuration for models from elsewhere; its results have a folder of their own."""
    monkeypatch.chdir(tmp_path)
    shipped = load_config(pretrained_config_path(), ["influence.seed=4"])
    for name, revision, folder in (("org/name", "v1", "org-name-v1"), ("gpt2", None, "gpt2")):
        opened.clear()
        api.open_model(name, revision=revision, overrides=["influence.seed=4"])
        ((config, run),) = opened
        assert (config.pretrained.model, config.pretrained.revision, run) == (name, revision, Path("runs") / folder)
        assert dataclasses.replace(config, pretrained=shipped.pretrained) == shipped
    (tmp_path / "here").mkdir()  # a folder that is no run is named as it was given
    api.open_model("here")
    assert opened[-1][0].pretrained.model == "here"


def test_a_model_says_what_it_is(tiny_run: Path) -> None:
    model = api.open_model(tiny_run, local_len=7)
    number = f"{sum(one.numel() for one in model.evaluator.model.parameters()) / 1e6:.3g}"  # type: ignore[attr-defined]
    assert repr(model) == (
        f"Model('tiny', {number}M parameters, fp32 on cpu, local_len 7, full_len 20, hidden, no anchor)"
    )
    assert 0.01 < float(number) < 0.1
    gridded = api.open_model(tiny_run, overrides=["influence.k_grid=geometric", "influence.unit=block:2"])
    assert (gridded.config.influence.k, gridded.config.influence.k_grid) == ([1, 2, 4, 6], None)


def test_windows_of_one_text_are_measured_exactly_with_the_control_beside(tiny_run: Path) -> None:
    """All else is as the configuration says."""
    keys = {"seed": 7, "k": "[1, 2, 5]", "lasso_masks": 77}
    model = api.open_model(tiny_run, overrides=[f"influence.{key}={value}" for key, value in keys.items()])
    plain: dict[str, Any] = {"k": None, "seed": None, "unit": None, "resampled_draws": 6}
    expected = dataclasses.replace(
        model.config.influence,
        selectors=["greedy", "kl", "random"],
        k=[1, 2, 5],
        resampled_draws=6,
    )
    assert settings_of_text(model, ["greedy", "kl", "greedy"], **plain) == expected
    assert settings_of_text(model, ["random", "kl"], **plain).selectors == ["random", "kl"]
    named = settings_of_text(model, ["greedy", "kl"], k=(2, 4), seed=0, unit="word", resampled_draws=0)
    assert named == dataclasses.replace(expected, k=[2, 4], seed=0, unit="word", resampled_draws=0)
    of_blocks = api.open_model(tiny_run, overrides=["influence.unit=block:5", "influence.k=[1, 2, 3]"])
    found = settings_of_text(of_blocks, ["kl"], **plain)
    assert (found.unit, found.k) == ("block:5", [1, 2])  # of three blocks


@pytest.mark.parametrize(
    ("configured", "unit", "expected"),
    [
        ("[1, 2, 12]", None, [1, 2]),
        ("[3, 11]", None, [3, 11]),
        ("[12]", None, [1]),
        ("[1, 2, 3]", "block:5", [1, 2]),  # three blocks, the last of two tokens
        ("[1, 2, 3]", "block:3", [1, 2, 3]),  # four
        ("[3]", "block:6", [1]),
        ("[8, 12]", "word", [8]),
    ],
)
def test_by_default_some_long_range_tokens_are_left_out(
    configured: str, unit: str | None, expected: list[int], tiny_run: Path
) -> None:
    model = api.open_model(tiny_run, overrides=[f"influence.k={configured}"])
    assert settings_of_text(model, ["kl"], k=None, seed=None, unit=unit, resampled_draws=0).k == expected
