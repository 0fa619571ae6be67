from __future__ import annotations

import os
from base64 import b64encode
from urllib.parse import SplitResult, unquote, urlsplit

from gradient_cli.errors import ConnectionFailed
from gradient_cli.terminal import sanitize


class Proxy:
    def __init__(self, variable: str, url: str) -> None:
        self.variable = variable
        self.url = url if "://" in url else f"http://{url}"
        try:
            parts = urlsplit(self.url)
            self.host, self.port = parts.hostname or "", parts.port or 80
        except ValueError:
            parts, self.host = urlsplit(""), ""
        if parts.scheme != "http" or not self.host:
            raise ConnectionFailed(
                f"{variable} is not a valid proxy address",
                hint="Set it to http://HOST:PORT, or add the server's host name to NO_PROXY.",
                transient=False,
            )
        self._user = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"

    def __str__(self) -> str:
        """Return its address without the password."""
        return sanitize(f"http://{self.host}:{self.port}")

    @property
    def headers(self) -> dict[str, str]:
        if self._user is None:
            return {}
        return {"Proxy-Authorization": f"Basic {b64encode(self._user.encode()).decode()}"}


def find_proxy(server: SplitResult) -> Proxy | None:
    """Return the proxy for a server; None: there is none, or the server is this machine.

    Raises `ConnectionFailed`: the variable does not name an HTTP proxy.
    """
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None  # the usual case, without an import
    from urllib.request import getproxies_environment, proxy_bypass  # slow to load

    proxies = getproxies_environment()
    kind = next((scheme for scheme in (server.scheme, "all") if proxies.get(scheme)), None)
    host = server.hostname or ""
    is_local = host in {"localhost", "::1"} or host.startswith("127.")
    if kind is None or is_local or proxy_bypass(f"{host}:{server.port}" if server.port else host):
        return None
    name = f"{kind}_proxy"
    return Proxy(name if os.environ.get(name) else name.upper(), proxies[kind])
