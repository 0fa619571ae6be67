#!/bin/sh
# Every job runs under this: run.sh CONTROL_FOLDER [alone]
#
# The command is the file `command` in that folder: arguments are shown to everybody on the host, by ps.
# It takes the start lock, writes its pid, keeps the output in a file, passes SIGTERM on, and writes the exit code. All
# of this is in files, so that nothing is lost if the worker dies. Builtins only: it starts in a millisecond.
#
# `alone`: only this job runs here, in a container of its own.

control=$1
alone=${2:-}

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

# A stop signals the job's processes; the wrapper survives to record how they ended. As the first process of a
# container the wrapper alone gets the signal, and passes it on to all.
trap 'if [ "$alone" = alone ]; then kill -TERM -1; elif [ -n "$child" ]; then kill -TERM "$child"; fi 2>/dev/null' TERM
trap '' HUP INT

# The shell waits for its program, which may be saving when SIGTERM arrives, and ends with its exit code; but nothing
# that SIGTERM ended is a success, unless a stop was requested.
trap='code=$?; if [ "$code" = 0 ] && [ ! -e "${0%/*}/stopping" ]; then trap - TERM; kill -TERM $$; fi; exit "$code"'
# A stop that was requested before this trap was set signalled no process.
"$shell" -c "trap '$trap' TERM; "'[ ! -e "${0%/*}/stopping" ] || exit 143; . "$0"' "$control/command" \
    </dev/null >>"$control/log" 2>&1 3>&- &
child=$!
wait "$child"
code=$?
# A trapped signal ends a wait early, with a code above 128: while the command goes on, or as it ends, and then the next
# wait has its own code (unless it was reported already, 127, or bash has lost it, -1).
while [ "$code" -gt 128 ]; do
    kill -0 "$child" 2>/dev/null
    gone=$?
    wait "$child" 2>/dev/null
    again=$?
    if [ "$again" -ge 0 ] && [ "$again" != 127 ]; then code=$again; fi
    if [ "$gone" != 0 ]; then break; fi
done

# One write, by a builtin: a program started here could be killed with the rest of the job, and the code be lost.
# Readers wait for the newline.
echo "$code" >&3

# A container ends with this process, and every other process with it. Processes of a stopped job may still be saving:
# they have until the grace period is over. (-1 means every process but the first and this one.)
if [ "$alone" = alone ]; then
    while [ -e "$control/stopping" ] && kill -0 -1 2>/dev/null; do
        sleep 0.1 2>/dev/null || sleep 1 || break
    done
fi
exit "$code"
