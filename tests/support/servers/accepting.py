"""Servers of the tests accept without waiting.

A connection that was announced and is gone would hold up a server's thread, and the end of the run.
"""

import socketserver

_activate = socketserver.TCPServer.server_activate


def _activate_without_waiting(server: socketserver.TCPServer) -> None:
    _activate(server)
    server.socket.settimeout(0.0)


socketserver.TCPServer.server_activate = _activate_without_waiting  # type: ignore[method-assign]
