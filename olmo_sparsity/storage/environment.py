"""Records what a result was computed with: versions, commit and machine."""

from __future__ import annotations

import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from olmo_sparsity import __version__

# Those on which numbers depend; the last three open pretrained models.
PACKAGES = (
    "ai2-olmo",
    "torch",
    "numpy",
    "datasets",
    "tokenizers",
    "pyarrow",
    "scipy",
    "transformers",
    "gguf",
    "accelerate",
)


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


def _cpu() -> str | None:
    """Return the product name of the CPU; None where the system does not tell it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else None


def environment() -> dict[str, Any]:
    """Return what a result may depend on besides its configuration, as it is written into manifests."""
    return {
        "olmo_sparsity": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {package: _version_of(package) for package in PACKAGES},
        "machine": platform.machine(),
        "cpu": _cpu(),
        "system": platform.system(),
    }
