"""CPUs that announce AMX: used where it can be set up, left out where it cannot."""

import os
import subprocess
import sys

import pytest

from olmo_sparsity.model import amx

USABLE = "processor\t: 0\ncpuid level\t: 32\nflags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8\n"
UNUSABLE = USABLE.replace(": 32", ": 28")
WITHOUT = UNUSABLE.replace(" amx_bf16 amx_tile amx_int8", "")
CASES = [(USABLE, False), (UNUSABLE, True), (WITHOUT, False), ("", False), (UNUSABLE.replace("cpuid", "other"), False)]


@pytest.mark.parametrize(("cpu_info", "expected"), CASES)
def test_amx_without_the_leaf_of_its_palettes_is_unusable(cpu_info, expected):
    assert amx.has_unusable_amx(cpu_info) is expected


def test_a_product_in_bf16_ends_well_on_this_machine():
    product = (
        "import olmo_sparsity.model, torch; a = torch.ones(64, 64, dtype=torch.bfloat16); assert (a @ a)[0, 0] == 64"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    assert subprocess.run([sys.executable, "-c", product], env=environment, check=False).returncode == 0
