#!/bin/bash -p
# Starts a job in its container, on its compute node: container.sh CONTROL PROGRAM IMAGE MOUNT...
#
# PROGRAM is Apptainer, Singularity, or srun, for Pyxis. Home, temporary folder and variables are those of the node.

control=$1 program=$2 image=$3
shift 3
start='. /.gradient/environment && exec /bin/sh /.gradient/run.sh /.gradient/control'
if [ -d "${TMPDIR:-}" ]; then set -- "$@" "$TMPDIR:$TMPDIR"; fi

if [ "${program##*/}" = srun ]; then
    IFS=,
    exec "$program" --export=ALL --nodes=1 --ntasks=1 ${SLURM_CPUS_PER_TASK:+"--cpus-per-task=$SLURM_CPUS_PER_TASK"} \
        --container-image="$image" --container-mounts="$*" --container-workdir=/ --container-writable \
        --container-mount-home --no-container-entrypoint --no-container-remap-root /bin/sh -c "$start"
fi

options=(--no-privs --pwd /)
for mount; do options+=(--bind "$mount"); done
if [ -n "${SLURM_JOB_GPUS:-${CUDA_VISIBLE_DEVICES:-}}" ]; then
    if [ -e /dev/kfd ]; then options+=(--rocm); else options+=(--nv); fi
fi
# The container's own parent ends with it; this shell waits, whatever signal Slurm sends to all.
trap : HUP INT QUIT TERM USR1 USR2
# A node may have no overlays, or nothing to mount the image's file with.
for way in --writable-tmpfs '' '--writable-tmpfs --unsquash' --unsquash; do
    "$program" --silent --nocolor exec $way "${options[@]}" "$image" /bin/sh -c "$start" >>"$control/container_output" 2>&1
    code=$?
    if read -r _ <"$control/started"; then exit "$code"; fi
done 2>/dev/null
sort -u "$control/container_output" | paste -s -d ' '
exit "$code"
