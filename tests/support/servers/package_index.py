"""A package index on this machine, with packages that a test makes."""

import base64
import contextlib
import hashlib
import io
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_LOGIN = f"Basic {base64.b64encode(b'u:tok').decode()}"


class PackageIndex:
    """Serves the files of a folder by the simple API.

    Below `/private`, where alone packages are whose names begin so, it asks for the login `u:tok`.

    Attributes:
        url: Address for UV_DEFAULT_INDEX.
        requests: Methods and paths that were requested.
        opened: Requests wait for it; set at first.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.requests: list[str] = []
        self.opened = threading.Event()
        self.opened.set()
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                index.requests.append(f"{self.command} {self.path}")
                index.opened.wait(60)
                refused = self.path.startswith("/private/") and self.headers["Authorization"] != _LOGIN
                hidden = refused or (self.path.startswith("/simple/private"))
                body = None if hidden else index.respond(self.path)
                self.send_response(401 if refused else 200 if body is not None else 404)
                self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/zip")
                self.send_header("Content-Length", str(len(body or b"")))
                with contextlib.suppress(ConnectionError):  # the client may have been stopped meanwhile
                    self.end_headers()
                    if self.command == "GET":
                        self.wfile.write(body or b"")

            do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

            def log_message(self, *args):
                del args

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/simple"

    def respond(self, path: str) -> bytes | None:
        *_, project, name = path.split("/")
        if name:
            file = self.folder / name
            return file.read_bytes() if file.is_file() else None
        files = [file for file in self.folder.iterdir() if file.name.startswith(f"{project.replace('-', '_')}-")]
        links = (f'<a href="/files/{file.name}#sha256={_sha256(file)}">{file.name}</a>' for file in files)
        return f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>".encode() if files else None

    def add_wheel(
        self,
        name: str,
        version: str = "1.0",
        *,
        requires: tuple[str, ...] = (),
        start: str | None = None,
        module: str | None = None,
    ) -> Path:
        """Add a module that has `VERSION`, with a program of its name that prints it.

        `start` is a line of Python that an environment's interpreter runs whenever it starts (a `.pth` file); `module`
        is the module's name, where it is another.
        """
        info = f"{name}-{version}.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        program = "def main():\n    import sys\n    print(VERSION, sys.prefix)\n"
        files = {
            f"{module or name}.py": f"VERSION = {version!r}\n{program}",
            f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {one}\n" for one in requires),
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
        }
        if start is not None:
            files[f"{name}.pth"] = f"import os; {start}\n"
        files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*files, f"{info}/RECORD"))
        wheel = self.folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
        return wheel

    def add_source(self, name: str, version: str = "1.0", *, build: str = "") -> None:
        """Add a package that has to be built: it runs `build`, and has `VERSION`."""
        content = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        files = {"PKG-INFO": content, **source_files(name, version, build=build)}
        with tarfile.open(self.folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
            for path, text in files.items():
                entry = tarfile.TarInfo(f"{name}-{version}/{path}")
                entry.size = len(text.encode())
                archive.addfile(entry, io.BytesIO(text.encode()))

    def close(self) -> None:
        self.opened.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def source_files(name: str, version: str = "1.0", *, build: str = "", requires: tuple[str, ...] = ()) -> dict[str, str]:
    """The files of a project that has a build of its own, and needs nothing for it."""
    project = f'[project]\nname = "{name}"\nversion = "{version}"\ndependencies = {list(requires)}\n'
    system = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    values = {"NAME": name, "PROJECT_VERSION": version, "REQUIRES": list(requires)}
    head = "".join(f"{key} = {value!r}\n" for key, value in values.items())
    return {
        "pyproject.toml": project + system,
        "backend.py": f"{head}{_BACKEND}\n{build}\n",
        f"{name}.py": f"VERSION = {version!r}\n",
    }


_BACKEND = """
import os, pathlib, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None, editable=False):
    info = f"{NAME}-{PROJECT_VERSION}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\\n" for one in REQUIRES)
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\\nName: {NAME}\\nVersion: {PROJECT_VERSION}\\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    if editable:
        files[f"{NAME}.pth"] = os.getcwd() + "\\n"
    else:
        files[f"{NAME}.py"] = pathlib.Path(f"{NAME}.py").read_text()
    files[f"{info}/RECORD"] = "".join(f"{path},,\\n" for path in (*files, f"{info}/RECORD"))
    wheel = f"{NAME}-{PROJECT_VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, wheel), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel

def build_editable(folder, config_settings=None, metadata_directory=None):
    return build_wheel(folder, editable=True)
"""


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
