"""Devices: choose one, name it, and test whether it has bf16 units."""

from __future__ import annotations

import ctypes
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Optional

import torch

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.amx import has_unusable_amx
from olmo_sparsity.torchrun import current_process

# Parameters of glibc's mallopt (malloc.h), and the block sizes from which freed memory still goes back to the system. glibc
# before 2.35 takes none above the second.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
RETURNED_BYTES = (2**30, 2**25)
# Weights of attention, fp32, that are computed at once: 2 MiB, which the cache of a CPU holds; 512 MiB of a GPU, on which
# starting a kernel costs more than what a small one computes.
ATTENTION_ELEMENTS = {"cpu": 2**19, "cuda": 2**27}


def has_bf16_units(device: torch.device) -> bool:
    """Return True if the device has units that multiply bf16 matrices: a GPU, or a CPU with AMX.

    A CPU with the bf16 instructions of AVX-512 alone does not count: there, bf16 was measured at half the speed of fp32.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    probe: Any = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return probe is not None and bool(probe()) and not has_unusable_amx()


def pick_device(name: str) -> torch.device:
    """Return the device for ``training.device``: ``auto`` (a GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``.

    On a CPU, freed memory stays with the process from now on.

    Raises:
        UserError: this machine has no such device.
    """
    device = _device_of(name)
    if device.type == "cpu":
        keep_freed_memory()
    return device


def _device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    num_gpus = torch.cuda.device_count() if kind == "cuda" and torch.cuda.is_available() else 0
    if name != "cpu" and not (num_gpus and (name == "cuda" or (number.isdecimal() and int(number) < num_gpus))):
        raise UserError(
            f"training.device = {name}: this machine has no such device; choose auto, cpu, or with a GPU cuda or cuda:N"
        )
    return torch.device(name)


def keep_freed_memory() -> bool:
    """Let tensors of up to a GiB reuse the memory of freed ones, with the allocator of glibc; return whether it took effect.

    By default glibc returns large blocks to the system and asks for new ones, whose pages the system must zero: a tenth of the
    CPU time of a training step, more in bf16.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    return any(mallopt(M_MMAP_THRESHOLD, size) for size in RETURNED_BYTES) and bool(mallopt(M_TRIM_THRESHOLD, -1))


def device_name(device: torch.device) -> str:
    """Return ``cpu``, or the product name of the GPU."""
    return str(device) if device.type == "cpu" else torch.cuda.get_device_name(device)


def attention_elements(device: torch.device) -> int:
    """Return how many weights of attention to compute at once on a device."""
    return ATTENTION_ELEMENTS.get(device.type, ATTENTION_ELEMENTS["cuda"])


def available_bytes(device: torch.device) -> Optional[int]:
    """Return how much memory a device has free; of a CPU, within the limit of this process's control group. None: not known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = []
    for path, pattern, unit in (
        ("/proc/meminfo", r"MemAvailable:\s+(\d+) kB", 1024),
        ("/sys/fs/cgroup/memory.max", r"(\d+)\s*", 1),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", r"(\d+)\s*", 1),
    ):
        with suppress(OSError):
            if match := re.search(pattern, Path(path).read_text()):
                found.append(int(match[1]) * unit)
    return min(found, default=None)


def take_own_gpu(device: str) -> None:
    """Under ``torchrun``, make ``cuda`` mean the GPU of this process.

    Processes share GPUs if a machine has fewer GPUs than processes.

    Args:
        device: ``training.device`` of the configuration; ``cpu`` and ``cuda:N`` change nothing.
    """
    process = current_process()
    if process.local_world_size > 1 and device in ("auto", "cuda") and torch.cuda.is_available():
        torch.cuda.set_device(process.local_rank % torch.cuda.device_count())
