"""The record of what produced a result: versions, commit and machine."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from olmo_sparsity import __version__

PACKAGES = ("ai2-olmo", "torch", "numpy", "datasets", "tokenizers", "pyarrow", "scipy")


def _commit() -> str | None:
    """The commit of the checkout that the package runs from, marked where it was changed; None where it is none."""
    here = Path(__file__).parents[2]
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
