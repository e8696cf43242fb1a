"""Records what a result was computed with: versions, commit and machine."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from olmo_sparsity import __version__

PACKAGES = ("ai2-olmo", "torch", "numpy", "datasets", "tokenizers", "pyarrow", "scipy")


def _commit() -> str | None:
    """Return the commit of the checkout that the package runs from, with ``-dirty`` appended if files were changed.

    Return None for an installed package and where git is not available.
    """
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """Return what a result may depend on besides its configuration, as it is written into manifests."""
    return {
        "olmo_sparsity": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {package: _version_of(package) for package in PACKAGES},
        "machine": platform.machine(),
        "system": platform.system(),
    }
