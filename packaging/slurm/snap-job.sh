#!/bin/sh
# Snaps every node of a running Slurm job, whoever runs it being in the group freezeframe-capture there:
#
#     snap-job.sh JOB [DIRECTORY]
#
# One file per node; each node's verdict in five lines. The step shares the job's resources and needs none of its own.
set -eu
job="$1"
directory="${2:-.}"
mkdir -p "$directory"
exec srun --jobid="$job" --overlap --ntasks-per-node=1 --mem=0 --gres=none --label --chdir="$directory" \
    sh -c 'freezeframe --quiet snap --output brief -o "$(hostname)-job-$SLURM_JOB_ID.ffz"'
