#!/bin/bash -p
# A job on its compute node: batch.sh WRAPPER CONTROL PYTHON JOB ATTEMPT GRACE SIGNAL WARNING SECONDS [SRUN [ranks]]
#
# SRUN: the job has several nodes, on each of which srun starts this script again, with `ranks`.
# Slurm keeps a copy of this script, which administrators can read; the job's environment is in a file beside the control
# folder. It starts the wrapper, shows that the node lives, and passes on what the worker asks for by a signal to it:
# USR1: stop the job by SIGNAL within its grace period (Slurm itself sends it before the time limit: the job then has
# SECONDS more after its warning), HUP: send WARNING to its main program, USR2: kill its programs.

run=$1 control=$2 python=$3 job=$4 attempt=$5 grace=$6 signal=$7 warning=$8 seconds=$9 srun=${10:-} ranks=${11:-}
root=${control%/*} main=$control each=()
if [ -n "$srun" ]; then
    case $srun in */*) PATH=${srun%/*}:$PATH ;; esac
    each=(srun --overlap --export=ALL --input=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES"
        --ntasks-per-node=1 --cpu-bind=none --kill-on-bad-exit=0 --wait=0)
fi
if [ -n "$ranks" ]; then
    each=() artifacts=$root/artifacts
    if [ "$SLURM_PROCID" != 0 ]; then control=$control/hosts/$SLURM_PROCID artifacts=$artifacts/hosts/$SLURM_PROCID; fi
fi
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then root=$control/$SLURM_ARRAY_TASK_ID; fi # a link to the member's folder

cd -P "$root" || exit 98 # not on this node: the folder is on no shared file system
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then root=$PWD control=$PWD/control job=${PWD##*/} attempt=${PWD##*-} job=${job%-*}; fi
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then echo "$SLURM_RESTART_COUNT" >"$control/requeued"; exit 97; fi

node() {
    local start=("${each[@]}" "$python" -I -m worker.backends.slurm.node)
    if [ "$1" = meet ]; then start=("${start[@]:${#each[@]}}"); fi
    "${start[@]}" "$1" "$main" "$job" "$attempt" "$grace" "$signal" "$warning"
}
# Wait for what nobody sends to a socket: a program would cost every short job more than the rest of this script.
pause() { read -r -t "$1" -u 3 _ 2>/dev/null; [ $? -gt 128 ] || sleep "$1"; }
warn() { [ -e "$control/warned" ] || node warn & }
warn_and_stop() {
    if [ -e "$control/stopping" ] || [ -e "$control/hosts/failed" ] || [ "$warning" = 0 ] || [ -n "$warner" ]; then
        stop
        return
    fi
    warn
    set -m
    { sleep "$seconds" && kill -USR1 $$; } &
    warner=$!
    set +m
}
stop() {
    if [ ! -e "$control/stopping" ] && [ ! -e "$control/hosts/failed" ]; then # a node that failed asks for it, too
        echo "the Slurm cluster" >"$control/slurm_limit"
        echo asked >"$control/stopping"
    fi
    if [ -z "$stopper" ]; then
        node stop &
        stopper=$!
    fi
}

echo "$SLURM_JOB_ID $SLURM_JOB_PARTITION" >"$control/slurm_number"
wrapper= stopper= warner= code=
trap warn_and_stop USR1
trap warn HUP
trap 'node kill &' USR2
trap : TERM # Slurm ends the job, and has told all of its processes; the wrapper records how they end

if [ -n "${each[*]}" ]; then
    mkdir "$control/hosts/begun" 2>/dev/null || exit 97 # of all starts of one attempt, only the first runs the command
    node meet
elif [ -e "$control/ports" ] || [ -n "$ranks" ]; then
    node prepare
fi
# With job control no signal is ignored, and the wrapper is no member of this script's process group.
set -m
(
    if [ -n "${each[*]}" ]; then exec "${each[@]}" "${run%/wrapper/*}/backends/slurm/batch.sh" "$@" ranks; fi
    if [ -e "$root/container" ]; then set --; export signal; . "$root/container"; fi
    set -- "$root/variables" /bin/bash -p "$run" "$control" '' "$signal"
    unset each # an array is not exported; the job's variables may have all names that are used here
    . "$1" && shift && exec "$@"
) &
wrapper=$!
{ { exec 3<>/dev/udp/127.0.0.1/9; } 2>/dev/null
    pause 3; if [ "$control" = "$main" ] && [ -z "${each[*]}" ]; then node measure 3>&- & fi
    while pause 10; do : >"$control/heartbeat"; done; } &
beat=$!
set +m

# Return whether nothing of the job is left but this script, as far as Slurm itself knows the job's processes.
is_alone() {
    local steps=0 step pids pid controller path
    [ "${SLURM_JOB_NUM_NODES:-1}" = 1 ] || return
    for step in "${0%/*/*}"/*_"$SLURM_JOB_ID".[0-9]*; do # a socket of each, in the spool folder of the node
        case $step in *.xml | *.4294967292) ;; *) if [ -S "$step" ]; then steps=$((steps + 1)); fi ;; esac
    done
    [ "$steps" = 1 ] || return
    for path in "/proc/$PPID/task"/*/children /proc/$$/task/$$/children; do
        read -r -a pids <"$path"
        for pid in "${pids[@]}"; do [ "$pid" = $$ ] || return; done
    done
    while IFS=: read -r _ controller path; do
        case $path in */job_"$SLURM_JOB_ID"/*) ;; *) continue ;; esac
        mapfile -t pids <"/sys/fs/cgroup${controller:+/$controller}$path/cgroup.procs" || return
        for pid in "${pids[@]}"; do case $pid in $$ | $PPID) ;; *) return 1 ;; esac done
    done </proc/self/cgroup
}

# A trapped signal ends a wait early, with a code above 128.
wait "$wrapper"
code=$?
while kill -0 "$wrapper" 2>/dev/null; do wait "$wrapper"; code=$?; done
wait "$wrapper" 2>/dev/null
last=$?
if [ "$last" != 127 ]; then code=$last; fi
# Other programs of a job that was asked to stop may still be saving.
while [ -n "$stopper" ] && kill -0 "$stopper" 2>/dev/null; do wait "$stopper"; done
kill -- "-$beat" ${warner:+"-$warner"} 2>/dev/null
wait "$beat" $warner 2>/dev/null
# So that a missing exit code is known to be missing, not only late on another machine; 97: it belongs to another start.
if [ -n "${each[*]}" ]; then
    if read -r _ failed <"$control/hosts/failed"; then code=$failed; fi 2>/dev/null
    if [ -n "${failed:-}" ] || [ "$code" = 0 ] || [ -e "$control/stopping" ]; then
        echo "$code" >"$control/hosts/exit"
    else
        echo "$code" >"$control/no_exit" # srun failed, or a node was lost
    fi
    exit "$code"
fi
if [ -n "$ranks" ] && [ "$code" != 0 ] && [ "$code" != 97 ] && [ ! -e "$main/stopping" ]; then
    if { (set -C; echo "$SLURM_PROCID $code" >"$main/hosts/failed") } 2>/dev/null; then
        scancel --batch --signal=USR1 "$SLURM_JOB_ID"
    fi
fi
if [ "$code" != 97 ] && ! read -r _ <"$control/exit" 2>/dev/null; then echo "$code" >"$control/no_exit"; fi
if is_alone; then echo alone >>"$control/slurm_number"; fi
exit "$code"
