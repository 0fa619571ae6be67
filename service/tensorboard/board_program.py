"""The program of one TensorBoard. It runs by itself, in a sandbox, without the service's modules.

    board_program.py SOCKET FLAG LOGDIR PREFIX MEMORY_BYTES

Connections arrive at SOCKET as descriptors, so it needs neither a network nor a socket with a name. When the service
ends, however it does, SOCKET closes, and the program ends with it.
"""

import logging
import os
import resource
import socket
import sys
import threading
import types
from collections.abc import Callable
from importlib import import_module
from typing import Any

_RELOAD_SECONDS = 5.0
_MAX_FILE_BYTES = 1024**2  # of its output, the only file that it can write


def main() -> None:
    """Serve until the service closes the socket."""
    number, flag, logdir, prefix, memory = sys.argv[1:]
    _limit_resources(int(memory))
    control = socket.socket(fileno=int(number))
    # TensorBoard then reads event files by itself, even where TensorFlow is installed, which is much larger.
    sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    default, program = import_module("tensorboard.default"), import_module("tensorboard.program")
    board = program.TensorBoard(
        plugins=default.get_static_plugins(), server_class=lambda app, _flags: _Server(app, control)
    )
    board.configure(
        **{flag: logdir},
        path_prefix=prefix,
        load_fast="false",
        reload_interval=_RELOAD_SECONDS,
        reload_multifile=True,
        reload_multifile_inactive_secs=-1,
    )
    board.launch()
    threading.Event().wait()


class _Server:
    def __init__(self, app: Callable[..., Any], control: socket.socket) -> None:
        self._control = control
        self._server = import_module("werkzeug.serving").make_server(
            "unix://", 0, app, threaded=True, fd=control.fileno()
        )
        self._server.server_address = ("tensorboard", 80)  # the socket has no name
        self._server.get_request = self._receive_connection

    def serve_forever(self) -> None:
        self._server.serve_forever()

    def get_url(self) -> str:
        return ""

    def _receive_connection(self) -> tuple[socket.socket, tuple[str, int]]:
        _, descriptors, _, _ = socket.recv_fds(self._control, 1, 1)
        if not descriptors:
            os._exit(0)
        return socket.socket(fileno=descriptors[0]), ("", 0)


def _limit_resources(memory: int) -> None:
    limits = (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, _MAX_FILE_BYTES), (resource.RLIMIT_DATA, memory)
    for kind, limit in limits:
        resource.setrlimit(kind, (limit, limit))
    os.nice(5)  # after the service and the jobs of this machine


if __name__ == "__main__":
    main()
