#!/bin/bash
# A job of Slurm on two hosts with eight GPUs each: sbatch slurm.sh python train.py
#
# Each rank gets the variables that torchrun would set, so sherd, torch.distributed and a C trainer
# all find their world. Without GPUs remove the line of the GPUs; data then moves between hosts by
# MPI: load the module of Open MPI, and let srun start the ranks with --mpi=pmix.
#SBATCH --job-name=sherd
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
set -eu

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
# Strangers who can reach the port do not become ranks.
SHERD_JOB_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export MASTER_ADDR MASTER_PORT SHERD_JOB_SECRET
export WORLD_SIZE=$SLURM_NTASKS OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

# The ranks save when the time of the job is almost over.
srun --kill-on-bad-exit=1 --label bash -c \
    'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID LOCAL_WORLD_SIZE=$((WORLD_SIZE / SLURM_NNODES)); exec "$@"' rank "$@" &
ranks=$!
trap 'kill -TERM $ranks' TERM
status=0
wait $ranks || status=$?
[ $status -le 128 ] || { status=0; wait $ranks || status=$?; }
exit $status
