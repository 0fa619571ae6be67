"""The installed client as files: as a wheel, and as an archive that other programs import it from."""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import zipfile
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

_DISTRIBUTION = "gradient-jobs-client"
_OURS = ("gradient_cli", "gradient_jobs")
_TIME = (1980, 1, 1, 0, 0, 0)
_FILE = 0o644 << 16
_WHEEL = b"Wheel-Version: 1.0\nGenerator: gradient-jobs\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def file_name() -> str:
    return f"{_name()}-py3-none-any.whl"


@functools.cache
def build() -> bytes:
    """Return the wheel of the installed client; the same client gives the same bytes."""
    files = package_files(*_OURS)
    installed, info = distribution(_DISTRIBUTION), f"{_name()}.dist-info"
    for name in ("METADATA", "entry_points.txt"):
        files[f"{info}/{name}"] = (installed.read_text(name) or "").encode()
    files[f"{info}/WHEEL"] = _WHEEL
    record = f"{info}/RECORD"
    lines = [f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in files.items()]
    return pack({**files, record: "".join([*lines, f"{record},,\n"]).encode()})


@functools.cache
def build_library() -> bytes:
    """Return an archive to be put on a program's path, with the client and the package that it needs."""
    return pack(package_files(*_OURS, "pathspec"))


def pack(files: dict[str, bytes]) -> bytes:
    """Return a zip archive of these files by name; its bytes depend on nothing else."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _TIME)
            entry.external_attr = _FILE
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def package_files(*packages: str) -> dict[str, bytes]:
    files = {}
    for package in packages:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    files[f"{package}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return files


def _name() -> str:
    return f"{_DISTRIBUTION.replace('-', '_')}-{distribution(_DISTRIBUTION).version}"


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
