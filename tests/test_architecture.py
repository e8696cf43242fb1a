"""The order of the rooms, what users' type checkers see, and what the first command of a user waits for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*command: str | Path) -> None:
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_rooms_import_only_from_rooms_below_them() -> None:
    """The contracts are in pyproject.toml: the order of the rooms, and which of them never reach torch, olmo or transformers."""
    run(Path(sys.executable).with_name("lint-imports"), "--no-cache")


def test_type_checkers_of_users_see_the_types() -> None:
    assert (ROOT / "olmo_sparsity" / "py.typed").read_bytes() == b""  # PEP 561


def test_help_waits_for_no_library_and_commands_that_show_results_for_no_model() -> None:
    """What measuring waits for is in ``test_convert.py``."""
    code = """
import sys
import olmo_sparsity.cli.app
assert not {"omegaconf", "pandas", "tqdm"} & set(sys.modules)
from olmo_sparsity.cli import measuring, options, training, viewing
from olmo_sparsity.measure import parts
assert not {"torch", "olmo", "transformers"} & set(sys.modules)
"""
    run(sys.executable, "-c", code)
