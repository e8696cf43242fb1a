"""Devices: what they compute, and the memory of a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from olmo_sparsity.model.devices import available_bytes, has_bf16_units, leave_out_unusable_amx

FAULTS_OF_TENSORS = """
import resource
import torch
from olmo_sparsity.model.devices import keep_freed_memory, pick_device

def faults_of_a_tensor():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.full((2**24,), 1.0)  # 64 MiB: by default above the size from which glibc returns memory
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(min(faults_of_a_tensor() for _ in range(32)))
pick_device("cpu")
print(min(faults_of_a_tensor() for _ in range(32)))
print(keep_freed_memory())
"""


def test_tensors_reuse_freed_memory() -> None:
    """The pages of a freed tensor are those of the next one, without a page fault."""
    printed = subprocess.run(
        [sys.executable, "-c", FAULTS_OF_TENSORS], check=True, capture_output=True, text=True
    ).stdout
    before, after, kept = printed.split()
    if kept == "False":
        pytest.skip("the allocator is not that of glibc 2.35 or later")
    assert int(before) >= 10 * max(1, int(after))


def files(monkeypatch: pytest.MonkeyPatch, texts: dict[str, str]) -> None:
    """Let a machine have these files of the system, and no others."""

    def read(path: Path, **_: str) -> str:
        if str(path) not in texts:
            raise FileNotFoundError(str(path))
        return texts[str(path)]

    monkeypatch.setattr(Path, "read_text", read)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"/proc/meminfo": "MemTotal:  9 kB\nMemAvailable:    7000 kB\n"}, 7000 * 1024),
        ({"/proc/meminfo": "MemAvailable: 7000 kB", "/sys/fs/cgroup/memory.max": "5000\n"}, 5000),
        ({"/proc/meminfo": "MemAvailable: 3 kB", "/sys/fs/cgroup/memory.max": "max\n"}, 3 * 1024),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "400\n"}, 400),
        ({}, None),
    ],
)
def test_free_memory_is_what_the_machine_and_the_control_group_leave(
    texts: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as machine:
        files(machine, texts)
        found = available_bytes(torch.device("cpu"))
    assert found == expected
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 + device.index, 9000))
    assert available_bytes(torch.device("cuda", 3)) == 1003


def test_a_gpu_that_emulates_bf16_has_no_units_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert not has_bf16_units(torch.device("cuda"))


USABLE = "processor\t: 0\ncpuid level\t: 32\nflags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8\n"
UNUSABLE = USABLE.replace(": 32", ": 28")


@pytest.mark.parametrize(
    ("cpu_info", "expected"),
    [(USABLE, False), (UNUSABLE, True), (UNUSABLE.replace(" amx_tile", ""), False), ("", False)],
)
def test_amx_without_the_leaf_of_its_palettes_is_left_out(
    cpu_info: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    with monkeypatch.context() as machine:
        files(machine, {"/proc/cpuinfo": cpu_info})
        found = leave_out_unusable_amx.__wrapped__()
    assert found == expected == ("ONEDNN_MAX_CPU_ISA" in os.environ)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
