#!/usr/bin/env bash
#SBATCH --job-name=train
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
#
# Trains on all GPUs of one or more machines, and requeues itself until the run is finished:
#
#     sbatch --nodes=2 scripts/train-slurm.sh --run runs/big --config configs/c4-64-128.yaml
#
# The arguments are those of `olmo-sparsity train`. Run `prepare` on one machine before. Five minutes before its time limit the
# job receives USR1: training saves a checkpoint and ends, and the job is requeued and resumes from there. If a machine fails,
# training resumes from the last checkpoint. PROCESSES is the number of processes on each machine (default 8).
set -euo pipefail
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then  # print the comment above
    exec awk '!/^#/ { exit } !/^#[!S]/ { sub(/^# ?/, ""); print }' "$0"
fi

python=${PYTHON:-python}
processes=${PROCESSES:-8}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# Seconds between TERM and KILL. The default of torchrun, 30, is too short for writing a large model.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240

requeue() {
    echo "the time limit is near: saving a checkpoint, then requeueing"
    # This signals what srun started, but not this script, and not srun, which would kill everything at once. torchrun
    # forwards the signal to its processes; they save and end.
    scancel --signal=TERM "$SLURM_JOB_ID" || true
    wait "$training" || true
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap requeue USR1

# Drop --overwrite when the job was requeued: it must resume.
arguments=()
for argument in "$@"; do
    [ "$argument" = --overwrite ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || arguments+=("$argument")
done

# Recent versions of srun do not inherit this from sbatch, and would give all processes of a machine a single core.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"

# Without the -- torchrun would take --run for one of its own options.
srun "$python" -m torch.distributed.run --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$processes" \
    --rdzv-backend c10d --rdzv-endpoint "$head:$((20000 + SLURM_JOB_ID % 20000))" --rdzv-id "$SLURM_JOB_ID" \
    -m -- olmo_sparsity train ${arguments[@]+"${arguments[@]}"} &
training=$!
wait "$training"
