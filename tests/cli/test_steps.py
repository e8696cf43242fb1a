"""The steps that commands share: what trains first and with which configuration, and which process prints."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from olmo_sparsity.cli.options import Named
from olmo_sparsity.cli.steps import check_before_torch, needs_training, train_first
from olmo_sparsity.config import Config, PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.parts import WHOLE, Share


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, Path]]:
    """What would be trained."""
    found: list[tuple[Config, Path]] = []
    monkeypatch.setattr("olmo_sparsity.train.loop.train", lambda config, run: found.append((config, run)))
    return found


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
