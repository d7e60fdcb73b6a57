#!/bin/bash
#SBATCH --job-name=rankfold
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
# sbatch examples/slurm.sh DATA RUN [ARGUMENT ...]: one torchrun on each machine, one process for each GPU (without any,
# one). DATA and RUN have to be on a disk that all machines see; more arguments go to rankfold train. Two minutes before
# the time is up a checkpoint is written; submit again to go on.
set -euo pipefail
data=$1 run=$2
shift 2
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)  # head would end scontrol by SIGPIPE
start=(--recipe small-lhmm)
[ -f "$run/recipe.toml" ] && start=(--resume)
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node "${SLURM_GPUS_ON_NODE:-1}" --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$first:${RANKFOLD_PORT:-29500}" --rdzv-id "$SLURM_JOB_ID" \
    --log-dir "$run.logs" --redirects 3 -m rankfold train "${start[@]}" --data "$data" --out "$run" "$@"
