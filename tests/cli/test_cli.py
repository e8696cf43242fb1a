"""The commands, run as a user runs them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from conftest import made_up_text, write_corpus
from started_commands import run_cli
from tiny_pretrained import save_llama

from olmo_sparsity.cli.app import app, main
from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.tables import list_finished

MEASURE = ("influence", "--config", "tiny.yaml", "--k", "8", "--num-windows", "30")


@pytest.fixture(scope="module")
def empty_workplace(tiny_yaml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    shutil.copy(tiny_yaml, folder / "tiny.yaml")
    return folder


@pytest.fixture(scope="module")
def first(empty_workplace: Path) -> subprocess.CompletedProcess[str]:
    """The first command, where nothing is trained."""
    return run_cli(*MEASURE, cwd=empty_workplace)


@pytest.fixture(scope="module")
def workplace(empty_workplace: Path, first: subprocess.CompletedProcess[str]) -> Path:
    """A folder with the run ``runs/tiny`` and its measurement. Tests add to it, and the newest measurement stays this one."""
    assert first.returncode == 0, first.stderr
    return empty_workplace


@pytest.fixture(scope="module")
def elsewhere(workplace: Path) -> Path:
    """Other tables of the run, outside of it."""
    out = run_cli(
        "influence", "--config", "tiny.yaml", "--k", "1,3", "--num-windows", "12", "--selector", "kl", "--selector", "random",
        "--seed", "7", "--out", "elsewhere", "influence.path=masked",
        "influence.windows_per_part=5", cwd=workplace,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    return workplace / "elsewhere"


@pytest.fixture(scope="module")
def llama(workplace: Path) -> Path:
    """A pretrained model."""
    texts = [made_up_text(np.random.default_rng(seed), 50) for seed in range(9)]
    save_llama(workplace / "models" / "tiny-llama", texts)
    return workplace / "models" / "tiny-llama"


def test_a_command_runs_the_earlier_commands_first(workplace: Path, first: subprocess.CompletedProcess[str]) -> None:
    assert "not trained yet; training first" in first.stderr
    assert "trained 12 steps" in first.stderr
    assert "TOO FEW DOCUMENTS" in first.stdout
    again = run_cli("train", "--config", "tiny.yaml", cwd=workplace)
    assert again.returncode == 0
    assert "already trained" in again.stderr
    again = run_cli(*MEASURE, cwd=workplace)
    assert again.returncode == 0
    assert "already measured" in again.stderr
    folders = list_finished(workplace / "runs" / "tiny")
    assert len(folders) == 1
    assert folders[0].name.startswith("words-jsonl-validation-n30-k1-2-4-8-seed0-")
    by_run = run_cli("summary", "--run", "runs/tiny", "--json", cwd=workplace)
    summary = json.loads(by_run.stdout)
    assert [answer["verdict"] for answer in summary["answers"]] == ["TOO FEW DOCUMENTS"] * 4
    rows = summary["estimates"]
    assert {row["n_windows"] for row in rows if row["group"] is None} == {30}
    assert all(row["low"] is None for row in rows if row["quantity"] == "long_gain_nats")
    choices = {(s, c) for s in InfluenceConfig().selectors for c in ("real", "null")}
    found = {(row["selector"], row["context"], row["k"]) for row in rows if row["quantity"] == "gain_sparse_nats"}
    assert found == {(*choice, k) for choice in choices for k in (1, 2, 4, 8)}
    classes = [row["n_windows"] for row in rows if row["quantity"] == "window_share"]
    assert sum(classes) == 30


def test_runs_that_differ_in_the_seed_only_give_one_table(workplace: Path) -> None:
    """The seed of training changes neither the text nor the windows."""
    other = run_cli(*MEASURE, "--run", "runs/tiny-seed1", "--train", "training.seed=1", cwd=workplace)
    assert other.returncode == 0, other.stderr
    manifests = [
        json.loads((list_finished(workplace / "runs" / name)[0] / "manifest.json").read_text())
        for name in ("tiny", "tiny-seed1")
    ]
    for key in ("tokens_sha256", "windows_sha256", "influence"):
        assert manifests[0][key] == manifests[1][key]
    assert manifests[0]["checkpoint"]["model_sha256"] != manifests[1]["checkpoint"]["model_sha256"]
    runs = ("--run", "runs/tiny", "--run", "runs/tiny-seed1")
    summary = json.loads(run_cli("summary", *runs, "--json", cwd=workplace).stdout)
    of_runs = [json.loads(run_cli("summary", *run, "--json", cwd=workplace).stdout) for run in (runs[:2], runs[2:])]
    gains = [
        [row["value"] for row in of["estimates"] if row["quantity"] == "long_gain_nats" and row["group"] is None]
        for of in (summary, *of_runs)
    ]
    (mean,), (first,), (second,) = gains
    assert first != second
    assert abs(mean - (first + second) / 2) < 1e-9
    assert "mean over 2 seeds" in run_cli("summary", *runs, cwd=workplace).stdout


def test_all_selectors(workplace: Path) -> None:
    shown = run_cli(
        "influence", "--config", "tiny.yaml", "--k", "2", "--num-windows", "6", "--selector", "all", "--out", "all",
        "influence.lasso_masks=9", cwd=workplace,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    table = pq.read_table(workplace / "all" / "selections", columns=["selector", "num_evaluations"]).to_pandas()
    assert set(table.itertuples(index=False, name=None)) == {
        ("unmask-one", 13), ("kl", 14), ("gradient", 3), ("attention", 1), ("nearest", 0), ("mask-one", 13),
        ("greedy", 23), ("greedy-kl", 24), ("lasso", 9), ("random", 0),
    }  # fmt: skip


def test_options_reach_the_tables(workplace: Path, elsewhere: Path) -> None:
    manifest = json.loads((elsewhere / "manifest.json").read_text())
    assert manifest["influence"]["k"] == [1, 3]
    assert manifest["influence"]["selectors"] == ["kl", "random"]
    assert (manifest["influence"]["seed"], manifest["influence"]["path"], manifest["num_parts"]) == (7, "masked", 3)
    shown = run_cli("summary", "--tables", "elsewhere", cwd=workplace)
    assert "12 windows" in shown.stdout


def test_report_show_and_compare(workplace: Path, elsewhere: Path) -> None:
    first = run_cli("report", "--run", "runs/tiny", cwd=workplace)
    assert first.returncode == 0, first.stderr
    page = workplace / first.stdout.strip()
    assert page.parent.parent == workplace / "runs" / "tiny" / "figures"
    assert page.read_text().startswith("<!")
    again = run_cli("report", "--run", "runs/tiny", cwd=workplace)
    assert again.returncode == 2 and "--overwrite" in again.stderr
    shown = run_cli("show", "runs/tiny", "3", "--selector", "unmask-one", "--context", "null", cwd=workplace)
    assert "Window 3" in shown.stdout, shown.stderr
    compared = run_cli("compare", "runs/tiny", "elsewhere", "--json", cwd=workplace)
    assert compared.returncode == 0, compared.stderr
    assert not json.loads(compared.stdout)["is_paired"]


def test_a_pretrained_model_and_a_run_at_other_lengths(
    workplace: Path, llama: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--model`` and ``--run`` lead to the same folder; its configuration is the default of later commands."""
    monkeypatch.chdir(workplace)

    def output(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *arguments])
        app(standalone_mode=False)
        return capsys.readouterr().out

    model = ("--model", "models/tiny-llama")
    few = ("--num-windows", "12", "--selector", "kl", "--selector", "random")
    output("influence", *model, "--config", "tiny.yaml", "--full-len", "16", "--k", "4", *few)
    results = workplace / "runs" / "tiny-llama"
    assert not (results / "checkpoints").exists()
    assert [folder.name[:32] for folder in list_finished(results)] == ["words-jsonl-measured-8of16-bos-n"]
    by_model = output("summary", *model, "--json")
    assert by_model == output("summary", "--run", "runs/tiny-llama", "--json")
    assert json.loads(by_model)["estimates"][0]["n_windows"] == 12
    output(
        "influence", *model, "--visibility", "contextual", "--k", "4", *few
    )  # the text and the lengths of the folder
    manifest = json.loads((list_finished(results)[-1] / "manifest.json").read_text())
    assert (manifest["visibility"], manifest["context"]["full_len"], manifest["source"]) == (
        "contextual", 20, yaml.safe_load((results / "config.yaml").read_text())["data"]["source"],
    )  # fmt: skip
    assert "Window 3" in output("show", "3", *model)
    assert not json.loads(output("compare", "runs/tiny", "runs/tiny-llama", "--json"))["has_same_tokens"]
    output("influence", "--config", "tiny.yaml", "--local-len", "4", "--full-len", "16", "--k", "2", *few)
    newest = list_finished(workplace / "runs" / "tiny")[-1]
    assert newest.name.startswith("words-jsonl-validation-4of16-n12-")
    shutil.rmtree(newest)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("influence --model models/tiny-llama --config tiny.yaml --full-len 64", "--full-len 63 or less"),
        ("influence --model models/tiny-llama --run runs/tiny", "is no pretrained folder"),
        ("show --model models/tiny-llama three", "show three: give a run and the number of a window"),
        ("show runs/tiny --model models/tiny-llama 3", "give a run and the number of a window"),
        ("train --config tiny.yaml --run new context.train_len=19 data.source=short.jsonl", "too small"),
        ("influence --config tiny.yaml --data short.jsonl", "the text to measure is too small"),
    ],
)
@pytest.mark.usefixtures("llama")
def test_mistakes_that_need_a_model_or_prepare_a_text(
    workplace: Path, command: str, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are in mistake_cases.py."""
    (workplace / "short.jsonl").write_text('{"text": "much too short"}\n' * 3)
    before = set(workplace.rglob("*"))
    monkeypatch.chdir(workplace)
    monkeypatch.setattr(sys, "argv", ["olmo-sparsity", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main()
    errors = capsys.readouterr().err
    assert ended.value.code == 2
    assert message in errors and errors.count("\n") == 1
    assert set(workplace.rglob("*")) == before


def test_a_full_disk_is_reported_in_one_line_and_the_run_resumes(workplace: Path) -> None:
    """With a limit on the size of files, under which writing fails in the same way."""
    train = ("train", "--config", "tiny.yaml", "--run", "runs/full")
    size = (workplace / "runs/tiny/checkpoints/latest/model.pt").stat().st_size
    full = run_cli(*train, cwd=workplace, largest_file=size // 2)
    assert full.returncode == 2
    assert full.stderr.splitlines()[-1].startswith(
        "olmo-sparsity: error: cannot write to disk (File too large); free some space"
    )
    assert "Traceback" not in full.stderr
    after = run_cli(*train, cwd=workplace)
    assert after.returncode == 0, after.stderr
    assert not list((workplace / "runs/full/checkpoints").glob("*.partial"))


def test_text_in_another_format_is_measured(workplace: Path) -> None:
    """Another text field, a broken line that is skipped, and another number of threads need no new model."""
    words = [
        json.loads(line)["text"] for line in write_corpus(workplace / "w.jsonl", 60, seed=8).read_text().splitlines()
    ]
    (workplace / "body.jsonl").write_text("{oops\n" + "".join(json.dumps({"body": text}) + "\n" for text in words))
    result = run_cli(
        "influence", "--config", "tiny.yaml", "--data", "body.jsonl", "--num-windows", "9", "--k", "1", "--out", "other",
        "data.text_field=body", "data.on_error=skip", "training.threads=2", cwd=workplace,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "9 windows" in result.stdout


def test_help_lists_options_and_overrides(tmp_path: Path) -> None:
    for command in ("prepare", "train", "influence", "summary", "report", "config"):
        shown = run_cli(command, "--help", cwd=tmp_path).stdout
        assert "--config" in shown
        assert "--run" in shown
        assert ("KEY=VALUE" in shown) == (command not in ("summary", "report"))
    assert run_cli("config", "training.steps=3", cwd=tmp_path).stdout.count("steps: 3") == 1


def test_the_package_is_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "olmo_sparsity", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "0.1.0", "")
