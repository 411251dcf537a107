#!/bin/bash
# A job that saves itself, and goes on where it was when it runs again, on whichever node:
#
#     sbatch resumable-job.sh 3600        (Slurm)
#     qsub resumable-job.sh 3600          (Grid Engine)
#
# It saves itself when it is told to (SIGUSR1), when it is stopped (SIGTERM), and every hundred
# steps, for a node that breaks tells nobody. What it has saved is one file, named by the job, in a
# folder that all nodes see.
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@60
#$ -S /bin/bash
#$ -cwd
#$ -r y

if [ -n "${SLURM_JOB_ID:-}" ]; then
    job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID} job=${job:-$SLURM_JOB_ID}
else
    job=$JOB_ID${SGE_TASK_ID:+.$SGE_TASK_ID} job=${job%.undefined}
fi
folder=${SAVED:-$PWD/saved} steps=${1:?how many steps} step=0
saved=$folder/$job
mkdir -p "$folder"

save() {  # as a whole, or not at all
    echo "$step" >"$saved.new" && mv "$saved.new" "$saved"
}

[ ! -e "$saved" ] || step=$(cat "$saved")
trap save USR1
trap 'save; exit 143' TERM
save  # the file says that this job can save itself from now on: see save-jobs.sh
echo "$(hostname) begins with step $step"

while [ "$step" -lt "$steps" ]; do
    sleep 1  # one step of the work; the shell heeds signals between steps
    step=$((step + 1))
    [ $((step % 100)) -ne 0 ] || save
done
echo "$(hostname) has done all $steps steps"
rm -f "$saved"
