"""Devices: which one to use, what it is called, and whether it computes in bf16."""

from __future__ import annotations

from typing import Any

import torch

from olmo_sparsity.errors import UserError
from olmo_sparsity.torchrun import current_process


def supports_bf16(device: torch.device) -> bool:
    """Does the device multiply bf16 matrices in hardware (on a CPU: AVX-512 bf16 or AMX)."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    probes: list[Any] = [
        getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    ]
    return any(probe() for probe in probes if probe is not None)


def pick_device(name: str) -> torch.device:
    """``auto`` is a GPU where there is one.

    Raises:
        UserError: there is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    there = torch.cuda.device_count() if kind == "cuda" and torch.cuda.is_available() else 0
    if name != "cpu" and not (there and (name == "cuda" or (number.isdecimal() and int(number) < there))):
        raise UserError(f"training.device = {name}: there is no such device here; auto, cpu, cuda or cuda:N")
    return torch.device(name)


def device_name(device: torch.device) -> str:
    """``cpu``, or what the GPU calls itself."""
    return str(device) if device.type == "cpu" else torch.cuda.get_device_name(device)


def take_own_gpu(device: str) -> None:
    """Under torchrun, makes ``cuda`` mean this process's own GPU; where there are fewer of them than processes, they
    share."""
    place = current_process()
    if place.local_count > 1 and device in ("auto", "cuda") and torch.cuda.is_available():
        torch.cuda.set_device(place.local_rank % torch.cuda.device_count())
