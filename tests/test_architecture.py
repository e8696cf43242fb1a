"""The layers of the package: allowed imports, cost of importing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import olmo_sparsity

PACKAGE = Path(olmo_sparsity.__file__).parent
ROOT = PACKAGE.parent


def modules(room: str) -> list[str]:
    """Return the dotted names of the modules in a folder of the package."""
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((PACKAGE / room).glob("**/*.py"))
        if path.stem != "__init__"
    ]


def test_rooms_import_only_from_rooms_below_them() -> None:
    """The contracts are in pyproject.toml: the order of the rooms, and what they must not import even indirectly."""
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"], capture_output=True, text=True, cwd=ROOT
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_room_is_in_the_contracts() -> None:
    contracts = (ROOT / "pyproject.toml").read_text().partition("[tool.importlinter]")[2]
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__", "__main__"}
    for name in rooms | files:
        assert name in contracts, name


def test_type_checkers_of_users_see_the_types() -> None:
    """By PEP 561 they read the annotations of a package with this file; the wheel takes the folder as it is."""
    assert (PACKAGE / "py.typed").read_bytes() == b""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '[tool.hatch.build.targets.wheel]\npackages = ["olmo_sparsity"]\n' in project
    assert "exclude" not in project.partition("[tool.hatch")[2].partition("[tool.ruff]")[0]
    assert '"Typing :: Typed",' in project


LIGHT_ROOMS = ("config", "selectors", "text", "statistics", "view", "cli")
TORCHLESS = [
    "olmo_sparsity.errors",
    "olmo_sparsity.files",
    "olmo_sparsity.tables",
    "olmo_sparsity.torchrun",
    "olmo_sparsity.measure.parts",
]
TORCHLESS += [name for room in LIGHT_ROOMS for name in modules(room)]
TORCHLESS += [f"analysis.{path.stem}" for path in (ROOT / "analysis").glob("*.py") if path.stem[0] != "_"]


def test_what_only_some_selectors_and_figures_need_is_not_imported() -> None:
    """Each takes seconds to import, which every measurement would take longer to begin."""
    code = (
        "import sys, olmo_sparsity.train.loop, olmo_sparsity.measure.influence\n"
        "assert not {'sklearn', 'matplotlib'} & set(sys.modules)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def test_models_are_measured_without_olmo() -> None:
    """OLMo trains, and reads the checkpoints of runs; whoever measures other models need not install it."""
    code = "import sys; sys.modules['olmo'] = None; import olmo_sparsity.api, olmo_sparsity.measure.influence"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr


def test_what_help_does_not_need_is_not_imported() -> None:
    """Neither a page of help nor a mistake in a flag waits for them."""
    code = (
        "import sys, olmo_sparsity.cli.app; print(sorted({'omegaconf', 'pandas', 'tqdm', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (result.returncode, result.stdout.strip()) == (0, "[]"), result.stderr


def test_neither_torch_nor_olmo_is_imported() -> None:
    """One interpreter imports the modules one after another. The error names the first that imports one of the packages."""
    code = (
        "import sys, importlib\n"
        f"for name in {TORCHLESS}:\n"
        "    importlib.import_module(name)\n"
        "    imported = [m for m in ('torch', 'olmo', 'transformers') if m in sys.modules]\n"
        "    assert not imported, (name, imported)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
