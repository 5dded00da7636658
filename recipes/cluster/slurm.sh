#!/bin/bash
# Train under Slurm: one task on each node, which starts a rank for each GPU.
#
#   sbatch --nodes 2 recipes/cluster/slurm.sh train --source a.en --target a.de \
#       --out /shared/run --set compute.layout=fsdp
#
# Two minutes before the time is up the run is told to stop: it saves, and `sbatch … train --resume /shared/run`
# goes on, on as many nodes as there are then.
#SBATCH --job-name=clearhead
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --signal=TERM@120
set -eu
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

export HEAD="$head" HOSTS="$SLURM_NNODES" RUN="$SLURM_JOB_ID" RANKS="${RANKS:-gpu}"
exec srun --kill-on-bad-exit=1 "${CLUSTER:-recipes/cluster}/hosts.sh" "$@"
