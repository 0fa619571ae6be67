"""The first program inside a sandbox: open its way out, set its limits, give up root, become the command.

It runs by itself (`python -I -S`), with the standard library alone.

    sandbox_entry.py SOCKET PORT UID FOLDER NAME=LIMIT,… COMMAND ARGUMENT…
"""

import os
import resource
import socket
import sys


def main() -> None:
    """Become the command; SOCKET is a descriptor that the listening socket is sent over, -1: no way out."""
    out, port, uid, folder, limits, *command = sys.argv[1:]
    if int(out) >= 0:
        # The network of a socket is the one that it was made in, whoever accepts connections of it later.
        with socket.socket(fileno=int(out)) as sender, socket.create_server(("127.0.0.1", int(port))) as listener:
            socket.send_fds(sender, [b"."], [listener.fileno()])
    for name, value in (limit.split("=") for limit in limits.split(",")):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (int(value), int(value)))
    if int(uid) >= 0:
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    os.chdir(folder)  # only now: root without capabilities may enter less than the folder's owner
    os.execve(command[0], command, dict(os.environ))  # noqa: S606 - a command of ours


main()
