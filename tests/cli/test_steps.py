"""The steps that commands share: what trains first and with which configuration, and which process prints."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import Messages

from olmo_sparsity.cli import steps
from olmo_sparsity.cli.steps import check_before_torch, finish_share, measure_first, needs_training, train_first
from olmo_sparsity.config import Config, InfluenceConfig, PretrainedConfig
from olmo_sparsity.errors import Interrupted, UserError
from olmo_sparsity.measure.work import WHOLE, Share
from olmo_sparsity.records.selectors import SELECTORS


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


def test_selectors_of_ones_own_are_no_part_of_a_run(
    tiny_config: Config, trained: list[tuple[Config, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where none but these are measured, the run has the default ones; all else is as it was given."""
    monkeypatch.setitem(SELECTORS, "mine", dataclasses.replace(SELECTORS["kl"], own=object()))  # type: ignore[arg-type]
    runs = [(["kl", "mine", "random"], ["kl", "random"]), (["mine"], InfluenceConfig().selectors), (["kl"], ["kl"])]
    for number, (named, kept) in enumerate(runs):
        influence = dataclasses.replace(tiny_config.influence, k=[1])
        object.__setattr__(influence, "selectors", named)
        config = dataclasses.replace(tiny_config)
        object.__setattr__(config, "influence", influence)
        run = tmp_path / str(number)
        train_first(config, run, share=WHOLE, asked=True, kind="influence", out=None)
        assert trained[-1][1] == run
        assert trained[-1][0] == dataclasses.replace(
            tiny_config, influence=dataclasses.replace(influence, selectors=kept)
        )


def test_which_runs_are_trained_without_being_asked(
    tiny_config: Config, trained: list[tuple[Config, Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that the configuration names, by whatever path; another one only if asked, and no pretrained model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "link").symlink_to("runs")
    own = [Path("runs/tiny"), tmp_path / "runs" / "tiny", Path("runs/x/../tiny"), Path("link/tiny")]
    for run in own:
        check_before_torch(tiny_config, run, share=WHOLE, asked=False)
        train_first(tiny_config, run, share=WHOLE, asked=False, kind=None, out=None)
    assert [run for _, run in trained] == own
    for run in (Path("runs/tiny2"), Path("tiny"), Path("runs/tiny/runs/tiny")):
        for refuses in (
            lambda run=run: check_before_torch(tiny_config, run, share=WHOLE, asked=False),
            lambda run=run: train_first(tiny_config, run, share=WHOLE, asked=False, kind=None, out=None),
        ):
            with pytest.raises(UserError, match=f"{run}: this run is not trained; train it with .* --train"):
                refuses()
        check_before_torch(tiny_config, run, share=WHOLE, asked=True)
        train_first(tiny_config, run, share=WHOLE, asked=True, kind=None, out=None)
    assert len(trained) == 7
    trained.clear()
    (tmp_path / "model").mkdir()
    pretrained = dataclasses.replace(tiny_config, pretrained=PretrainedConfig(str(tmp_path / "model")))
    check_before_torch(pretrained, Path("anywhere"), share=WHOLE, asked=False)
    train_first(pretrained, Path("anywhere"), share=WHOLE, asked=False, kind="influence", out=Path("model"))
    for function in (check_before_torch, lambda *a, **named: train_first(*a, kind=None, out=None, **named)):
        with pytest.raises(UserError, match=r"--train: .*model is a pretrained model, which is never trained"):
            function(pretrained, Path("anywhere"), share=WHOLE, asked=True)  # type: ignore[operator]
    with pytest.raises(UserError, match="run `olmo-sparsity train` first, alone"):
        train_first(tiny_config, Path("runs/tiny"), share=Share(0, 2), asked=True, kind=None, out=None)
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "draft.md").write_text("mine")
    with pytest.raises(UserError, match="papers: this folder exists and is no influence folder"):
        train_first(tiny_config, Path("runs/tiny"), share=WHOLE, asked=True, kind="influence", out=Path("papers"))
    missing = dataclasses.replace(tiny_config.influence, data=str(tmp_path / "no-text.jsonl"))
    with pytest.raises(UserError, match=r"no-text\.jsonl"):
        train_first(
            dataclasses.replace(tiny_config, influence=missing),
            Path("runs/tiny"),
            share=WHOLE,
            asked=True,
            kind=None,
            out=None,
        )
    assert not trained


def test_a_measurement_that_figures_need_is_whole_and_can_be_interrupted(
    tiny_config: Config, tiny_run: Path, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(steps, "train_first", lambda *given, **named: calls.append((*given, named)))
    monkeypatch.setattr("olmo_sparsity.measure.influence.measure", lambda *given: calls.append(given))
    measure_first(tiny_config, tiny_run, asked=True)
    named = {"share": WHOLE, "asked": True, "kind": "influence", "out": None}
    assert calls == [(tiny_config, tiny_run, named), (tiny_config, tiny_run)]
    assert list(messages) == [f"{tiny_run}: nothing measured yet; measuring first"]

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("olmo_sparsity.measure.influence.measure", stopped)
    with pytest.raises(Interrupted, match="the same command, without --overwrite, continues from here"):
        measure_first(tiny_config, tiny_run, asked=False)
    monkeypatch.undo()
    monkeypatch.setattr("olmo_sparsity.training.loop.train", stopped)
    with pytest.raises(Interrupted, match="the same command, without --overwrite, continues from here"):
        train_first(tiny_config, Path("nowhere"), share=WHOLE, asked=True, kind=None, out=None)
    assert messages[-1] == "nowhere: not trained yet; training first"


def test_a_share_of_a_run_that_is_not_there_is_refused_by_how_it_is_trained(
    tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    """And a trained run without its checkpoint, by where it is trained again."""
    run = tmp_path / "elsewhere"
    check_before_torch(tiny_config, run, share=Share(0, 2), asked=False)
    with pytest.raises(UserError, match=f"{run}: this run is not trained yet; run `olmo-sparsity train` first, alone"):
        train_first(tiny_config, run, share=Share(0, 2), asked=False, kind=None, out=None)
    run.mkdir()
    shutil.copy(tiny_run / "manifest.json", run)
    for share in (WHOLE, Share(0, 2)):
        with pytest.raises(
            UserError, match=f"its last checkpoint is gone; .* `synth train x --run {run}`, which writes"
        ):
            needs_training(tiny_config, run, share=share, command="synth train x")
