"""The commands that show results show those of the model that ``--model`` names, or say whose results they would show."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any, Optional

import pytest
from made_up import CONTEXTUAL, MODEL, made_up_tables

from olmo_sparsity.cli.app import app, main
from olmo_sparsity.cli.options import resolve
from olmo_sparsity.cli.shown_models import check_shown_model
from olmo_sparsity.config import PretrainedConfig, load_config, shipped
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import sha256_file, write_json
from olmo_sparsity.tables import figures_folder, run_of_tables

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def save_model(folder: Path, weights: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(weights)
    return folder


def save_results(
    folder: Path, name: str, *, weights_sha256: str = "", revision: Optional[str] = None, given: Optional[str] = None
) -> Path:
    """Write the folder of the results of a model; ``given``: the revision that was asked for, ``revision``: its commit."""
    folder.mkdir(parents=True, exist_ok=True)
    model = {**MODEL, "name": name, "revision": revision, "weights_sha256": weights_sha256}
    write_json(folder / "manifest.json", {"kind": "pretrained", "status": "complete", "model": model})
    (folder / "config.yaml").write_text(f"pretrained: {{model: {name}, revision: {json.dumps(given)}}}\n")
    return folder


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models whose paths end alike, ``runs/a/hf`` and ``runs/b/hf``; the first is measured, in ``runs/hf``."""
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        save_model(Path("runs") / name / "hf", weights=name)
    weights = sha256_file(Path("runs/a/hf/model.safetensors"))
    save_results(Path("runs/hf"), "runs/a/hf", weights_sha256=weights)
    made_up_tables(Path("runs/hf/influence/made-up"), num_documents=60, setup=CONTEXTUAL)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "ending"),
    [
        ("summary --model runs/b/hf", "show it with --run DIR"),
        ("report --model runs/b/hf --out page.html", "show it with --run DIR"),
        ("figures --model runs/b/hf", "show it with --run DIR"),
        ("show --model runs/b/hf 3", "name it as RUN"),
        ("summary --model runs/b/hf --run runs/hf", "show it with --run DIR"),
    ],
)
def test_results_of_another_model_are_not_shown_under_its_name(
    command: str, ending: str, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (2, "")
    assert shown.err.splitlines()[-1] == (
        "olmo-sparsity: error: runs/hf: these are the results of runs/a/hf, not of runs/b/hf; measure that one into another "
        f"folder with --run DIR, and {ending}"
    )
    assert not list(work.rglob("*.html")) and not (work / "runs" / "hf" / "figures").exists()


@pytest.mark.parametrize("arguments", [["--model", "runs/a/hf"], ["--model", "{}/runs/a/hf"], ["--run", "runs/hf"]])
def test_its_own_results_are_shown(
    arguments: list[str], work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", "summary", "--json", *(word.format(work) for word in arguments)])
    app(standalone_mode=False)
    assert json.loads(capsys.readouterr().out)["estimates"][0]["n_windows"] > 0


@pytest.mark.parametrize("command", ["summary", "figures", "report"])
def test_tables_of_another_folder_are_not_shown_under_its_name(
    command: str, work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for other in (["--run", "runs/other"], ["--model", "runs/b/c"], ["--config", "config.yaml"]):
        (work / "config.yaml").write_text("name: other\n")
        monkeypatch.setattr(sys, "argv", ["olmo-sparsity", command, *other, "--tables", "runs/hf/influence/made-up"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert "runs/hf/influence/made-up: these tables are of runs/hf, not of runs/" in capsys.readouterr().err
        assert {path.name for path in (work / "runs").iterdir()} == {"a", "b", "hf"}


def test_the_run_of_tables(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Path("runs/hf/influence/made-up")
    assert run_of_tables(tables) == Path("runs/hf")
    assert run_of_tables(Path("runs/hf")) is None
    monkeypatch.chdir(tables.parent)
    for relative in (Path("made-up"), Path("made-up/../made-up")):
        assert run_of_tables(relative) == work / "runs" / "hf"
        assert figures_folder(relative) == work / "runs/hf/figures/made-up"
    monkeypatch.chdir("made-up")
    assert figures_folder(Path()) == work / "runs/hf/figures/made-up"
    monkeypatch.chdir(work / "runs" / "hf")
    assert figures_folder(Path("influence/made-up")) == work / "runs/hf/figures/made-up"


def test_the_revision_of_a_configuration_and_of_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.yaml"
    config.write_text("pretrained: {model: org/name, revision: v1}\n")

    def named(**options: Any) -> tuple[Optional[str], Optional[str], str]:
        loaded, folder, _ = resolve(options.pop("config", config), None, overrides=None, **options)
        return loaded.pretrained.model, loaded.pretrained.revision, str(folder)

    assert named() == ("org/name", "v1", "runs/org-name-v1")
    assert named(model="org/name") == ("org/name", "v1", "runs/org-name-v1")
    assert named(model="org/name", revision="v2") == ("org/name", "v2", "runs/org-name-v2")
    assert named(revision="v2") == ("org/name", "v2", "runs/org-name-v2")
    assert named(model="org/other") == ("org/other", None, "runs/org-other")
    assert named(config=None, model="org/name") == ("org/name", None, "runs/org-name")
    for override in ("pretrained.revision=v1", "pretrained.model=org/other"):
        with pytest.raises(UserError, match="use the options --model and --revision"):
            resolve(None, None, overrides=[override], model="org/name")


@pytest.mark.parametrize(
    ("options", "overrides"),
    [
        ({"model": "a/b"}, ["influence.full_len=200"]),
        ({"model": "a/b", "keys": {"influence": {"full_len": 80}}}, ["influence.min_preceding=96"]),
        ({"keys": {"influence": {"full_len": 10}}}, ["influence.min_preceding=12"]),
        ({"keys": {"influence": {"visibility": "contextual"}}}, ["influence.selectors=[snapkv,random]"]),
    ],
)
def test_overrides_and_options_are_judged_together(
    options: dict[str, Any], overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each alone would contradict the file."""
    monkeypatch.chdir(tmp_path)
    loaded, _, _ = resolve(None, None, overrides=overrides, **options)
    for section, keys in options.get("keys", {}).items():
        assert {name: getattr(getattr(loaded, section), name) for name in keys} == keys
    assert loaded.pretrained.model == options.get("model")
    with pytest.raises(UserError):
        load_config(None if "model" not in options else shipped("pretrained"), overrides)


def test_what_an_option_contradicts_is_not_blamed_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"^influence.full_len = 4: must be larger than"):
        resolve(None, None, overrides=None, keys={"influence": {"full_len": 4}})
    with pytest.raises(UserError, match=r"demo.yaml: influence.min_preceding = 5: must be at least"):
        resolve(None, None, overrides=["influence.min_preceding=5"], keys={"influence": {"seed": 4}})


def test_which_configuration_and_folder_options_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is named, else the folder's own, else the shipped one; then changes, the model, and options of keys."""
    monkeypatch.chdir(tmp_path)
    for folder, seed in (("runs/a-b", 11), ("runs/mine", 12)):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "config.yaml").write_text(
            f"name: x{seed}\ninfluence: {{seed: {seed}}}\npretrained: {{model: c/d}}\n"
        )
    Path("named.yaml").write_text("name: n\ninfluence: {seed: 13}\n")

    def found(
        config: Optional[str], run: Optional[str], *overrides: str, **options: Any
    ) -> tuple[str, int, Optional[str], str]:
        loaded, folder, _ = resolve(config and Path(config), run and Path(run), overrides=list(overrides), **options)  # type: ignore[arg-type]
        return loaded.name, loaded.influence.seed, loaded.pretrained.model, str(folder)

    assert found(None, "runs/mine") == ("x12", 12, "c/d", "runs/mine")
    assert found("named.yaml", "runs/mine") == ("n", 13, None, "runs/mine")
    assert found("named.yaml", None) == ("n", 13, None, "runs/n")
    assert found("named.yaml", None, "name=o", "influence.seed=14") == ("o", 14, None, "runs/o")
    assert found(None, None, model="a/b") == ("x11", 11, "a/b", "runs/a-b")
    assert found(None, "runs/mine", model="a/b") == ("x12", 12, "a/b", "runs/mine")
    for model, default in (("a/b", load_config(shipped("pretrained"), [])), (None, load_config(None, []))):
        loaded, folder, _ = resolve(None, Path("runs/new"), overrides=None, model=model)
        assert (loaded.context, loaded.influence, str(folder)) == (default.context, default.influence, "runs/new")
    assert load_config(shipped("pretrained"), []).context != load_config(None, []).context
    assert found("named.yaml", None, keys={"influence": {"seed": 15}}) == ("n", 15, None, "runs/n")
    scaled = {"pretrained": {"rope_scaling": "yarn", "rope_factor": 2.0, "train_len": 64}}
    changes = [f"pretrained.{key}={value}" for key, value in scaled["pretrained"].items()]
    for given in ({"keys": scaled}, {"overrides": changes}):
        assert found("named.yaml", None, *given.pop("overrides", []), model="a/b", **given) == (
            "n", 13, "a/b", "runs/a-b-yarn2",
        )  # fmt: skip


def check(folder: Path, model: str, revision: Optional[str] = None) -> None:
    check_shown_model(folder, PretrainedConfig(model, revision))


def test_a_moved_model_is_the_same(work: Path) -> None:
    """By its weights; where it is not on this machine, by the end of its path."""
    shutil.move(work / "runs" / "a", work / "c")
    check(work / "runs" / "hf", "c/hf")
    shutil.copytree(work / "c" / "hf", work / "copy" / "hf")
    check(work / "runs" / "hf", str(work / "copy" / "hf"))
    with pytest.raises(UserError, match=r"the results of runs/a/hf, not of c/hf at revision v2;"):
        check(work / "runs" / "hf", "c/hf", "v2")  # what lies in a folder has no revision
    shutil.rmtree(work / "c")
    check(work / "runs" / "hf", "runs/a/hf")
    check(work / "runs" / "hf", "/elsewhere/runs/a/hf")
    for other in ("runs/b/hf", "runs/d/hf", "/elsewhere/hf", "hf", "hf-2"):
        with pytest.raises(UserError, match=rf"the results of runs/a/hf, not of {other};"):
            check(work / "runs" / "hf", other)


def test_files_are_compared_by_their_weights(tmp_path: Path) -> None:
    for folder, weights in (("a", "same"), ("b", "same"), ("c", "other")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.gguf").write_text(weights)
    weights_sha256 = sha256_file(tmp_path / "a" / "x.gguf")
    folder = save_results(tmp_path / "runs" / "x", str(tmp_path / "a" / "x.gguf"), weights_sha256=weights_sha256)
    check(folder, str(tmp_path / "b" / "x.gguf"))
    with pytest.raises(UserError, match="not of"):
        check(folder, str(tmp_path / "c" / "x.gguf"))
    gone = save_results(tmp_path / "runs" / "gone", "/elsewhere/x.gguf")
    check(gone, "x.gguf")  # unlike that of a folder, the name of a file tells which it is
    named = save_results(tmp_path / "runs" / "named", "x.gguf")
    check(named, "/elsewhere/x.gguf")
    with pytest.raises(UserError, match=r"not of y\.gguf"):
        check(gone, "y.gguf")


def test_a_model_of_the_hub_is_compared_with_its_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_main = save_results(tmp_path / "main", "someone/llama", revision=COMMIT)
    at_step = save_results(tmp_path / "step", "someone/llama", revision=COMMIT, given="step7")
    for folder, given in (
        (at_main, None),
        (at_step, "step7"),
        (at_main, COMMIT),
        (at_step, COMMIT),
        (at_main, COMMIT[:12]),
        (at_main, COMMIT[:7]),
    ):
        check(folder, "someone/llama", given)
    with pytest.raises(
        UserError, match=r"of someone/llama at revision 0123456789ab, not of someone/llama at revision v2;"
    ):
        check(at_main, "someone/llama", "v2")
    for folder, model, revision in (
        (at_step, "someone/llama", None), (at_main, "someone-llama", None), (at_main, "someone/llama", COMMIT[:6]),
    ):  # fmt: skip
        with pytest.raises(UserError, match=f"not of {model}( at revision 012345)?;"):
            check(folder, model, revision)
    # A folder that is named like the repository is another model.
    monkeypatch.chdir(tmp_path)
    for model in ("./someone/llama/", "someone/../someone/llama", str(tmp_path / "someone" / "llama")):
        with pytest.raises(UserError, match=rf"of someone/llama at revision 0123456789ab, not of {re.escape(model)};"):
            check(at_main, model)


def test_a_folder_of_something_else_is_named(tmp_path: Path) -> None:
    write_json(tmp_path / "manifest.json", {"kind": "hf", "status": "complete"})
    with pytest.raises(UserError, match="these are the results of no model \\(kind 'hf'\\), not of models/tiny;"):
        check(tmp_path, "models/tiny")


def test_a_run_is_no_pretrained_model(tiny_run: Path) -> None:
    with pytest.raises(UserError, match="these are the results of a run, not of models/tiny;"):
        check(tiny_run, "models/tiny")
