"""Downloads the wheels in a folder of Cloud Storage, with the VM's own account.

Run as `python3 -m agent.wheels gs://BUCKET/FOLDER DESTINATION`.
"""

import base64
import hashlib
import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from . import CALL_SECONDS, NETWORK_ERRORS
from .vm_metadata import read_token

_STORAGE = os.environ.get("STORAGE_EMULATOR_HOST", "https://storage.googleapis.com")
_CHUNK_BYTES = 1024**2
REQUIRED = ("pip", "tensorflow-tpu", "libtpu")
"""Packages whose wheels a folder must have; pip names those of TensorFlow's dependencies that are missing."""


def download(folder: str, destination: Path) -> None:
    """Download all wheels below a folder to one new directory."""
    bucket, prefix = split_url(folder)
    objects = f"{_STORAGE}/storage/v1/b/{bucket}/o"
    wheels = [item for item in _list(objects, prefix) if item["name"].endswith(".whl")]
    if lacking := find_lacking((item["name"] for item in wheels), REQUIRED):
        raise ValueError(f"this folder has no wheel of {', '.join(lacking)}; docs/tpu.md has the commands that fill it")
    sys.stderr.write(f"downloading {len(wheels)} wheels from {folder}\n")
    destination.mkdir()
    for item in wheels:
        _fetch(objects, item, destination / item["name"].rpartition("/")[2])


def split_url(folder: str) -> tuple[str, str]:
    """Return the bucket of a folder, and the prefix of the objects below it."""
    bucket, _, path = folder.removeprefix("gs://").partition("/")
    return bucket, path.rstrip("/") + "/"


def find_lacking(names: Iterable[str], packages: Iterable[str]) -> list[str]:
    """Return the packages of which no wheel is among these objects."""
    files = [name.rpartition("/")[2] for name in names if name.endswith(".whl")]
    present = {re.sub(r"[-_.]+", "-", file.partition("-")[0]).lower() for file in files}
    return [package for package in packages if package not in present]


def _list(objects: str, prefix: str) -> Iterator[dict[str, Any]]:
    token = ""
    while True:
        query = urllib.parse.urlencode({"prefix": prefix} | ({"pageToken": token} if token else {}))
        with _open(f"{objects}?{query}") as answer:
            page = json.load(answer)
        yield from page.get("items", ())
        token = page.get("nextPageToken", "")
        if not token:
            return


def _fetch(objects: str, item: dict[str, Any], target: Path) -> None:
    md5, size = hashlib.md5(usedforsecurity=False), 0
    with _open(f"{objects}/{urllib.parse.quote(item['name'], safe='')}?alt=media") as answer, target.open("wb") as file:
        while chunk := answer.read(_CHUNK_BYTES):
            file.write(chunk)
            md5.update(chunk)
            size += len(chunk)
    if size != int(item["size"]):
        raise ValueError(f"{item['name']} has {item['size']} bytes, but {size} arrived")
    # A composite object, as parallel uploads make it, has no MD5. pip checks the CRC of each file in a wheel.
    if "md5Hash" in item and base64.b64decode(item["md5Hash"]) != md5.digest():
        raise ValueError(f"{item['name']} arrived with a different MD5 than {item['md5Hash']}")


def _open(url: str) -> Any:  # noqa: ANN401 - a response of urllib's, whose type it keeps to itself
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {read_token()}"})  # noqa: S310 - Google's, or a simulator's
    return urllib.request.urlopen(request, timeout=CALL_SECONDS)  # noqa: S310 - the same


if __name__ == "__main__":
    try:
        download(sys.argv[1], Path(sys.argv[2]))
    except urllib.error.HTTPError as error:
        sys.exit(f"{sys.argv[1]}: {error.url}: HTTP {error.code}: {error.read().decode(errors='replace')}")
    except (*NETWORK_ERRORS, ValueError) as error:
        sys.exit(f"{sys.argv[1]}: {error}")
