"""Devices: what they compute, and the memory of a CPU."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch
from started_commands import Started

from olmo_sparsity.config import TrainingConfig
from olmo_sparsity.model.devices import has_bf16_units, leave_out_unusable_amx, pick_device
from olmo_sparsity.train.step import resolve_precision


def faults_of_a_tensor() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.full((2**24,), 1.0)  # 64 MiB: by default above the size from which glibc returns memory
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def print_faults() -> None:
    """What a process does whose device was not picked yet: print the page faults of a tensor before that and after."""
    before = min(faults_of_a_tensor() for _ in range(32))
    pick_device("cpu")
    print(before, min(faults_of_a_tensor() for _ in range(32)))


@pytest.mark.needs("glibc")
def test_tensors_reuse_freed_memory(tmp_path: Path) -> None:
    """The pages of a freed tensor are those of the next one, without a page fault."""
    process = Started(print_faults, cwd=tmp_path)
    before, after = process.communicate()[0].split()
    assert int(before) >= 10 * max(1, int(after))


def test_a_gpu_that_emulates_bf16_has_no_units_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert not has_bf16_units(torch.device("cuda"))
    for has_units, auto in ((False, "fp32"), (True, "bf16")):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda found=has_units, **_: found)
        settings = [TrainingConfig(precision=name) for name in ("auto", "fp32", "bf16")]
        assert [resolve_precision(of, torch.device("cuda")) for of in settings] == [auto, "fp32", "bf16"]


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
