"""Parts that commands measure: shares, processes that begin and end at once, and parts that are lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from started_commands import run_cli, start_command, starts_of_python
from transformers_models import save

from olmo_sparsity.files import read_json

TABLES = ("windows", "selections")


def part_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("*/part-*.parquet"))}


@pytest.fixture
def asked(tiny_run: Path, tmp_path: Path) -> list[str]:
    return ["--run", str(tiny_run), "--out", str(tmp_path / "out")]


def test_torchrun(asked: list[str], tiny_tables: Path, tmp_path: Path) -> None:
    measured, shown = starts_of_python("influence-torchrun.sh", *asked, cwd=tmp_path, PROCESSES="2")
    assert measured[:7] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    assert measured[7:] == shown[1:] and shown == ["-m", "olmo_sparsity", "influence", *asked]
    command = start_command(*measured[8:], cwd=tmp_path, processes=2)
    _, errors = command.communicate()
    assert command.returncode == 0, errors
    assert part_bytes(tmp_path / "out") == part_bytes(tiny_tables)
    assert sorted(read_json(path)["share"] for path in (tmp_path / "out" / "sessions").iterdir()) == ["0/2", "1/2"]
    done = run_cli(*shown[2:], cwd=tmp_path)
    assert "60 windows of" in done.stdout and "already measured" in done.stderr


def test_slurm_array(asked: list[str], tiny_tables: Path, tmp_path: Path) -> None:
    tasks = []
    for task in "10":
        variables = {"SLURM_ARRAY_TASK_ID": task, "SLURM_ARRAY_TASK_COUNT": "2"}
        (started,) = starts_of_python("influence-slurm-array.sh", *asked, cwd=tmp_path, **variables)
        assert started == ["-m", "olmo_sparsity", "influence", "--shard", f"{task}/2", *asked]
        tasks.append(run_cli(*started[2:], cwd=tmp_path))
    assert [task.returncode for task in tasks] == [0, 0], tasks[0].stderr
    assert tasks[0].stdout == "" and "60 windows of" in tasks[1].stdout
    assert part_bytes(tmp_path / "out") == part_bytes(tiny_tables)


def test_shares_of_a_pretrained_model_run_its_checks_once(tmp_path: Path) -> None:
    """The second has the record of the first, and other windows have one of their own."""
    save(tmp_path / "model")
    texts = (f"{chr(97 + i) * 9} {'so it goes ' * 9}" for i in range(9))
    (tmp_path / "text.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in texts))
    asked = [
        "influence",
        "--model",
        "model",
        "--data",
        "text.jsonl",
        "--local-len",
        "8",
        "--full-len",
        "20",
        "--k",
        "1",
        "--selector",
        "random",
    ]
    asked.append("influence.windows_per_part=2")
    told, fits = [], []
    for share, seed in (("0/2", "0"), ("1/2", "0"), ("0/2", "1")):
        done = run_cli(*asked, "--shard", share, "--seed", seed, "--num-windows", "8", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        told.append("whether it can be measured" in done.stderr)
        fits.append(sorted((tmp_path / "runs" / "model" / "checks").glob("*.json")))
    assert told == [True, False, True] and fits[0] == fits[1] and len(fits[2]) == len(fits[1]) + 1 == 2
    manifests = [read_json(path) for path in tmp_path.glob("runs/model/influence/*/manifest.json")]
    assert sorted(of["status"] for of in manifests) == ["complete", "running"]
    assert all(len(of["fit"]["checks"]) > 10 for of in manifests)


def test_processes_that_begin_and_end_at_once(asked: list[str], tiny_tables: Path, tmp_path: Path) -> None:
    """Four processes meet at the empty folder; two of them measure the same share."""
    shares = ("0/3", "1/3", "2/3", "2/3")
    commands = [start_command("influence", "--shard", share, *asked, cwd=tmp_path) for share in shares]
    ends = [(command.communicate(), command.returncode) for command in commands]
    assert [code for _, code in ends] == [0] * 4, ends
    assert part_bytes(tmp_path / "out") == part_bytes(tiny_tables)
    assert read_json(tmp_path / "out" / "manifest.json")["status"] == "complete"


def test_parts_are_not_added_to_those_of_other_columns(asked: list[str], tiny_tables: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(tiny_tables, tmp_path / "out"))
    for path in (out / "windows").iterdir():
        table = pq.read_table(path)
        pq.write_table(table.drop_columns("loss_short_no_gap_nats"), path)
    (out / "windows" / "part-00002.parquet").unlink()
    before = part_bytes(out)
    refused = run_cli("influence", *asked, cwd=tmp_path)
    assert refused.returncode == 2 and "part-00000.parquet: columns window_id, " in refused.stderr
    assert refused.stderr.rstrip().endswith("with --overwrite") and part_bytes(out) == before
    for _ in ("parts of another form", "a finished measurement"):
        again = run_cli("influence", *asked, "--overwrite", cwd=tmp_path)
        assert again.returncode == 0 and "already measured" not in again.stderr
        assert part_bytes(out) == part_bytes(tiny_tables)
