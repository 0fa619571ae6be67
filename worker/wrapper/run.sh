#!/bin/sh
# Every job runs under this: run.sh CONTROL_FOLDER [alone|first|session [SIGNAL [GRACE [WARNING]]]]
#
# The command is the file `command` in that folder: arguments are shown to everybody on the host, by ps.
# It takes the start lock, writes its pid, keeps the output in a file, and writes the exit code. All of this is in files,
# so that nothing is lost if the worker dies. Builtins only: it starts in milliseconds.
#
# `alone`: only this job runs here, in a container of its own. A stop sends SIGTERM to this wrapper, and the wrapper
# SIGNAL to all of the job, within GRACE seconds. A warning sends SIGUSR1 to it, and it WARNING to the main program.
# `first`: so does the first of several nodes, whose container keeps the network of all until it is removed, unless the
# worker has to see how it ended.
# `session`: on a simulated machine, where the job is alone in the session that this wrapper leads.

control=$1
alone=${2:-}
signal=${3:-TERM}
grace=${4:-0}
warning=${5:-15}

# Only bash has job control without a terminal. With -p it reads no file that the job's variables name.
own=sh
if command -v bash >/dev/null 2>&1; then own='bash -p'; fi
if [ -z "${BASH_VERSION:-}" ] && [ "$own" != sh ]; then exec $own "$0" "$@"; fi

# The order in which a stop reaches the processes of a container, as in worker/backends/termination.py.
# Set `caught` to what the digit of a mask looks like that has the signal $1.
look_for() {
    case $1 in
        HUP | 1) caught='*[13579bdf]' ;;
        INT | 2) caught='*[2367abef]' ;;
        QUIT | 3) caught='*[4567cdef]' ;;
        USR1 | 10) caught='*[2367abef]??' ;;
        USR2 | 12) caught='*[89abcdef]??' ;;
        TERM | 15) caught='*[4567cdef]???' ;;
        *) caught='*' ;;
    esac
    # Bash catches SIGINT while it waits for a program; a trap of its own is known by that for SIGTERM.
    trapped=$caught
    if [ "$caught" = '*[2367abef]' ]; then trapped='*[4567cdef]???'; fi
}

# Set the state of a process in variables that end with its pid; fail if it has ended.
read_process() {
    handled= blocked= name=
    while read -r field value _; do
        case $field in
            Name:) name=$value ;;
            State:) case $value in Z | X) return 1 ;; esac ;;
            PPid:) eval "parent_$1=$value" ;;
            NSsid:) case $session in "" | "$value") ;; *) return 1 ;; esac ;;
            SigBlk:) case $value in $caught) blocked=1 ;; esac ;;
            SigCgt:) caught_signals=$value ;;
        esac
    done 2>/dev/null <"/proc/$1/status"
    [ -n "$name" ] || return 1
    kind=program
    case $caught_signals in $caught) handled=1 ;; esac
    case $name in
        timeout | dumb-init) kind=shell handled= ;;
        *) for path in /bin/sh /bin/bash /bin/dash /bin/zsh; do
            if [ "/proc/$1/exe" -ef "$path" ]; then kind=shell; fi
        done
        if [ -n "$handled" ] && [ "/proc/$1/exe" -ef /bin/bash ]; then
            case $caught_signals in $trapped) ;; *) handled=2 ;; esac
        fi ;;
    esac
    # A program may wait for signals that it blocks; shells block them for the moment in which they start something.
    if [ "$kind" = program ] && [ -n "$blocked" ]; then handled=1; fi
    eval "kind_$1=$kind$handled"
}

# Set `found` to those of the processes $2… that are below $1.
find_below() {
    above=$1 found=
    shift
    for below; do
        eval "next=\$parent_$below"
        while [ -n "$next" ] && [ "$next" != "$above" ]; do eval "next=\${parent_$next-}"; done
        if [ -n "$next" ]; then found="$found $below"; fi
    done
}

# Set `first` to the programs whose turn it is, and `held` to the shells that wait for them.
choose() {
    first= held= traps= own_shell=
    for pid in $pids; do
        eval "kind=\$kind_$pid next=\$parent_$pid"
        [ "$kind" = program1 ] || continue
        while [ -n "$next" ] && eval "[ \"\${kind_$next-}\" != program1 ]"; do eval "next=\${parent_$next-}"; done
        if [ -z "$next" ]; then first="$first $pid"; fi
    done
    # Not those that read what another one writes.
    writers=$first first=
    for pid in $writers; do
        for next in $writers; do
            if [ "$pid" = "$next" ] || [ ! -p "/proc/$pid/fd/0" ]; then continue; fi
            if [ "/proc/$pid/fd/0" -ef "/proc/$next/fd/1" ]; then continue 2; fi
        done
        first="$first $pid"
    done
    for pid in $pids; do
        eval "kind=\$kind_$pid next=\$parent_$pid"
        case $kind in shell*) ;; *) continue ;; esac
        if [ "$next" = "$wrapper" ]; then own_shell=$pid; continue; fi
        while [ -n "$next" ] && eval "[ \"\${kind_$next-}\" != program1 ]"; do eval "next=\${parent_$next-}"; done
        if [ -n "$next" ]; then continue; fi
        find_below "$pid" $first
        case $kind$found in
            shell) ;;
            shell1 | shell2) find_below "$pid" $pids; traps="$traps $pid $found" ;;
            shell1*) traps="$traps $pid" ;;
            *) held="$held $pid" ;;
        esac
    done
    first="$first$traps"
}

# Send the signal to those of the processes $@ that have not got it. A shell that was held gets SIGTERM: after a SIGINT
# that its program has survived, bash goes on with the next command.
send() {
    for pid; do
        case $signalled in *" $pid "*) continue ;; esac
        signalled="$signalled$pid "
        case " $waited " in
            *" $pid "*) kill -TERM "$pid" ;;
            *) kill "-$signal" "$pid" ;;
        esac 2>/dev/null
    done
}

# Set `pids` to the processes of the job, and read each.
read_all() {
    # Not what an earlier process of the same pid was.
    for pid in $pids; do unset "parent_$pid" "kind_$pid"; done
    pids=
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        case $pid in 1 | $$ | $wrapper) continue ;; esac
        if read_process "$pid"; then pids="$pids $pid"; fi
    done
}

# Send a signal to all of the job. (-1 means every process but the first and this one.)
signal_all() {
    if [ -z "$session" ]; then kill "$1" -1; else read_all && kill "$1" $pids; fi 2>/dev/null
}

# Send the warning to the programs that handle it, in each branch of the tree to the outermost, and to no other. The
# command's own shell has a trap of this script for the signal of a stop.
warn() {
    # The next signal would be handled in the middle of this: the stop that follows on a preemption comes afterwards.
    trap stop_next=1 TERM
    trap : USR1
    look_for "$warning"
    read_all
    choose
    case $warning in 15 | "$signal") ;; *) first="$first $own_shell" ;; esac
    sleep 0.1 2>/dev/null || sleep 1 # what a shell has just started has its traps until it becomes a program
    for pid in $first; do
        read_process "$pid" && eval "kind=\$kind_$pid" || continue
        case $kind in *1) if kill "-$warning" "$pid"; then echo "to $pid" >"$control/warned"; fi ;; esac
    done 2>/dev/null
    look_for "$signal"
    trap warn USR1
    trap end_in_order TERM
    if [ -n "$stop_next" ]; then end_in_order; fi
}

# Suspend all, signal those whose turn it is, and let all but the shells that wait for these go on; fail after the last.
signal_next() {
    signal_all -STOP
    read_all
    choose
    if [ -z "$first" ] || [ "$pause" -ge "$longest" ]; then
        send $pids
        for pid in $pids; do
            if [ "$pid" != "$own_shell" ]; then kill -CONT "$pid" 2>/dev/null; fi
        done
        signal_all -CONT
        return 1
    fi
    send $first
    waited="$waited $held"
    # The command's own shell: when it ends, the kernel sends SIGHUP to what is below it and suspended.
    if [ -n "$held" ]; then held="$held $own_shell"; else send $own_shell; fi
    for pid in $pids; do
        case " $held $own_shell " in *" $pid "*) ;; *) kill -CONT "$pid" 2>/dev/null ;; esac
    done
    kill -CONT "$wrapper" 2>/dev/null
    if [ -z "$held" ]; then kill -CONT $own_shell 2>/dev/null; fi
}

# Return whether others run than the shells that are held and the command's own.
others_run() {
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        case " 1 $$ $wrapper $own_shell $held " in *" $pid "*) continue ;; esac
        if read_process "$pid"; then return; fi
    done
    return 1
}

end_in_order() {
    trap : USR1
    look_for "$signal"
    pause=0 longest=$((grace * 15 / 4)) # of fifths of a second: three quarters of the grace period
    while signal_next; do
        ended=0
        while [ "$pause" -lt "$longest" ] && [ "$ended" -lt 10 ]; do
            pause=$((pause + 1))
            sleep 0.2 2>/dev/null || { sleep 1 2>/dev/null && pause=$((pause + 4)); } || longest=0
            for pid in $first; do
                if read_process "$pid"; then continue 2; fi
            done
            ended=$((ended + 1)) # for those that read what a program wrote at its end
            others_run || ended=10
        done
    done
}

# In a container, this process alone gets the signal of a stop.
if [ -n "$alone" ]; then
    # Without job control a shell has its programs ignore SIGINT and SIGQUIT.
    case $own$signal in sh2 | sh3) signal=TERM ;; esac
    look_for "$signal"
    wrapper= pids= waited= signalled=' ' session= stop_next=
    if [ "$alone" = session ]; then session=$$; fi
    trap end_in_order TERM
    trap warn USR1
    trap : HUP INT QUIT USR2
    set -m
    $own "$0" "$control" "" "$signal" inside &
    set +m
    wrapper=$!
    # A trapped signal ends a wait early, with a code above 128; bash may lose the code then.
    wait $wrapper
    code=$?
    while kill -0 $wrapper 2>/dev/null; do wait $wrapper; code=$?; done
    # It may have ended while the trap ran. A shell that has told its code may not tell it again.
    wait $wrapper 2>/dev/null
    last=$?
    if [ "$last" != 127 ]; then code=$last; fi
    # A container ends with this process, and every other process with it. Processes of a stopped job may still be
    # saving: they have until the grace period is over.
    while [ -e "$control/stopping" ] && signal_all -0; do
        sleep 0.1 2>/dev/null || sleep 1 || break
    done
    case $alone$code in first137 | first143) ;; first*)
        kill -KILL -1 2>/dev/null
        while [ ! -e "$control/stopping" ] && sleep 1; do :; done ;;
    esac
    exit "$code"
fi

# Until the command has begun nothing is ignored: it would inherit that.
trap : HUP INT QUIT TERM USR1 USR2 "$signal"

# The third safeguard: noclobber opens with O_EXCL, so of all starts of one attempt only the first runs the command.
# Noclobber spares only regular files, and the job may have put something else there: any file ends this. So does a
# pid, if the job has removed the lock. A missing folder means that the attempt is over.
lock=$control/start.lock
if [ -e "$lock" ] || [ -L "$lock" ]; then exit 97; fi
if [ -f "$control/started" ] && read -r pid <"$control/started"; then exit 97; fi
set -C
{ true >"$lock"; } 2>/dev/null || exit 97
set +C
# Both files exist, filled with spaces (without a newline): overwriting them works even on a full disk.
# The second is opened before the job can put a link in its place, which would be followed.
{ echo $$ 1<>"$control/started" && true 3<>"$control/exit"; } 2>/dev/null || exit 97
exec 3<>"$control/exit"

if command -v bash >/dev/null 2>&1; then shell=bash; else shell=/bin/sh; fi

# The shell waits for its program, which may be saving when SIGTERM arrives, and ends with its exit code; but nothing
# that SIGTERM ended is a success, unless a stop was requested.
stopping='"$gradient_control/stopping"'
trap='code=$?; echo Terminated 2>/dev/null >>"$gradient_control/signals"; '
trap=$trap'if [ "$code" = 0 ] && [ ! -e '$stopping' ]; then trap - TERM; kill -TERM $$; fi; exit "$code"'
# The command is as after `bash -c`: $0 is the shell, there are no arguments, and `return` has nothing to return from.
# A first line such as #!/usr/bin/env python3 names the program for the rest.
# By builtins: the job's PATH may have no program.
run='gradient_text=; while IFS= read -r gradient_line; do gradient_text="$gradient_text$gradient_line
"; done <"$gradient_control/command"; eval "unset gradient_line gradient_text; $gradient_text"'
if [ "$shell" = bash ]; then run='eval "$(<"$gradient_control/command")"'; fi
if read -r first <"$control/command"; then case $first in '#!'*) run='"$gradient_control/command"' ;; esac fi
# A stop that was requested before this trap was set signalled no process. On one line: shells count those of the command.
run="gradient_control=\$1; shift; trap '$trap' TERM $signal; [ ! -e $stopping ] || exit 143; \
[ -r \"\$gradient_control/command\" ] || { echo \"\$gradient_control/command: Permission denied\" >&2; exit 126; }; $run"
# What the image has run before a command.
set --
if [ -f "$control/entrypoint" ] && read -r words <"$control/entrypoint"; then eval "set -- $words"; fi
# If a signal ends the command, this shell says so.
if { true >"$control/signals"; } 2>/dev/null; then exec 2>"$control/signals"; fi
log=$control/log
if [ -d "$control/hosts/0" ]; then log=$control/hosts/0/log; fi # of several hosts: the worker puts their lines together
command='"$@" "$shell" -c "$run" "$shell" "$control" </dev/null >>"$log" 2>&1 3>&-'
if [ "$own" = sh ]; then
    # Other shells say so only of what they wait for at once, not of what ends before a `wait`. The parentheses keep what
    # they say out of the log: they become the command.
    eval "($command)"
    code=$?
else
    # With job control the command has a process group of its own, which it may signal, and bash lets it have SIGINT and
    # SIGQUIT, which shells have background commands ignore. Afterwards `wait` must not end when the command is suspended.
    set -m
    eval "$command &"
    set +m
    # A stop signals the job's processes; the wrapper survives to record how they ended. A trap would interrupt `wait`,
    # and if the command ended just then, bash loses its exit code.
    trap '' HUP INT QUIT TERM USR1 USR2 "$signal"
    wait $!
    code=$?
    # What was suspended before `set +m` counts as stopped until it ends, and does not hold up a wait.
    while [ "$code" -gt 128 ] && [ -n "$(jobs -s)" ]; do
        sleep 0.1 2>/dev/null || sleep 1 2>/dev/null
        wait $!
        code=$?
    done
fi
# One write, by a builtin: a program started here could be killed with the rest of the job, and the code be lost.
# Readers wait for the newline.
echo "$code" >&3
# Stay for the job's user to look, until the worker removes the job. In a container only the end of all tells whether
# memory ran out.
case $grace:$code in
    *:0 | inside:137 | inside:143) ;;
    *) while [ -e "$control/keep" ] && [ ! -e "$control/stopping" ] && sleep 1 2>/dev/null; do :; done ;;
esac
exit "$code"
