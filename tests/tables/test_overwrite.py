"""``--overwrite`` deletes what commands wrote, and nothing else; ``merge`` follows no link out of a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import Messages
from made_up import made_up_tables

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import clear_folder, partial_path, read_json, write_manifest
from olmo_sparsity.tables import finalize, merge_folders, part_path


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


def write(path: Path, text: str = "mine") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def made_up_folder(run: Path) -> Path:
    """Write all that commands write into a run, as far as it is deleted with it."""
    write(run / "config.yaml")
    write(run / "tokenizer.json")
    write(run / "metrics.jsonl")
    write(run / "tensorboard" / "events.out.tfevents.1.host")
    killed = partial_path(run / "checkpoints" / "step12").name
    for step in ("step4", "step8", killed):
        for name in ("config.yaml", "model.pt", "optim.pt", "train.json"):
            write(run / "checkpoints" / step / name)
    write(partial_path(run / "config.yaml"))
    write(partial_path(run / "checkpoints" / "a"))
    (run / "checkpoints" / "latest").symlink_to("step4")
    (run / "figures").mkdir()
    write_manifest(run, {"kind": "run", "status": "complete", "config": {}})
    made_up_tables(run / "influence" / "first", num_documents=4)
    return run


def test_nothing_is_left_of_a_run_but_its_manifest(tmp_path: Path, messages: Messages) -> None:
    run = made_up_folder(tmp_path / "run")
    clear_folder(run)
    assert [path.name for path in run.rglob("*")] == ["manifest.json"]
    assert read_json(run / "manifest.json")["status"] == "running"
    assert not [line for line in messages if "left" in line]


def test_what_no_command_wrote_is_left_and_named(tmp_path: Path, messages: Messages) -> None:
    run = made_up_folder(tmp_path / "run")
    mine = {
        "notes.txt", "checkpoints/step4/notes.txt", "checkpoints/best.pt", "influence/first/notes.txt",
        "influence/thoughts.md", "sub/manifest.json", "figures/figure4-annotated.png",
        ".notes.partial", "checkpoints/.film.partial", "checkpoints/steps/config.yaml",
    }  # fmt: skip
    for name in mine:
        write(run / name, '{"kind": "mine"}')
    (tmp_path / "elsewhere").mkdir()
    write(tmp_path / "elsewhere" / "model.pt")
    (run / "linked").symlink_to(tmp_path / "elsewhere")
    clear_folder(run)
    assert files(run) == {*mine, "linked", "manifest.json"}
    assert files(tmp_path / "elsewhere") == {"model.pt"}
    assert messages[-1].startswith(f"{run}: left as they are, since they are no part of it: .notes.partial, ")
    assert messages[-1].endswith(" and 6 more")


def test_checkpoints_behind_a_link_are_not_deleted(tmp_path: Path) -> None:
    """The link goes, or a new training would resume from what it leads to."""
    run = made_up_folder(tmp_path / "run")
    shutil.move(run / "checkpoints", tmp_path / "disk")
    (run / "checkpoints").symlink_to(tmp_path / "disk")
    clear_folder(run)
    assert not (run / "checkpoints").is_symlink()
    assert (tmp_path / "disk" / "step4" / "model.pt").is_file()


def test_a_checkpoint_behind_a_link_is_not_deleted(tmp_path: Path) -> None:
    run = made_up_folder(tmp_path / "run")
    shutil.move(run / "checkpoints" / "step4", tmp_path / "archive")
    (run / "checkpoints" / "step4").symlink_to(tmp_path / "archive")
    clear_folder(run)
    assert not (run / "checkpoints" / "step4").is_symlink()
    assert (tmp_path / "archive" / "model.pt").is_file()


def test_tables_inside_of_tables_are_another_measurement(tmp_path: Path, messages: Messages) -> None:
    tables = made_up_tables(tmp_path / "tables", num_documents=4)
    for inner in ("seed5", "more/seed6"):
        made_up_tables(tables / inner, num_documents=4)
    inside = {name for name in files(tables) if "seed" in name}
    clear_folder(tables)
    assert files(tables) == {"manifest.json", *inside}
    assert read_json(tables / "seed5" / "manifest.json")["status"] == "complete"
    assert "left as they are" in messages[-1] and "more/seed6/manifest.json" in messages[-1]


def test_tables_that_are_replaced(tmp_path: Path, messages: Messages) -> None:
    tables = made_up_tables(tmp_path / "tables", num_documents=4)
    write(tables / "windows" / "notes.txt")
    write(tables / "report.html")
    for name in "abc":
        write(tables / name)
    clear_folder(tables)
    assert files(tables) == {"manifest.json", "report.html", "windows/notes.txt", "a", "b", "c"}
    assert messages[-1].endswith("no part of it: a, b, c, report.html, windows/notes.txt")  # five are named


@pytest.mark.parametrize("linked", ["part", "table", "session"])
def test_merge_follows_no_link_out_of_the_folder(tmp_path: Path, linked: str) -> None:
    tables = made_up_tables(tmp_path / "tables", num_documents=4)
    manifest = {**read_json(tables / "manifest.json"), "num_windows": 6}
    write_manifest(tables, manifest)
    assert finalize(tables) == 0
    secret = tmp_path / "secret"
    path = {
        "part": part_path(tables, "selections", part=1),
        "table": tables / "selections",
        "session": tables / "sessions" / "a.json",
    }[linked]
    if linked == "session":
        write(path, "{}")
    shutil.move(path, secret)
    path.symlink_to(secret)
    with pytest.raises(UserError, match=r"a symbolic link leads out of .*tables, to .*secret"):
        merge_folders([tables], tmp_path / "out")
    assert not list((tmp_path / "out").glob("*/secret*"))
