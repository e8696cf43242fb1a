"""The steps that commands share: what trains first and with which configuration, and which process prints."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Messages

from olmo_sparsity.cli import steps
from olmo_sparsity.cli.app import app
from olmo_sparsity.cli.options import Named, resolve
from olmo_sparsity.cli.steps import check_before_torch, finish_share, measure_first, needs_training, train_first
from olmo_sparsity.config import Config, PretrainedConfig
from olmo_sparsity.config.files import default_config_path, load_config
from olmo_sparsity.errors import Interrupted, UserError
from olmo_sparsity.measure.work import WHOLE, Share


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, Path]]:
    """What would be trained."""
    found: list[tuple[Config, Path]] = []
    monkeypatch.setattr("olmo_sparsity.training.loop.train", lambda config, run: found.append((config, run)))
    return found


@pytest.mark.parametrize(
    ("missing", "share", "prints", "said"),
    [
        (0, WHOLE, True, ""),
        (0, Share(1, 3), True, ""),
        (0, Share(1, 3, False), False, "tables: share 1 of 3 is done, and with it all parts\n"),
        (4, Share(1, 3, False), False, "tables: share 1 of 3 is done; 4 parts are left to the others\n"),
        (1, Share(0, 3), False, "tables: share 0 of 3 is done; 1 part is left to the others\n"),
        (4, Share(0, 3), False, "tables: share 0 of 3 is done; 4 parts are left to the others\n"),
    ],
)
def test_the_process_that_ends_a_measurement_prints_unless_another_of_its_terminal_does(
    missing: int, share: Share, prints: bool, said: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("olmo_sparsity.tables.parts.finalize", lambda tables: missing)
    assert finish_share(Path("tables"), share) == prints
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", said)


def test_what_the_options_say_of_a_measurement_is_no_part_of_the_run(
    tiny_yaml: Path, trained: list[tuple[Config, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither flags nor overrides nor a selector of one's own; what is trained has its overrides."""
    monkeypatch.chdir(tmp_path)
    measured: list[Config] = []
    for module, name in (
        ("influence", "measure"),
        ("context_curve", "measure_context_curve"),
    ):
        monkeypatch.setattr(
            f"olmo_sparsity.measure.{module}.{name}", lambda config, *_, **__: measured.append(config) or Path("tables")
        )
    monkeypatch.setattr("olmo_sparsity.cli.measuring.finish_share", lambda *_: False)
    Path("own.py").write_text("def mine(window): ...")
    of_file = load_config(tiny_yaml)
    steps = dataclasses.replace(of_file.training, steps=7)
    for line in (
        "influence --k 1,5 --num-windows 9 --selector own.py:mine influence.seed=3",
        "context-curve context_curve.max_visible=15 --local-len 4 influence.precision=fp32",
    ):
        options = f"--config {tiny_yaml} --run runs/new --train training.steps=7"
        monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *line.split(), *options.split()])
        app(standalone_mode=False)
        assert trained[-1] == (dataclasses.replace(of_file, training=steps), Path("runs/new"))
    influence, curve = measured
    assert (influence.influence.k, influence.influence.num_windows, influence.influence.seed) == ([1, 5], 9, 3)
    assert influence.influence.selectors == ["mine"]
    assert (curve.context_curve.max_visible, curve.influence.local_len) == (15, 4)


def test_a_run_that_began_keeps_what_its_own_configuration_says_of_measurements(
    tiny_yaml: Path, trained: list[tuple[Config, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where its lengths do not fit that, it is not trained by a measurement."""
    monkeypatch.chdir(tmp_path)
    own = Path("runs/new/config.yaml")
    own.parent.mkdir(parents=True)
    own.write_text(tiny_yaml.read_text().replace("num_windows: 60", "num_windows: 61, full_len: 18"))
    named = resolve(None, own.parent, overrides=["influence.num_windows=5"])
    assert (named.file, named.config.influence.num_windows) == (own, 5)
    assert resolve(tiny_yaml, own.parent, overrides=None).file == tiny_yaml
    assert resolve(None, Path("runs"), overrides=None).file == default_config_path()
    assert resolve(None, None, overrides=None).file == default_config_path()
    train_first(named._replace(folder=Path("runs/other")), share=WHOLE, asked=True)
    assert trained[-1][0].influence.num_windows == 61
    short = resolve(None, own.parent, overrides=["context.full_len=16", "influence.full_len=16"])
    with pytest.raises(
        UserError,
        match=r"^runs/new/config\.yaml: this does not fit the run without the options of the measurement .*full_len = 18: "
        r".* train the run first, with `olmo-sparsity train`$",
    ):
        train_first(short._replace(folder=Path("runs/other")), share=WHOLE, asked=True)
    assert len(trained) == 1


def test_which_runs_are_trained_without_being_asked(
    tiny_config: Config,
    tiny_yaml: Path,
    trained: list[tuple[Config, Path]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one that the configuration names, by whatever path; another one only if asked, and no pretrained model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "link").symlink_to("runs")
    own = [Path("runs/tiny"), tmp_path / "runs" / "tiny", Path("runs/x/../tiny"), Path("link/tiny")]
    for run in own:
        check_before_torch(tiny_config, run, share=WHOLE, asked=False)
        train_first(Named(tiny_config, run, tiny_yaml), share=WHOLE, asked=False)
    assert [run for _, run in trained] == own
    for run in (Path("runs/tiny2"), Path("tiny"), Path("runs/tiny/runs/tiny")):
        for refuses in (
            lambda run=run: check_before_torch(tiny_config, run, share=WHOLE, asked=False),
            lambda run=run: train_first(Named(tiny_config, run, tiny_yaml), share=WHOLE, asked=False),
        ):
            with pytest.raises(UserError, match=f"{run}: this run is not trained; train it with .* --train"):
                refuses()
        check_before_torch(tiny_config, run, share=WHOLE, asked=True)
        train_first(Named(tiny_config, run, tiny_yaml), share=WHOLE, asked=True)
    assert len(trained) == 7
    trained.clear()
    (tmp_path / "model").mkdir()
    pretrained = dataclasses.replace(tiny_config, pretrained=PretrainedConfig(str(tmp_path / "model")))
    check_before_torch(pretrained, Path("anywhere"), share=WHOLE, asked=False)
    of_model = Named(pretrained, Path("anywhere"), tiny_yaml)
    train_first(of_model, share=WHOLE, asked=False, kind="influence", out=Path("model"))
    for refuses in (
        lambda: check_before_torch(pretrained, Path("anywhere"), share=WHOLE, asked=True),
        lambda: train_first(of_model, share=WHOLE, asked=True),
    ):
        with pytest.raises(UserError, match=r"--train: .*model is a pretrained model, which is never trained"):
            refuses()
    tiny = Named(tiny_config, Path("runs/tiny"), tiny_yaml)
    with pytest.raises(UserError, match="run `olmo-sparsity train` first, alone"):
        train_first(tiny, share=Share(0, 2), asked=True)
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "draft.md").write_text("mine")
    with pytest.raises(UserError, match="papers: this folder exists and is no influence folder"):
        train_first(tiny, share=WHOLE, asked=True, kind="influence", out=Path("papers"))
    missing = dataclasses.replace(tiny_config.influence, data=str(tmp_path / "no-text.jsonl"))
    with pytest.raises(UserError, match=r"no-text\.jsonl"):
        train_first(tiny._replace(config=dataclasses.replace(tiny_config, influence=missing)), share=WHOLE, asked=True)
    assert not trained


def test_a_measurement_that_figures_need_is_whole_and_can_be_interrupted(
    tiny_config: Config,
    tiny_yaml: Path,
    tiny_run: Path,
    monkeypatch: pytest.MonkeyPatch,
    messages: Messages,
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(steps, "train_first", lambda *given, **named: calls.append((*given, named)))
    monkeypatch.setattr("olmo_sparsity.measure.influence.measure", lambda *given: calls.append(given))
    named = Named(tiny_config, tiny_run, tiny_yaml)
    measure_first(named, asked=True)
    assert calls == [(named, {"share": WHOLE, "asked": True, "kind": "influence"}), (tiny_config, tiny_run)]
    assert list(messages) == [f"{tiny_run}: nothing measured yet; measuring first"]

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("olmo_sparsity.measure.influence.measure", stopped)
    with pytest.raises(Interrupted, match="the same command, without --overwrite, continues from here"):
        measure_first(named, asked=False)
    monkeypatch.undo()
    monkeypatch.setattr("olmo_sparsity.training.loop.train", stopped)
    with pytest.raises(Interrupted, match="the same command, without --overwrite, continues from here"):
        train_first(named._replace(folder=Path("nowhere")), share=WHOLE, asked=True)
    assert messages[-1] == "nowhere: not trained yet; training first"


def test_a_share_of_a_run_that_is_not_there_is_refused_by_how_it_is_trained(
    tiny_config: Config, tiny_yaml: Path, tiny_run: Path, tmp_path: Path
) -> None:
    """And a trained run without its checkpoint, by where it is trained again."""
    run = tmp_path / "elsewhere"
    check_before_torch(tiny_config, run, share=Share(0, 2), asked=False)
    with pytest.raises(UserError, match=f"{run}: this run is not trained yet; run `olmo-sparsity train` first, alone"):
        train_first(Named(tiny_config, run, tiny_yaml), share=Share(0, 2), asked=False)
    run.mkdir()
    shutil.copy(tiny_run / "manifest.json", run)
    for share in (WHOLE, Share(0, 2)):
        with pytest.raises(
            UserError, match=f"its last checkpoint is gone; .* `synth train x --run {run}`, which writes"
        ):
            needs_training(tiny_config, run, share=share, command="synth train x")
