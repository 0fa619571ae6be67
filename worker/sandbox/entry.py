"""The first program inside a sandbox: creates the tunnel's socket, sets limits, drops root, becomes the command.

It runs by itself (`python -I -S`), with the standard library alone.

    entry.py SOCKET PORT ENVIRONMENT UID FOLDER NAME=LIMIT,… COMMAND ARGUMENT…
"""

import os
import resource
import sys


def main() -> None:
    """Become the command.

    SOCKET is the descriptor to send the listening socket over; -1: none. ENVIRONMENT is a descriptor to read the
    command's variables from, each ended by a zero byte; -1: they are this program's own. UID -1: stay the same user.
    """
    out, port, environment, uid, folder, limits, *command = sys.argv[1:]
    if int(out) >= 0:
        import socket  # noqa: PLC0415 - takes as long as the interpreter's start, and jobs need none

        # A socket keeps the network namespace that it was created in, whichever process accepts its connections.
        with socket.socket(fileno=int(out)) as sender, socket.create_server(("127.0.0.1", int(port))) as listener:
            socket.send_fds(sender, [b"."], [listener.fileno()])
    for name, value in (limit.split("=") for limit in limits.split(",")):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (int(value), int(value)))
    if int(uid) >= 0:
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    os.chdir(folder)  # only now: root without capabilities may enter less than the folder's owner
    env = dict(os.environb)
    if int(environment) >= 0:
        # Only now: a variable such as LD_PRELOAD must not reach a program that still has root's rights.
        with os.fdopen(int(environment), "rb") as file:
            env = dict(variable.split(b"=", 1) for variable in file.read().split(b"\0")[:-1])
    os.execve(command[0], command, env)  # noqa: S606 - a command of ours


main()
