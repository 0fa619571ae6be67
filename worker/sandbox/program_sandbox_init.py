"""The first program inside the sandbox of git: makes the tunnel's socket, sets limits, drops root, becomes the command.

It runs by itself (`python -I -S`), with the standard library alone.

    program_sandbox_init.py SOCKET PORT UID FOLDER NAME=LIMIT,… COMMAND ARGUMENT…
"""

import os
import resource
import socket
import sys


def main() -> None:
    """Become the command.

    SOCKET is the descriptor to send the listening socket over; -1: none. UID -1: stay the same user.
    """
    out, port, uid, folder, limits, *command = sys.argv[1:]
    if int(out) >= 0:
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
    os.execv(command[0], command)  # noqa: S606 - a command of ours


main()
