"""Devices: what they compute, and the memory of a CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from olmo_sparsity.model.devices import has_bf16_units, leave_out_unusable_amx

FAULTS_OF_TENSORS = """
import resource
import torch
from olmo_sparsity.model.devices import pick_device

def faults_of_a_tensor():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.full((2**24,), 1.0)  # 64 MiB: by default above the size from which glibc returns memory
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(min(faults_of_a_tensor() for _ in range(32)))
pick_device("cpu")
print(min(faults_of_a_tensor() for _ in range(32)))
"""


@pytest.mark.needs("glibc")
def test_tensors_reuse_freed_memory() -> None:
    """The pages of a freed tensor are those of the next one, without a page fault."""
    command = [sys.executable, "-c", FAULTS_OF_TENSORS]
    before, after = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert int(before) >= 10 * max(1, int(after))


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
        machine.setattr(Path, "read_text", lambda path, **_: cpu_info if str(path) == "/proc/cpuinfo" else 1 / 0)
        found = leave_out_unusable_amx.__wrapped__()
    assert found == expected == ("ONEDNN_MAX_CPU_ISA" in os.environ)
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
