"""How long calls take: each is waited for, and several are timed in turn, so that all meet the same machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

Name = TypeVar("Name")


def timed(call: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds that a call takes until the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def timed_in_turn(
    calls: Mapping[Name, Callable[[], Any]], *, repeats: int, device: torch.device
) -> dict[Name, list[float]]:
    """Return the seconds of each call, every repeat; the calls take turns. They are warm already."""
    seconds: dict[Name, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            seconds[name].append(timed(call, device))
    return seconds
