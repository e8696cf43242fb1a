"""``olmo_sparsity.model.devices``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from olmo_sparsity.model.devices import available_bytes, has_bf16_units

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


def test_tensors_reuse_freed_memory():
    """The pages of a freed tensor are those of the next one, without a page fault."""
    printed = subprocess.run(
        [sys.executable, "-c", FAULTS_OF_TENSORS], check=True, capture_output=True, text=True
    ).stdout
    before, after, kept = printed.split()
    if kept == "False":
        pytest.skip("the allocator is not that of glibc 2.35 or later")
    assert int(before) >= 10 * max(1, int(after))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/proc/meminfo": "MemTotal:  9 kB\nMemAvailable:    7000 kB\n"}, 7000 * 1024),
        ({"/proc/meminfo": "MemAvailable: 7000 kB", "/sys/fs/cgroup/memory.max": "5000\n"}, 5000),
        ({"/proc/meminfo": "MemAvailable: 3 kB", "/sys/fs/cgroup/memory.max": "5000\n"}, 3 * 1024),
        ({"/proc/meminfo": "MemAvailable: 3 kB", "/sys/fs/cgroup/memory.max": "max\n"}, 3 * 1024),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "400\n"}, 400),
        ({}, None),
    ],
)
def test_free_memory_is_what_the_machine_and_the_control_group_leave(
    files: dict[str, str], expected: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are not there, and a control group without a limit, say nothing."""

    def read(path: Path) -> str:
        if str(path) not in files:
            raise FileNotFoundError(str(path))
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read)
    found = available_bytes(torch.device("cpu"))
    monkeypatch.undo()
    assert found == expected


def test_free_memory_of_a_gpu_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000 + device.index, 9000))
    assert available_bytes(torch.device("cuda", 3)) == 1003


def test_a_gpu_that_emulates_bf16_has_no_units_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert not has_bf16_units(torch.device("cuda"))
