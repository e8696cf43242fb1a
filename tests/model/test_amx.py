"""CPUs that announce AMX: used where it can be set up, left out where it cannot."""

import os
import subprocess
import sys

import pytest
import torch

from olmo_sparsity.model import amx
from olmo_sparsity.model.devices import has_bf16_units

USABLE = "processor\t: 0\ncpuid level\t: 32\nflags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8\n"
UNUSABLE = USABLE.replace(": 32", ": 28")
WITHOUT = UNUSABLE.replace(" amx_bf16 amx_tile amx_int8", "")
CASES = [(USABLE, False), (UNUSABLE, True), (WITHOUT, False), ("", False), (UNUSABLE.replace("cpuid", "other"), False)]


@pytest.mark.parametrize(("cpu_info", "expected"), CASES)
def test_amx_without_the_leaf_of_its_palettes_is_unusable(cpu_info, expected):
    assert amx.has_unusable_amx(cpu_info) is expected


def test_a_machine_without_the_file_is_taken_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setattr(amx, "CPU_INFO", tmp_path / "missing")
    assert not amx.has_unusable_amx()


@pytest.mark.parametrize(
    ("cpu_info", "given", "expected"),
    [(UNUSABLE, None, amx.WITHOUT_AMX), (UNUSABLE, "AVX2", "AVX2"), (USABLE, None, None), (USABLE, "AVX2", "AVX2")],
)
def test_onednn_is_limited_where_amx_is_unusable_and_nothing_was_chosen(
    cpu_info, given, expected, tmp_path, monkeypatch
):
    (tmp_path / "cpuinfo").write_text(cpu_info)
    monkeypatch.setattr(amx, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "")  # so that it is as before at the end, also where it was not set
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    if given is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", given)
    amx.leave_out_unusable_amx()
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == expected


@pytest.mark.parametrize(("cpu_info", "expected"), [(USABLE, True), (UNUSABLE, False)])
def test_a_cpu_has_bf16_units_where_its_amx_can_be_used(cpu_info, expected, tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(cpu_info)
    monkeypatch.setattr(amx, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True, raising=False)
    assert has_bf16_units(torch.device("cpu")) is expected


def test_a_product_in_bf16_ends_well_on_this_machine():
    product = (
        "import olmo_sparsity.model, torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert (a @ a)[0, 0] == 64"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    assert subprocess.run([sys.executable, "-c", product], env=environment, check=False).returncode == 0
