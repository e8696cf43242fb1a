#!/usr/bin/env bash
# Measures with several processes of one machine, one a GPU where there are GPUs:
#
#     PROCESSES=4 scripts/influence-torchrun.sh --run runs/demo --k 8
#
# The arguments are those of `olmo-sparsity influence`. Stopped, the same command goes on. Several processes on a CPU
# want training.threads=1 among the arguments.
set -euo pipefail

python=${PYTHON:-python}
processes=${PROCESSES:-2}

# The lone -- keeps torchrun from taking --run for one of its own options.
"$python" -m torch.distributed.run --standalone --nproc-per-node "$processes" -m -- olmo_sparsity influence "$@"

# All parts are there now, and one process shows the numbers.
"$python" -m olmo_sparsity influence "$@"
