"""What commands do with their options: the demo without any, options and keys alike, help, and results in every form."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from started_commands import exit_code

from olmo_sparsity.cli.options import keys_of, resolve, shown_folder
from olmo_sparsity.config import Config, load_config, shipped, to_dict
from olmo_sparsity.errors import UserError

DATA = Path(__file__).parents[1] / "guard" / "data"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the measured run ``runs/demo``."""
    shutil.copytree(DATA / "runs" / "seed0", tmp_path / "runs" / "demo")
    shutil.copytree(DATA / "runs" / "seed1", tmp_path / "runs" / "seed1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def printed(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    capfd.readouterr()
    assert exit_code("-q", *arguments) == 0, capfd.readouterr().err
    return capfd.readouterr().out


@pytest.mark.parametrize(
    ("alone", "with_the_demo"),
    [
        ("summary", "summary --tables measured --run runs/demo"),
        ("summary --json", "summary --json --tables runs/demo/influence/measured"),
        ("show", "show runs/demo/influence/measured 0"),
        ("show 3", "show runs/demo/influence/measured 3"),
        ("list", "list runs"),
        ("config", "config --config {demo}"),
    ],
)
def test_without_arguments_a_command_is_about_the_demo(
    alone: str, with_the_demo: str, capfd: pytest.CaptureFixture[str]
) -> None:
    named = with_the_demo.format(demo=shipped("demo")).split()
    assert printed(capfd, *alone.split()) == printed(capfd, *named) != ""


def test_messages_are_as_many_as_are_asked_for(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(DATA, here, dirs_exist_ok=True)
    trained = ("train", "--config", "guard.yaml", "--run", "run")
    for options, code, said in (
        (trained, 0, "run: already trained (60 steps); nothing to do"), (("-q", *trained), 0, None),
        (("-v", *trained), 0, "olmo_sparsity.train.loop: run: already trained"),
        (("-v", "list", "nowhere"), 2, "Traceback"), (("list", "nowhere"), 2, "nowhere"),
    ):  # fmt: skip
        assert exit_code(*options) == code
        told = capfd.readouterr().err
        assert said in told if said else not told
        assert ("Traceback" in told) == (said == "Traceback")
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")):  # of torchrun, whose first process speaks for all
        monkeypatch.setenv(name, value)
    assert exit_code("-v", "list", "nowhere") == 2 and "Traceback" not in capfd.readouterr().err


def test_the_configuration_that_is_printed_can_be_read(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = printed(capfd, "config", "training.steps=79", "data.source=notes #2")
    (here / "printed.yaml").write_text(text)
    assert load_config(here / "printed.yaml") == load_config(None, ["training.steps=79", "data.source=notes #2"])
    assert yaml.safe_load(text)["data"]["source"] == "notes #2"
    of_run = yaml.safe_load(printed(capfd, "config", "--run", "runs/seed1"))
    assert of_run == to_dict(load_config(here / "runs" / "seed1" / "config.yaml"))


def test_a_report_and_figures_are_written_beside_each_other(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = Path(printed(capfd, "report").strip())
    assert page == Path("runs/demo/figures/measured/report.html") and page.is_file()
    assert exit_code("-q", "report") == 2 and "--overwrite replaces it" in capfd.readouterr().err
    before = page.read_text()
    assert printed(capfd, "report", "--overwrite").strip() == str(page)
    assert page.read_text() == before
    assert Path(printed(capfd, "report", "--out", "other.html").strip()).is_file()


@pytest.mark.parametrize("k", ["8", "6", "1", "1,3,5", "5,1,5", "all", "geometric"])
def test_values_of_k(k: str) -> None:
    keys = keys_of(k=k, selector=None)
    if k in ("all", "geometric"):
        assert keys == {"influence.k": k}
        return
    (ks,) = keys.values()
    number = int(k.split(",")[0])
    powers = {2**i for i in range(9) if 2**i < number} | {number}
    assert ks == sorted({int(part) for part in k.split(",")} if "," in k else powers)


def test_options_are_keys() -> None:
    """What an option says is what KEY=VALUE says, but for its place: the folder that it leads to, too."""
    options = {
        "num_windows": 5,
        "unit": "word",
        "local_len": 2,
        "full_len": 9,
        "data": "corpus",
        "visibility": "contextual",
    }
    options |= {"seed": 3, "precision": "fp32"}
    given = keys_of(k="1,3", selector=["kl", "random", "kl"], **options)
    by_options = resolve(None, None, overrides=["context.bos=false"], keys=given)
    written = [f"influence.{name}={value}" for name, value in options.items()]
    written += ["influence.k=[1,3]", "influence.selectors=[kl, random]", "context.bos=false"]
    by_keys = resolve(None, None, overrides=written)
    assert by_options == by_keys and by_keys.folder == Path("runs/demo")
    assert by_keys.config.influence != Config().influence
    everything = keys_of(k=None, selector=["all", "h2o"])["influence.selectors"]
    assert everything[-1] == "h2o" and "kl" in everything and len(set(everything)) == len(everything)


def test_the_file_is_the_one_that_is_named_or_that_of_the_folder(here: Path) -> None:
    other = here / "other.yaml"
    other.write_text("name: other\npretrained: {model: a/b, revision: main}")
    assert resolve(None, Path("runs/seed1"), overrides=None).file == Path("runs/seed1/config.yaml")
    assert resolve(None, Path("new"), overrides=None).file == shipped("demo")
    assert resolve(other, Path("runs/seed1"), overrides=None).file == other
    assert resolve(None, None, overrides=None, model="c/d").file == shipped("pretrained")
    assert resolve(None, None, overrides=None, model="c/d").folder == Path("runs/c-d")
    assert resolve(other, None, overrides=None).folder == Path("runs/a-b-main")
    assert resolve(None, None, overrides=["name=mine"]).folder == Path("runs/mine")


def test_results_of_another_model_are_not_shown(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, model in (("llama", "llama"), ("a-b", "a/b")):
        folder = here / "runs" / name
        folder.mkdir()
        manifest = {"kind": "pretrained", "status": "complete", "model": {"name": model}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    (here / "models").mkdir()
    (here / "llama").mkdir()
    (here / "models" / "llama").mkdir()
    for same in ("llama", "./llama", str(here / "llama"), "models/../llama"):
        assert shown_folder(None, same) == Path("runs/llama")
    assert shown_folder(None, "a/b") == Path("runs/a-b")
    assert shown_folder(None, None) == Path("runs/demo")
    assert shown_folder(Path("x"), None) == Path("x")
    for run_folder, other in ((None, "models/llama"), (Path("runs/a-b"), "llama")):
        with pytest.raises(UserError, match="these are the results of"):
            shown_folder(run_folder, other)


def options_of(page: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page))


def test_help_shows_a_dozen_options_and_all_of_them_when_asked(capfd: pytest.CaptureFixture[str]) -> None:
    short, again, long = (options_of(printed(capfd, "influence", flag)) for flag in ("-h", "--help", "--help-all"))
    assert short < long and 10 <= len(short - {"--help", "--help-all"}) <= 13
    assert {"--shard", "--seed", "--precision", "--out", "--train"} == long - short
    assert again == short
    assert "--text" in printed(capfd, "explore", "--at", "x", "--help-all")  # whatever else is wrong


@pytest.mark.parametrize("command", ["summary", "report", "figures", "show", "list", "compare", "hypothesis", "merge"])
def test_commands_that_only_show_take_no_keys(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert "KEY=VALUE" not in printed(capfd, command, "--help")


@pytest.mark.parametrize("command", ["prepare", "train", "influence", "explore", "config", "synth train", "synth eval"])
def test_commands_that_work_take_keys(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert "KEY=VALUE" in printed(capfd, *command.split(), "--help")


def test_every_command_is_listed(capfd: pytest.CaptureFixture[str]) -> None:
    commands = (
        "prepare train influence summary report figures show explore compare list config merge hypothesis synth export"
    )
    page = printed(capfd, "--help")
    assert set(commands.split()) <= set(re.findall(r"^│ ([a-z]+) ", page, re.MULTILINE))
    assert printed(capfd, "--version").strip()
    for group in ((), ("synth",), ("export",)):
        assert exit_code(*group) == 2 and "Usage" in "".join(capfd.readouterr())
