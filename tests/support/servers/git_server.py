"""A git server over HTTP for tests: real repositories, served by git itself."""

import base64
import os
import subprocess
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_AUTHOR = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}


def run_git(*arguments: str, cwd: Path, given: str = "") -> str:
    """Run git and return its output."""
    done = subprocess.run(
        ["git", *arguments], cwd=cwd, env=os.environ | _AUTHOR, input=given, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def commit_files(folder: Path, files: dict[str, str], branch: str = "main") -> str:
    """Commit files on a branch of a repository, created if missing, and return the commit."""
    if not (folder / ".git").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        run_git("init", "--quiet", "--initial-branch=main", cwd=folder)
    run_git("checkout", "--quiet", "-B", branch, cwd=folder)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
        run_git("add", "--force", name, cwd=folder)
    run_git("commit", "--quiet", "-m", branch, cwd=folder)
    return run_git("rev-parse", branch, cwd=folder)


def commit_tree(folder: Path, depth: int, names: list[str]) -> None:
    """Commit folders within each other, each with all of these names; the last ones are empty files."""
    folder.mkdir(parents=True)
    run_git("init", "--quiet", "--initial-branch=main", cwd=folder)
    kind, inner = "100644 blob", run_git("hash-object", "-w", os.devnull, cwd=folder)
    for _ in range(depth):
        lines = "".join(f"{kind} {inner}\t{name}\n" for name in names)
        kind, inner = "040000 tree", run_git("mktree", cwd=folder, given=lines)
    run_git("update-ref", "refs/heads/main", run_git("commit-tree", "-m", "tree", inner, cwd=folder), cwd=folder)


class GitServer:
    """Serves the repositories of a folder, `/NAME.git` being `NAME.git/.git` there, until it is closed.

    Attributes:
        requests: The path of every request, whatever came of it.
        on_request: Called at each.
        address: host:port.
    """

    def __init__(self, folder: Path, login: str | None = None, *, at: str = "127.0.0.1", port: int = 0) -> None:
        self.requests: list[str] = []
        self.on_request: Callable[[], object] = lambda: None
        self._server = ThreadingHTTPServer((at, port), _handler(folder, login, self))
        self._server.daemon_threads = True
        self.address = f"{at}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(served: Path, login: str | None, server: GitServer) -> type[BaseHTTPRequestHandler]:
    expected = None if login is None else f"Basic {base64.b64encode(login.encode()).decode()}"

    class Serve(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(self.path)
            server.on_request()
            if expected is not None and self.headers.get("Authorization") != expected:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="git"')
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            env = {
                "PATH": os.environ["PATH"],
                "GIT_PROJECT_ROOT": str(served),
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_CONFIG_COUNT": "1",
                "GIT_CONFIG_KEY_0": "safe.directory",
                "GIT_CONFIG_VALUE_0": "*",
                "REQUEST_METHOD": self.command,
                "PATH_INFO": path.replace(".git", ".git/.git"),
                "QUERY_STRING": query,
                "CONTENT_TYPE": self.headers.get("Content-Type") or "",
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "",
                "GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
            }
            done = subprocess.run(["git", "http-backend"], env=env, input=body, capture_output=True, check=True)
            head, _, content = done.stdout.partition(b"\r\n\r\n")
            headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(headers.pop("Status", "200").split()[0]))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 - the base class asks for it by this name

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    return Serve
