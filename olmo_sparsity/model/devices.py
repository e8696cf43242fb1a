"""Devices: choose one, name it, and what it computes fast."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import sys
from pathlib import Path

import torch

from olmo_sparsity.errors import UserError
from olmo_sparsity.torchrun import current_process

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of glibc's mallopt (malloc.h)
TILE_LEAF = 0x1D  # the leaf of CPUID that lists the palettes of AMX's tiles


@functools.cache
def leave_out_unusable_amx() -> bool:
    """Keep oneDNN from AMX on a CPU that announces it, but whose CPUID ends too early to set it up; return whether it is so.

    Otherwise the first product of bf16 matrices is an illegal instruction (https://github.com/uxlfoundation/oneDNN/issues/5689).
    """
    path = Path("/proc/cpuinfo")
    cpu_info = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    last_leaf = re.search(r"^cpuid level\s*:\s*(\d+)$", cpu_info, re.MULTILINE)
    unusable = re.search(r"\bamx_tile\b", cpu_info) and last_leaf and int(last_leaf[1]) < TILE_LEAF
    if unusable:
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
    return bool(unusable)


def has_bf16_units(device: torch.device) -> bool:
    """Whether the device has units for bf16 matrices: a GPU, or a CPU with AMX; AVX-512 has half the speed of fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu._is_amx_tile_supported()) and not leave_out_unusable_amx()


def pick_device(name: str) -> torch.device:
    """The device for ``training.device``: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``.

    Under ``torchrun`` each process has its own GPU; processes share GPUs if a machine has fewer.
    """
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if num_gpus else "cpu"
    if name not in ("cpu", *(("cuda",) if num_gpus else ()), *(f"cuda:{number}" for number in range(num_gpus))):
        choices = "auto, cpu, or with a GPU cuda or cuda:N"
        raise UserError(f"training.device = {name}: this machine has no such device; choose {choices}")
    if name == "cpu":
        _keep_freed_memory()
    elif name == "cuda" and current_process().local_world_size > 1:
        torch.cuda.set_device(current_process().local_rank % num_gpus)
    return torch.device(name)


def _keep_freed_memory() -> None:
    """From now on, let tensors of up to a GiB reuse the memory of freed ones, with the allocator of glibc.

    Otherwise the system zeroes the pages of each anew: a tenth of the CPU time of a training step, more in bf16.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for size in (2**25, 2**30):  # glibc before 2.35 takes the first alone
            mallopt(M_MMAP_THRESHOLD, size)
        mallopt(M_TRIM_THRESHOLD, -1)


def device_name(device: torch.device) -> str:
    """``cpu``, or the product name of the GPU."""
    return str(device) if device.type == "cpu" else torch.cuda.get_device_name(device)


def attention_elements(device: torch.device) -> int:
    """How many weights of attention, fp32, to compute at once: what the cache of a CPU holds, or keeps a GPU busy."""
    return 2**19 if device.type == "cpu" else 2**27
