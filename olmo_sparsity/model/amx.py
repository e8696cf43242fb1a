"""AMX, the matrix units of recent Intel CPUs, on virtual machines that announce them and hide how to set them up."""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Optional

CPU_INFO = Path("/proc/cpuinfo")
TILE_LEAF = 0x1D  # the leaf of CPUID that lists the palettes of tiles
WITHOUT_AMX = "AVX512_CORE_FP16"  # the most that oneDNN may use on a CPU without AMX


def has_unusable_amx(cpu_info: Optional[str] = None) -> bool:
    """Return True if the CPU announces AMX, but its CPUID ends before the leaf that oneDNN needs to set it up.

    oneDNN does not notice: every process ends with an illegal instruction at its first product of bf16 matrices
    (https://github.com/uxlfoundation/oneDNN/issues/5689).

    Args:
        cpu_info: the text of ``/proc/cpuinfo``; None reads it. Without such a file (not Linux) the answer is False.
    """
    cpu_info = _text_of(CPU_INFO) if cpu_info is None else cpu_info
    last_leaf = re.search(r"^cpuid level\s*:\s*(\d+)$", cpu_info, re.MULTILINE)
    return bool(re.search(r"\bamx_tile\b", cpu_info)) and last_leaf is not None and int(last_leaf[1]) < TILE_LEAF


@cache  # the processor stays the same, and its file is long where there are many cores
def _text_of(path: Path) -> str:
    """Return the text of a file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def leave_out_unusable_amx() -> None:
    """Keep oneDNN from AMX where it cannot be used, unless ``ONEDNN_MAX_CPU_ISA`` is already set.

    oneDNN reads the variable at its first operation, so this takes effect after torch was imported, too.
    """
    if has_unusable_amx():
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", WITHOUT_AMX)
