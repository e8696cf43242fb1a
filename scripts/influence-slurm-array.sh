#!/usr/bin/env bash
#SBATCH --job-name=influence
#SBATCH --array=0-7
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --output=slurm-%A_%a.log
#
# Measures in an array job. Each task measures one share of the windows:
#
#     sbatch --array=0-31 scripts/influence-slurm-array.sh --run runs/demo --k 8
#
# The arguments are those of `olmo-sparsity influence`. Run `train` and `prepare` before. The array must begin at 0. After a
# failure submit the same array again: finished tasks end at once, and the others measure what is missing. With PROCESSES=4
# each task starts four processes, which share the GPUs of its machine.
set -euo pipefail
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then  # print the comment above
    exec awk '!/^#/ { exit } !/^#[!S]/ { sub(/^# ?/, ""); print }' "$0"
fi

python=${PYTHON:-python}
processes=${PROCESSES:-1}
shard=$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT

if [ "$processes" -gt 1 ]; then
    # Without the -- torchrun would take --run for one of its own options.
    exec "$python" -m torch.distributed.run --standalone --nproc-per-node "$processes" \
        -m -- olmo_sparsity influence --shard "$shard" "$@"
fi
exec "$python" -m olmo_sparsity influence --shard "$shard" "$@"
