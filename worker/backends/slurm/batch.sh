#!/bin/bash -p
# A job on its compute node: batch.sh WRAPPER CONTROL PYTHON JOB ATTEMPT GRACE SIGNAL WARNING SECONDS
#
# Slurm keeps a copy of this script, which administrators can read; the job's environment is in a file beside the control
# folder. It starts the wrapper, shows that the node lives, and passes on what the worker asks for by a signal to it:
# USR1: stop the job by SIGNAL within its grace period (Slurm itself sends it before the time limit: the job then has
# SECONDS more after its warning), HUP: send WARNING to its main program, USR2: kill its programs.

run=$1 control=$2 python=$3 job=$4 attempt=$5 grace=$6 signal=$7 warning=$8 seconds=$9
root=${control%/*}

cd "$root" || exit 98 # not on this node: the folder is on no shared file system
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then echo "$SLURM_RESTART_COUNT" >"$control/requeued"; exit 97; fi

# Where the worker's Python does not run, the command's process group gets the signal, without any order.
node() {
    "$python" -I -m worker.backends.slurm.node "$1" "$control" "$job" "$attempt" "$grace" "$signal" "$warning"
}
signal_group() {
    read -r leader <"$control/started" || return
    for child in $(cat "/proc/$leader/task/$leader/children"); do kill -s "$1" -- "-$child"; done
}
warn() { [ -e "$control/warned" ] || node warn & }
warn_and_stop() {
    if [ -e "$control/stopping" ] || [ "$warning" = 0 ] || [ -n "$warner" ]; then stop; return; fi
    warn
    set -m
    { sleep "$seconds" && kill -USR1 $$; } &
    warner=$!
    set +m
}
stop() {
    [ -e "$control/stopping" ] || { echo "the Slurm cluster" >"$control/slurm_limit"; echo asked >"$control/stopping"; }
    if [ -z "$stopper" ]; then
        { node stop || signal_group "$signal"; } &
        stopper=$!
    fi
}

wrapper= stopper= warner= code=
trap warn_and_stop USR1
trap warn HUP
trap '{ node kill || signal_group KILL; } &' USR2
trap : TERM # Slurm ends the job, and has told all of its processes; the wrapper records how they end

if [ -e "$control/ports" ]; then node prepare; fi
# With job control no signal is ignored, and the wrapper is no member of this script's process group.
set -m
(
    if [ -e "$root/container" ]; then set --; export signal; . "$root/container"; fi
    . "$root/environment" && exec "$run" "$control" '' "$signal"
) &
wrapper=$!
while sleep 10; do : >"$control/heartbeat"; done &
beat=$!
{ sleep 3 && exec "$python" -I -m worker.backends.slurm.node measure "$control" "$job" "$attempt" "$grace"; } &
meter=$!
set +m

# A trapped signal ends a wait early, with a code above 128.
wait "$wrapper"
code=$?
while kill -0 "$wrapper" 2>/dev/null; do wait "$wrapper"; code=$?; done
wait "$wrapper" 2>/dev/null
last=$?
if [ "$last" != 127 ]; then code=$last; fi
# Other programs of a job that was asked to stop may still be saving.
while [ -n "$stopper" ] && kill -0 "$stopper" 2>/dev/null; do wait "$stopper"; done
kill -- "-$beat" "-$meter" ${warner:+"-$warner"} 2>/dev/null
# So that a missing exit code is known to be missing, not only late on another machine; 97: it belongs to another start.
if [ "$code" != 97 ] && ! read -r _ <"$control/exit" 2>/dev/null; then echo "$code" >"$control/no_exit"; fi
exit "$code"
