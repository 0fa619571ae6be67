#!/bin/sh
# Every job runs under this: run.sh CONTROL_FOLDER [alone|first [SIGNAL]]
#
# The command is the file `command` in that folder: arguments are shown to everybody on the host, by ps.
# It takes the start lock, writes its pid, keeps the output in a file, and writes the exit code. All of this is in files,
# so that nothing is lost if the worker dies. Builtins only: it starts in milliseconds.
#
# `alone`: only this job runs here, in a container of its own. A stop sends SIGTERM to this wrapper, and the wrapper
# SIGNAL to all of the job. `first`: so does the first of several nodes, whose container keeps the network of all until it
# is removed, unless the worker has to see how it ended.

control=$1
alone=${2:-}
signal=${3:-TERM}

# Only bash has job control without a terminal. With -p it reads no file that the job's variables name.
own=sh
if command -v bash >/dev/null 2>&1; then own='bash -p'; fi
if [ -z "${BASH_VERSION:-}" ] && [ "$own" != sh ]; then exec $own "$0" "$@"; fi

# In a container, this process alone gets the signal of a stop, and passes it on to all.
if [ -n "$alone" ]; then
    # Without job control a shell has its programs ignore SIGINT and SIGQUIT.
    case $own$signal in sh2 | sh3) signal=TERM ;; esac
    trap "kill -$signal -1 2>/dev/null" TERM
    trap : HUP INT QUIT USR1 USR2
    set -m
    $own "$0" "$control" "" "$signal" &
    set +m
    # A trapped signal ends a wait early, with a code above 128; bash may lose the code then.
    wait $!
    code=$?
    while kill -0 $! 2>/dev/null; do wait $!; code=$?; done
    # A container ends with this process, and every other process with it. Processes of a stopped job may still be
    # saving: they have until the grace period is over. (-1 means every process but the first and this one.)
    while [ -e "$control/stopping" ] && kill -0 -1 2>/dev/null; do
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
run='eval "$(cat "$gradient_control/command")"'
if [ "$shell" = bash ]; then run='eval "$(<"$gradient_control/command")"'; fi
if read -r first <"$control/command"; then case $first in '#!'*) run='"$gradient_control/command"' ;; esac fi
# A stop that was requested before this trap was set signalled no process.
run="gradient_control=\$1; shift; trap '$trap' TERM $signal; [ ! -e $stopping ] || exit 143; $run"
# What the image has run before a command.
set --
if [ -f "$control/entrypoint" ] && read -r words <"$control/entrypoint"; then eval "set -- $words"; fi
# If a signal ends the command, this shell says so.
if { true >"$control/signals"; } 2>/dev/null; then exec 2>"$control/signals"; fi
command='"$@" "$shell" -c "$run" "$shell" "$control" </dev/null >>"$control/log" 2>&1 3>&-'
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
fi
# One write, by a builtin: a program started here could be killed with the rest of the job, and the code be lost.
# Readers wait for the newline.
echo "$code" >&3
exit "$code"
