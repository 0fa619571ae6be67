#!/bin/sh
# Every job runs under this: run.sh CONTROL_FOLDER [alone|first|session [SIGNAL [GRACE [WARNING]]]]
#
# The command is the file `command` in that folder: arguments are shown to everybody on the host, by ps.
# It takes the start lock, writes its pid, keeps the output in a file, and writes the exit code. All of this is in files,
# so that nothing is lost if the worker dies. Builtins only: it starts in milliseconds.
#
# It has the job's variables. What it sets before the command begins is named gradient_…, which no variable of a job is.
#
# `alone`: only this job runs here, in a container of its own. A stop sends SIGTERM to this wrapper, and the wrapper
# SIGNAL to all of the job, within GRACE seconds. A warning sends SIGUSR1 to it, and it WARNING to the main program.
# `first`: so does the first of several nodes, whose container keeps the network of all until it is removed, unless the
# worker has to see how it ended.
# `session`: on a simulated machine, where the job is alone in the session that this wrapper leads.

gradient_control=$1
gradient_alone=${2:-}
gradient_signal=${3:-TERM}
gradient_grace=${4:-0}
gradient_warning=${5:-15}

# Only bash has job control without a terminal. With -p it reads no file that the job's variables name.
gradient_own=sh
if command -v bash >/dev/null 2>&1; then gradient_own='bash -p'; fi
if [ -z "${BASH_VERSION:-}" ] && [ "$gradient_own" != sh ]; then exec $gradient_own "$0" "$@"; fi

# The order in which a stop reaches the processes of a container, as in worker/backends/termination.py.
# Set `gradient_caught` to what the digit of a mask looks like that has the signal $1.
look_for() {
    case $1 in
        HUP | 1) gradient_caught='*[13579bdf]' ;;
        INT | 2) gradient_caught='*[2367abef]' ;;
        QUIT | 3) gradient_caught='*[4567cdef]' ;;
        USR1 | 10) gradient_caught='*[2367abef]??' ;;
        USR2 | 12) gradient_caught='*[89abcdef]??' ;;
        TERM | 15) gradient_caught='*[4567cdef]???' ;;
        *) gradient_caught='*' ;;
    esac
    # Bash catches SIGINT while it waits for a program; a trap of its own is known by that for SIGTERM.
    gradient_trapped=$gradient_caught
    if [ "$gradient_caught" = '*[2367abef]' ]; then gradient_trapped='*[4567cdef]???'; fi
}

# Set the state of a process in variables that end with its pid; fail if it has ended.
read_process() {
    # For each line bash reads the file anew. If its length has changed since the last line, lines are missing: try again.
    # Not for ever: gVisor does not tell the signals.
    for try in 1 2 3 4 5 6 7 8; do
        handled= blocked= name= state= parent= session= blocked_signals= caught_signals=
        while read -r field value _; do
            case $field in
                Name:) name=$value ;;
                State:) state=$value ;;
                PPid:) parent=$value ;;
                NSsid:) session=$value ;;
                SigBlk:) blocked_signals=$value ;;
                SigCgt:) caught_signals=$value ;;
            esac
        done 2>/dev/null <"/proc/$1/status"
        case $name:$state in : | *:[ZX]) return 1 ;; esac
        case :$state:$parent:$session:$blocked_signals:$caught_signals: in *::*) ;; *) break ;; esac
    done
    case $gradient_session in "" | "$session") ;; *) return 1 ;; esac
    case $blocked_signals in $gradient_caught) blocked=1 ;; esac
    eval "parent_$1=$parent"
    kind=program
    case $caught_signals in $gradient_caught) handled=1 ;; esac
    case $name in
        timeout | dumb-init) kind=shell handled= ;;
        *) for path in /bin/sh /bin/bash /bin/dash /bin/zsh; do
            if [ "/proc/$1/exe" -ef "$path" ]; then kind=shell; fi
        done
        if [ -n "$handled" ] && [ "/proc/$1/exe" -ef /bin/bash ]; then
            case $caught_signals in $gradient_trapped) ;; *) handled=2 ;; esac
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
    for pid in $gradient_pids; do
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
    for pid in $gradient_pids; do
        eval "kind=\$kind_$pid next=\$parent_$pid"
        case $kind in shell*) ;; *) continue ;; esac
        if [ "$next" = "$gradient_wrapper" ]; then own_shell=$pid; continue; fi
        while [ -n "$next" ] && eval "[ \"\${kind_$next-}\" != program1 ]"; do eval "next=\${parent_$next-}"; done
        if [ -n "$next" ]; then continue; fi
        find_below "$pid" $first
        case $kind$found in
            shell) ;;
            shell1 | shell2) find_below "$pid" $gradient_pids; traps="$traps $pid $found" ;;
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
        case $gradient_signalled in *" $pid "*) continue ;; esac
        gradient_signalled="$gradient_signalled$pid "
        case " $gradient_waited " in
            *" $pid "*) kill -TERM "$pid" ;;
            *) kill "-$gradient_signal" "$pid" ;;
        esac 2>/dev/null
    done
}

# Set `gradient_pids` to the processes of the job, and read each.
read_all() {
    # Not what an earlier process of the same pid was.
    for pid in $gradient_pids; do unset "parent_$pid" "kind_$pid"; done
    gradient_pids=
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        case $pid in 1 | $$ | $gradient_wrapper) continue ;; esac
        if read_process "$pid"; then gradient_pids="$gradient_pids $pid"; fi
    done
}

# Send a signal to all of the job. (-1 means every process but the first and this one.)
signal_all() {
    if [ -z "$gradient_session" ]; then kill "$1" -1; else read_all && kill "$1" $gradient_pids; fi 2>/dev/null
}

# Send the warning to the programs that handle it, in each branch of the tree to the outermost, and to no other. The
# command's own shell has a trap of this script for the signal of a stop.
warn() {
    # The next signal would be handled in the middle of this: the stop that follows on a preemption comes afterwards.
    trap gradient_stop_next=1 TERM
    trap : USR1
    look_for "$gradient_warning"
    read_all
    choose
    case $gradient_warning in 15 | "$gradient_signal") ;; *) first="$first $own_shell" ;; esac
    sleep 0.1 2>/dev/null || sleep 1 # what a shell has just started has its traps until it becomes a program
    for pid in $first; do
        read_process "$pid" && eval "kind=\$kind_$pid" || continue
        case $kind in *1) kill "-$gradient_warning" "$pid" && echo "to $pid" >"$gradient_control/warned" ;; esac
    done 2>/dev/null
    look_for "$gradient_signal"
    trap warn USR1
    trap end_in_order TERM
    if [ -n "$gradient_stop_next" ]; then end_in_order; fi
}

# Suspend all, signal those whose turn it is, and let all but the shells that wait for these go on; fail after the last.
signal_next() {
    signal_all -STOP
    read_all
    choose
    if [ -z "$first" ] || [ "$pause" -ge "$longest" ]; then
        send $gradient_pids
        for pid in $gradient_pids; do
            if [ "$pid" != "$own_shell" ]; then kill -CONT "$pid" 2>/dev/null; fi
        done
        signal_all -CONT
        return 1
    fi
    send $first
    gradient_waited="$gradient_waited $held"
    # The command's own shell: when it ends, the kernel sends SIGHUP to what is below it and suspended.
    if [ -n "$held" ]; then held="$held $own_shell"; else send $own_shell; fi
    for pid in $gradient_pids; do
        case " $held $own_shell " in *" $pid "*) ;; *) kill -CONT "$pid" 2>/dev/null ;; esac
    done
    kill -CONT "$gradient_wrapper" 2>/dev/null
    if [ -z "$held" ]; then kill -CONT $own_shell 2>/dev/null; fi
}

# Return whether others run than the shells that are held and the command's own.
others_run() {
    for folder in /proc/[0-9]*; do
        pid=${folder#/proc/}
        case " 1 $$ $gradient_wrapper $own_shell $held " in *" $pid "*) continue ;; esac
        if read_process "$pid"; then return; fi
    done
    return 1
}

end_in_order() {
    trap : USR1
    look_for "$gradient_signal"
    pause=0 longest=$((gradient_grace * 15 / 4)) # of fifths of a second: three quarters of the grace period
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
if [ -n "$gradient_alone" ]; then
    # Without job control a shell has its programs ignore SIGINT and SIGQUIT.
    case $gradient_own$gradient_signal in sh2 | sh3) gradient_signal=TERM ;; esac
    look_for "$gradient_signal"
    gradient_wrapper= gradient_pids= gradient_waited= gradient_signalled=' ' gradient_session= gradient_stop_next=
    if [ "$gradient_alone" = session ]; then gradient_session=$$; fi
    trap end_in_order TERM
    trap warn USR1
    trap : HUP INT QUIT USR2
    set -m
    $gradient_own "$0" "$gradient_control" "" "$gradient_signal" inside &
    set +m
    gradient_wrapper=$!
    # A trapped signal ends a wait early, with a code above 128; bash may lose the code then.
    wait $gradient_wrapper
    code=$?
    while kill -0 $gradient_wrapper 2>/dev/null; do wait $gradient_wrapper; code=$?; done
    # It may have ended while the trap ran. A shell that has told its code may not tell it again.
    wait $gradient_wrapper 2>/dev/null
    last=$?
    if [ "$last" != 127 ]; then code=$last; fi
    # A container ends with this process, and every other process with it. Processes of a stopped job may still be
    # saving: they have until the grace period is over.
    while [ -e "$gradient_control/stopping" ] && signal_all -0; do
        sleep 0.1 2>/dev/null || sleep 1 || break
    done
    case $gradient_alone$code in first137 | first143) ;; first*)
        kill -KILL -1 2>/dev/null
        while [ ! -e "$gradient_control/stopping" ] && sleep 1; do :; done ;;
    esac
    exit "$code"
fi

# Until the command has begun nothing is ignored: it would inherit that.
trap : HUP INT QUIT TERM USR1 USR2 "$gradient_signal"

# The third safeguard: noclobber opens with O_EXCL, so of all starts of one attempt only the first runs the command.
# Noclobber spares only regular files, and the job may have put something else there: any file ends this. So does a
# pid, if the job has removed the lock. A missing folder means that the attempt is over.
gradient_lock=$gradient_control/start.lock
if [ -e "$gradient_lock" ] || [ -L "$gradient_lock" ]; then exit 97; fi
if [ -f "$gradient_control/started" ] && read -r _ <"$gradient_control/started"; then exit 97; fi
set -C
{ true >"$gradient_lock"; } 2>/dev/null || exit 97
set +C
# Both files exist, filled with spaces (without a newline): overwriting them works even on a full disk.
# The second is opened before the job can put a link in its place, which would be followed.
{ echo $$ 1<>"$gradient_control/started" && true 3<>"$gradient_control/exit"; } 2>/dev/null || exit 97
exec 3<>"$gradient_control/exit"

if command -v bash >/dev/null 2>&1; then gradient_shell=bash; else gradient_shell=/bin/sh; fi

# The shell waits for its program, which may be saving when SIGTERM arrives, and ends with its exit code; but nothing
# that SIGTERM ended is a success, unless a stop was requested.
gradient_stopping='"$gradient_control/stopping"'
gradient_trap='code=$?; echo Terminated 2>/dev/null >>"$gradient_control/signals"; '
gradient_trap=$gradient_trap'if [ "$code" = 0 ] && [ ! -e '$gradient_stopping' ]; then trap - TERM; kill -TERM $$; fi; '
gradient_trap=$gradient_trap'exit "$code"'
# The command is as after `bash -c`: $0 is the shell, there are no arguments, and `return` has nothing to return from.
# A first line such as #!/usr/bin/env python3 names the program for the rest.
# By builtins: the job's PATH may have no program.
gradient_run='gradient_text=; while IFS= read -r gradient_line; do gradient_text="$gradient_text$gradient_line
"; done <"$gradient_control/command"; eval "unset gradient_line gradient_text; $gradient_text"'
if [ "$gradient_shell" = bash ]; then gradient_run='eval "$(<"$gradient_control/command")"'; fi
if read -r gradient_line <"$gradient_control/command"; then
    case $gradient_line in '#!'*) gradient_run='"$gradient_control/command"' ;; esac
fi
# A stop that was requested before this trap was set signalled no process. On one line: shells count those of the command.
gradient_run="gradient_control=\$1; shift; trap '$gradient_trap' TERM $gradient_signal; \
[ ! -e $gradient_stopping ] || exit 143; \
[ -r \"\$gradient_control/command\" ] || { echo \"\$gradient_control/command: Permission denied\" >&2; exit 126; }; \
$gradient_run"
# What the image has run before a command.
set --
if [ -f "$gradient_control/entrypoint" ] && read -r gradient_line <"$gradient_control/entrypoint"; then
    eval "set -- $gradient_line"
fi
# If a signal ends the command, this shell says so.
if { true >"$gradient_control/signals"; } 2>/dev/null; then exec 2>"$gradient_control/signals"; fi
gradient_log=$gradient_control/log
# Of several hosts the worker puts the lines together.
if [ -d "$gradient_control/hosts/0" ]; then gradient_log=$gradient_control/hosts/0/log; fi
gradient_command='"$@" "$gradient_shell" -c "$gradient_run" "$gradient_shell" "$gradient_control"'
gradient_command="$gradient_command </dev/null >>\"\$gradient_log\" 2>&1 3>&-"
if [ "$gradient_own" = sh ]; then
    # Other shells say so only of what they wait for at once, not of what ends before a `wait`. The parentheses keep what
    # they say out of the log: they become the command.
    eval "($gradient_command)"
    code=$?
else
    # With job control the command has a process group of its own, which it may signal, and bash lets it have SIGINT and
    # SIGQUIT, which shells have background commands ignore. Afterwards `wait` must not end when the command is suspended.
    set -m
    eval "$gradient_command &"
    set +m
    # A stop signals the job's processes; the wrapper survives to record how they ended. A trap would interrupt `wait`,
    # and if the command ended just then, bash loses its exit code.
    trap '' HUP INT QUIT TERM USR1 USR2 "$gradient_signal"
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
case $gradient_grace:$code in
    *:0 | inside:137 | inside:143) ;;
    *) while [ -e "$gradient_control/keep" ] && [ ! -e "$gradient_control/stopping" ]; do sleep 1 2>/dev/null || break; done ;;
esac
exit "$code"
