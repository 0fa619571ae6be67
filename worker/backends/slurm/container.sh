#!/bin/bash -p
# Starts a job in its container, on its compute node: container.sh CONTROL PROGRAM IMAGE COUNT MOUNT... [COMMAND...]
#
# PROGRAM is Apptainer, Singularity, or srun, for Pyxis; COUNT is the number of mounts. Home, temporary folder and variables
# are those of the node. A command is run beside the job, in its container, or in another one of the image if no process
# may enter it.

export -n signal # of a stop
control=$1 program=$2 image=$3 count=$4
shift 4
mounts=("${@:1:count}")
shift "$count"
if [ -d "${TMPDIR:-}" ]; then mounts+=("$TMPDIR:$TMPDIR"); fi
cd / # the folder that this starts in would be mounted, too
start='. /.gradient/environment && exec "$@"'

if [ $# -gt 0 ]; then
    read -r pid _ <"$control/started"
    enter=("$(command -v nsenter)" --target "$pid" --mount --preserve-credentials --wd=/)
    # Within one user namespace, nothing of the kind may be entered.
    if ! [ /proc/self/ns/user -ef "/proc/$pid/ns/user" ]; then enter+=(--user); fi
    if "${enter[@]}" /bin/sh -c : 2>/dev/null; then
        terminal=${TERM:-}
        while IFS= read -r -d '' variable; do export "$variable"; done <"/proc/$pid/environ"
        export TERM=$terminal
        exec "${enter[@]}" /bin/sh -c "$start" sh "$@"
    fi
else
    set -- /bin/sh /.gradient/run.sh /.gradient/control '' "$signal"
fi

if [ "${program##*/}" = srun ]; then
    IFS=,
    cpus=${SLURM_CPUS_PER_TASK:-1}
    exec "$program" --overlap --export=ALL --nodelist="$SLURMD_NODENAME" --nodes=1 --ntasks=1 --cpus-per-task="$cpus" \
        --container-image="$image" --container-mounts="${mounts[*]}" --container-workdir=/ --container-writable \
        --container-mount-home --no-container-entrypoint --no-container-remap-root /bin/sh -c "$start" sh "$@"
fi

options=(--no-privs)
for mount in "${mounts[@]}"; do options+=(--bind "$mount"); done
if [ -n "${SLURM_JOB_GPUS:-${CUDA_VISIBLE_DEVICES:-}}" ]; then
    if [ -e /dev/kfd ]; then options+=(--rocm); else options+=(--nv); fi
fi
set -- "${options[@]}" "$image" /bin/sh -c "$start" sh "$@"
if read -r _ <"$control/started"; then exec "$program" --silent exec "$@"; fi
# The container's own parent ends with it; this shell waits, whatever signal Slurm sends to all.
trap : HUP INT QUIT TERM USR1 USR2
# A node may have no overlays, or nothing to mount the image's file with.
for way in --writable-tmpfs '' '--writable-tmpfs --unsquash' --unsquash; do
    "$program" --silent --nocolor exec $way "$@" >>"$control/container_output" 2>&1
    code=$?
    if read -r _ <"$control/started"; then exit "$code"; fi
done 2>/dev/null
sort -u "$control/container_output" | paste -s -d ' '
exit "$code"
