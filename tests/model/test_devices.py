"""``olmo_sparsity.model.devices``."""

import subprocess
import sys

import pytest

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
