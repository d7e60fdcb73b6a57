#!/bin/bash
#SBATCH --job-name=rankfold
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@120
# sbatch examples/slurm.sh DATA RUN: one torchrun on each machine, one process for each GPU. DATA and RUN have to be on
# a disk that all machines see. Two minutes before the time is up a checkpoint is written; submit again to go on.
set -euo pipefail
data=$1 run=$2
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
resume=()
[ -f "$run/recipe.toml" ] && resume=(--resume)
[ -f "$run/recipe.toml" ] || resume=(--recipe small-lhmm)
srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 4 --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint "$first:29500" --rdzv-id "$SLURM_JOB_ID" --log-dir "$run.logs" --redirects 3 \
    -m rankfold train "${resume[@]}" --data "$data" --out "$run"
