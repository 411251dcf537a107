#!/bin/sh
# Have the jobs of a node that has to leave save themselves: save-jobs.sh FOLDER JOBS [HOST]. As a
# setting of a VCM:
#
#     save = "/usr/local/sbin/save-jobs.sh /srv/saved {jobs}"                 (Slurm)
#     save = "/usr/local/sbin/save-jobs.sh /srv/saved {jobs} {hostname}"      (Grid Engine, as root@HOST by ssh)
#
# JOBS are numbers with commas between. A job that has a file FOLDER/JOB can save itself
# (resumable-job.sh): its shell gets SIGUSR1, and this program ends when each such file has been
# replaced, or removed. Other jobs are left alone, for the signal would end them. Jobs that are not
# saved within `save_time` are put back into the queue all the same.
set -u
folder=$1 host=${3:-} spool=${SPOOL:-/var/spool/gridengine/execd}

signal() {
    if [ -z "$host" ]; then
        scancel --batch --signal=USR1 "$1"
    else
        folder_of_jobs=$spool/${host%%.*}/active_jobs
        ${SSH:-ssh -o BatchMode=yes} "root@$host" \
            "cd $folder_of_jobs && kill -USR1 \$(cat $1/job_pid $1.*/job_pid 2>/dev/null)"
    fi
}

version() {
    stat -c '%i %.9Y' "$folder/$1" 2>/dev/null
}

for job in $(echo "$2" | tr , ' '); do
    (
        before=$(version "$job") && signal "$job" || exit 0
        while [ "$(version "$job")" = "$before" ]; do
            sleep 0.2
        done
    ) &
done
wait
