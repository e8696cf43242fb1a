"""All that tests, and the processes that they start, see of the environment: what says where programs and folders are.

Importing this module removes the rest, so it is imported before libraries that read the environment.
"""

from __future__ import annotations

import os
from pathlib import Path

KEPT = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")
for _name in [name for name in os.environ if name not in KEPT and not name.startswith("PYTEST_")]:
    del os.environ[_name]
os.environ.update(
    OMP_WAIT_POLICY="PASSIVE",  # workers share the cores
    OPENBLAS_NUM_THREADS="1",
    PYTHONPATH=str(Path(__file__).parents[1]),
    MATPLOTLIBRC=os.devnull,  # not the settings of the user
)
