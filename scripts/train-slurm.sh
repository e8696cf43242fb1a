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
# Trains on all GPUs of one or more machines, and starts itself again until the run is finished:
#
#     sbatch --nodes=2 scripts/train-slurm.sh --run runs/big --config configs/c4-64-128.yaml
#
# The arguments are those of `olmo-sparsity train`; prepare the text first, on one machine. Five minutes before its time is
# over the job gets USR1: training saves and ends, and the job goes back into the queue, to continue from there. A machine
# that fails, too, costs what came after the last checkpoint. PROCESSES is the number of processes on a machine (8).
set -euo pipefail

python=${PYTHON:-python}
processes=${PROCESSES:-8}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# Seconds from TERM to KILL: torchrun's own 30 are too few to write a large model.
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=240

requeue() {
    echo "time is nearly over: saving, then back into the queue"
    # To what srun started, not to this script nor to srun, which would kill at once; torchrun passes it on to each process,
    # which saves and ends.
    scancel --signal=TERM "$SLURM_JOB_ID" || true
    wait "$training" || true
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap requeue USR1

# --overwrite is for the first time: a job that comes back goes on.
arguments=()
for argument in "$@"; do
    [ "$argument" = --overwrite ] && [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || arguments+=("$argument")
done

# Newer srun does not take it over from sbatch, and would give all processes of a machine one core.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"

# The lone -- keeps torchrun from taking --run for one of its own options.
srun "$python" -m torch.distributed.run --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node "$processes" \
    --rdzv-backend c10d --rdzv-endpoint "$head:$((20000 + SLURM_JOB_ID % 20000))" --rdzv-id "$SLURM_JOB_ID" \
    -m -- olmo_sparsity train ${arguments[@]+"${arguments[@]}"} &
training=$!
wait "$training"
