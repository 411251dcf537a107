#!/bin/sh
# Prepare a node that joins, before it takes jobs: restore-node.sh ADDRESS SOURCE FOLDER. As a
# setting of a VCM:
#
#     restore = "/usr/local/sbin/restore-node.sh {address} files.example.org:/srv/saved /srv/saved"
#
# The node gets the folder that resumable-job.sh saves into. While this fails the VCM tries again,
# up to `join_time`: a node on which saved jobs would begin anew takes none.
set -eu
address=$1 source=$2 folder=$3
exec ${SSH:-ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new} "root@$address" \
    "mountpoint -q '$folder' || { mkdir -p '$folder' && mount '$source' '$folder'; }"
