#!/bin/sh
# Every job runs under this: run.sh CONTROL_FOLDER [alone]
#
# The command is the file `command` in that folder: arguments are shown to everybody on the host, by ps.
# It takes the start lock, writes its pid, keeps the output in a file, passes SIGTERM on, and writes the exit code. All
# of it is files, so that nothing is lost when whoever watches dies. Builtins only: it starts in a millisecond.
#
# `alone` says that nothing but this job runs where it runs: in a container of its own.

control=$1
alone=${2:-}

# The third fence: noclobber opens with O_EXCL, so of all starts of one attempt only the first runs the command.
# Noclobber spares regular files alone, and the job may have put something else there: any name refuses. So does a
# pid, if the job has removed the lock. A folder that is gone means that the attempt is over.
lock=$control/start.lock
if [ -e "$lock" ] || [ -L "$lock" ]; then exit 97; fi
if [ -f "$control/started" ] && read -r pid <"$control/started"; then exit 97; fi
set -C
{ true >"$lock"; } 2>/dev/null || exit 97
set +C
# Both files are there with room in them (spaces, without a line's end): what is written over them fits on a full disk.
# The second is opened before the job can put a link in its place, which would be followed.
{ echo $$ 1<>"$control/started" && true 3<>"$control/exit"; } 2>/dev/null || exit 97
exec 3<>"$control/exit"

if command -v bash >/dev/null 2>&1; then shell=bash; else shell=/bin/sh; fi

# Who stops the job signals its processes; the wrapper lives on to tell how they ended. As the first process of a
# container it is the only one that gets the signal, and passes it on to all.
trap 'if [ "$alone" = alone ]; then kill -TERM -1; elif [ -n "$child" ]; then kill -TERM "$child"; fi 2>/dev/null' TERM
trap '' HUP INT

# The shell waits for what it runs, which may be saving when SIGTERM comes, and ends with its exit code; but nothing that
# SIGTERM ended is a success, unless it was asked to end.
trap='code=$?; if [ "$code" = 0 ] && [ ! -e "${0%/*}/stopping" ]; then trap - TERM; kill -TERM $$; fi; exit "$code"'
# A stop that was asked for before this trap was set signalled nobody.
"$shell" -c "trap '$trap' TERM; "'[ ! -e "${0%/*}/stopping" ] || exit 143; . "$0"' "$control/command" \
    </dev/null >>"$control/log" 2>&1 3>&- &
child=$!
wait "$child"
code=$?
# A trapped signal ends a wait early, with a code above 128: while the command goes on, or as it ends, and then the next
# wait has its own code (unless it was given already, 127, or bash has lost it, -1).
while [ "$code" -gt 128 ]; do
    kill -0 "$child" 2>/dev/null
    gone=$?
    wait "$child" 2>/dev/null
    again=$?
    if [ "$again" -ge 0 ] && [ "$again" != 127 ]; then code=$again; fi
    if [ "$gone" != 0 ]; then break; fi
done

# One write, by a builtin: a program started here could be killed with the rest of the job, and the code be lost.
# Readers wait for the line's end.
echo "$code" >&3

# A container ends with this, and takes with it whatever else runs there. What was asked to end may still be saving:
# it has until its grace is over. (-1 means every process but the first and this one.)
if [ "$alone" = alone ]; then
    while [ -e "$control/stopping" ] && kill -0 -1 2>/dev/null; do
        sleep 0.1 2>/dev/null || sleep 1 || break
    done
fi
exit "$code"
