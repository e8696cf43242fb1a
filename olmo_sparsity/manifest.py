"""What produced a run: config, commit, versions, device, seeds, hashes of inputs, status."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from olmo_sparsity import __version__
from olmo_sparsity.config import UserError

PACKAGES = ("ai2-olmo", "torch", "numpy", "datasets", "tokenizers", "pyarrow", "scipy")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of ours.

    Raises:
        UserError: it is missing, or not what was written.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {path.parent} is not what it should be, or was cut short") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{path}: not valid JSON, the file is damaged") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: a JSON object was expected")
    return value


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents.

    Raises:
        UserError: it cannot be made, a file is in the way, say.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot make this folder ({error.strerror})") from None


def holds(folder: Path, kind: str) -> bool:
    """Is this folder one of ours, of this kind (``run``, ``influence``, ``tokens``); False where nothing is there yet.

    Raises:
        UserError: something else is there, which is then neither written to nor deleted.
    """
    if (folder / "manifest.json").is_file():
        found = read_json(folder / "manifest.json").get("kind")
        if found == kind:
            return True
        raise UserError(
            f"{folder}: this is no {kind} folder of olmo-sparsity (its manifest says {found!r}); choose another"
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: this is a file, where a {kind} folder was expected")
    if folder.exists() and any(not path.name.endswith(".partial") for path in folder.iterdir()):
        raise UserError(f"{folder}: this folder exists and is no {kind} folder of olmo-sparsity; choose another")
    return False


def empty_folder(folder: Path) -> None:
    """Deletes what one of our folders holds, all but its manifest. Cut short, what is left is an unfinished folder of
    ours, for its manifest says so from the beginning."""
    write_json(folder / "manifest.json", {**read_json(folder / "manifest.json"), "status": "running"})
    for path in sorted(folder.iterdir(), reverse=True):  # windows before the tables that their parts vouch for
        if path.name == "manifest.json":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _commit() -> str | None:
    """The commit of the checkout that the package runs from, marked where it was changed; None where it is none."""
    here = Path(__file__).parent.parent
    if not (here / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None


def environment() -> dict[str, Any]:
    """Versions, commit and machine: what a result may depend on besides its configuration."""
    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "olmo_sparsity": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": versions,
        "machine": platform.machine(),
        "system": platform.system(),
    }
