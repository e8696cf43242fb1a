"""A folder as a user has one: text, a trained run, models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from guard_commands import DATA


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``corpus``, the run ``runs/guard``, and models; commands may add to it."""
    folder = tmp_path_factory.mktemp("guard")
    for name in ("corpus", "llama", "sliding", "synthetic", "runs", "tables"):
        shutil.copytree(DATA / name, folder / name)
    for name in ("llama.gguf", "guard.yaml"):
        shutil.copy(DATA / name, folder / name)
    lines = (DATA / "guard.yaml").read_text().splitlines(keepends=True)
    (folder / "no-chunks.yaml").write_text("".join(line for line in lines if not line.startswith("pose:")))
    shutil.copytree(DATA / "run", folder / "runs" / "guard", symlinks=True)
    return folder
