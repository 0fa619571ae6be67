"""Downloads the wheels in a folder of Cloud Storage, with the VM's own account.

Run as `python3 runner.pyz on_vm.wheels gs://BUCKET/FOLDER DESTINATION`.
"""

import base64
import hashlib
import re
import sys
import urllib.error
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from worker.runner.stores import NETWORK_ERRORS

from .bucket import Objects
from .vm_metadata import read_token

_CHUNK_BYTES = 1024**2
REQUIRED = ("pip", "tensorflow-tpu", "libtpu")
"""Packages whose wheels a folder must have; pip names those of TensorFlow's dependencies that are missing."""


def download(folder: str, destination: Path) -> None:
    """Download all wheels below a folder to one new directory."""
    name, prefix = split_url(folder)
    bucket = Objects(name, read_token)
    wheels = [item for item in bucket.list(prefix) if item["name"].endswith(".whl")]
    if lacking := find_lacking((item["name"] for item in wheels), REQUIRED):
        raise ValueError(f"this folder has no wheel of {', '.join(lacking)}; docs/tpu.md has the commands that fill it")
    sys.stderr.write(f"downloading {len(wheels)} wheels from {folder}\n")
    destination.mkdir()
    for item in wheels:
        _fetch(bucket, item, destination / item["name"].rpartition("/")[2])


def split_url(folder: str) -> tuple[str, str]:
    """Return the bucket of a folder, and the prefix of the objects below it."""
    bucket, _, path = folder.removeprefix("gs://").partition("/")
    return bucket, path.rstrip("/") + "/"


def find_lacking(names: Iterable[str], packages: Iterable[str]) -> list[str]:
    """Return the packages of which no wheel is among these objects."""
    files = [name.rpartition("/")[2] for name in names if name.endswith(".whl")]
    present = {re.sub(r"[-_.]+", "-", file.partition("-")[0]).lower() for file in files}
    return [package for package in packages if package not in present]


def _fetch(bucket: Objects, item: dict[str, Any], target: Path) -> None:
    md5, size = hashlib.md5(usedforsecurity=False), 0
    with bucket.open(item["name"]) as answer, target.open("wb") as file:
        while chunk := answer.read(_CHUNK_BYTES):
            file.write(chunk)
            md5.update(chunk)
            size += len(chunk)
    if size != int(item["size"]):
        raise ValueError(f"{item['name']} has {item['size']} bytes, but {size} arrived")
    # A composite object, as parallel uploads make it, has no MD5. pip checks the CRC of each file in a wheel.
    if "md5Hash" in item and base64.b64decode(item["md5Hash"]) != md5.digest():
        raise ValueError(f"{item['name']} arrived with a different MD5 than {item['md5Hash']}")


if __name__ == "__main__":
    try:
        download(sys.argv[1], Path(sys.argv[2]))
    except urllib.error.HTTPError as error:
        sys.exit(f"{sys.argv[1]}: {error.url}: HTTP {error.code}: {error.read().decode(errors='replace')}")
    except (*NETWORK_ERRORS, ValueError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
