"""The scripts that draw figures: in an installed package a part of it, in a checkout the folder ``analysis/``."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any


def figure_script(name: str) -> Any:
    """Return a module of ``analysis``, such as ``figure4`` or ``every_figure``. It loads matplotlib."""
    inside = importlib.util.find_spec("olmo_sparsity.analysis") is not None
    return importlib.import_module(f"{'olmo_sparsity.analysis' if inside else 'analysis'}.{name}")
