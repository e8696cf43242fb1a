#!/usr/bin/env bash
# Measures with several processes on one machine; on GPUs, each process uses its own:
#
#     PROCESSES=4 scripts/influence-torchrun.sh --run runs/demo --k 8
#
# The arguments are those of `olmo-sparsity influence`. After an interruption run the same command again; it continues. On a
# CPU add training.threads=1, so that the processes do not compete for cores.
set -euo pipefail
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then  # print the comment above
    exec awk '!/^#/ { exit } !/^#[!S]/ { sub(/^# ?/, ""); print }' "$0"
fi

python=${PYTHON:-python}
processes=${PROCESSES:-2}

# Without the -- torchrun would take --run for one of its own options.
"$python" -m torch.distributed.run --standalone --nproc-per-node "$processes" -m -- olmo_sparsity influence "$@"

# All parts are measured now. Print the summary.
"$python" -m olmo_sparsity influence "$@"
