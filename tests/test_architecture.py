"""The layers of the package: allowed imports, cost of importing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "olmo_sparsity"
LIGHT_ROOMS = ("config", "selectors", "text", "statistics", "view", "cli")
TORCHLESS = [
    "olmo_sparsity.errors",
    "olmo_sparsity.files",
    "olmo_sparsity.tables",
    "olmo_sparsity.torchrun",
    "olmo_sparsity.measure.parts",
]
for path in sorted((*PACKAGE.glob("*/**/*.py"), *(ROOT / "analysis").glob("[!_]*.py"))):
    module = path.relative_to(ROOT).with_suffix("")
    if module.parts[0] == "analysis" or (module.parts[1] in LIGHT_ROOMS and path.stem != "__init__"):
        TORCHLESS.append(".".join(module.parts))


def run(*command: str | Path) -> None:
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_rooms_import_only_from_rooms_below_them() -> None:
    """The contracts are in pyproject.toml: the order of the rooms, and what they must not import even indirectly."""
    run(Path(sys.executable).with_name("lint-imports"), "--no-cache")


def test_type_checkers_of_users_see_the_types() -> None:
    assert (PACKAGE / "py.typed").read_bytes() == b""  # PEP 561


def test_help_waits_for_no_library_and_what_shows_results_for_no_model() -> None:
    """One interpreter imports the modules one after another. The error names the first that imports what it must not."""
    code = f"""
import sys, importlib
import olmo_sparsity.cli.app
assert not {{"omegaconf", "pandas", "tqdm"}} & set(sys.modules)
for name in {TORCHLESS}:
    importlib.import_module(name)
    imported = [module for module in ("torch", "olmo", "transformers") if module in sys.modules]
    assert not imported, (name, imported)
"""
    run(sys.executable, "-c", code)


def test_measuring_needs_no_olmo_and_waits_for_no_library_of_some_selectors_and_figures() -> None:
    """OLMo trains, and reads the checkpoints of runs; whoever measures other models need not install it."""
    code = """
import sys
sys.modules["olmo"] = None
import olmo_sparsity.api, olmo_sparsity.measure.influence
assert not {"sklearn", "matplotlib"} & set(sys.modules)
"""
    run(sys.executable, "-c", code)
