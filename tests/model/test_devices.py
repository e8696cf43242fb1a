"""Devices: what they compute, and the memory of a CPU."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch
from started_commands import Started

from olmo_sparsity.config import TrainingConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.devices import device_name, has_bf16_units, leave_out_unusable_amx, pick_device
from olmo_sparsity.torchrun import ProcessInfo, current_process
from olmo_sparsity.train.parallel import device_of_process
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
    for has_tiles in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda found=has_tiles: found)
        assert has_bf16_units(torch.device("cpu")) == (has_tiles and not leave_out_unusable_amx())


def test_each_process_of_torchrun_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    gpus = {
        "is_available": lambda: True, "device_count": lambda: 2, "get_device_name": lambda _: "H200", "set_device": taken.append,
    }  # fmt: skip
    for name, found in gpus.items():
        monkeypatch.setattr(torch.cuda, name, found)
    assert [str(pick_device(name)) for name in ("auto", "cuda", "cuda:1", "cpu")] == ["cuda", "cuda", "cuda:1", "cpu"]
    assert [device_name(torch.device(name)) for name in ("cuda", "cpu")] == ["H200", "cpu"] and not taken
    with pytest.raises(UserError, match="cuda:2: this machine has no such device"):
        pick_device("cuda:2")
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    pick_device("cuda")
    second = current_process()
    for process, name, own in ((second, "cuda", "cuda:1"), (second, "cpu", "cpu"), (ProcessInfo(), "cuda", "cuda")):
        assert str(device_of_process(torch.device(name), process)) == own
    assert taken == [1, 1]
    with pytest.raises(UserError, match=r"3 processes and 2 GPUs on this machine: .* smaller --nproc-per-node"):
        device_of_process(torch.device("cuda"), ProcessInfo(2, 3, 2, 3))


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
