"""The download of MNIST for `make demo`, from the address and with the checksum that Keras uses."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from pathlib import Path

from gradient_cli.workspace.transfer.progress import Progress

KERAS_URL = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
KERAS_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
PATIENCE_SECONDS = 5.0
"""Seconds without a byte after which a download is given up."""
_BLOCK = 1 << 16


class DownloadFailed(Exception):
    """MNIST could not be downloaded; the message says why."""


def download(target: Path) -> None:
    """Download MNIST, unless the file is there already.

    Raises:
        DownloadFailed: The address cannot be reached or does not answer in time, or it sent something else.
    """
    if target.is_file() and _sha256(target) == KERAS_SHA256:
        return
    url = os.environ.get("GRADIENT_DEMO_MNIST_URL", KERAS_URL)
    part = target.with_suffix(".part")
    try:
        _receive(url, part)
        if (digest := _sha256(part)) != KERAS_SHA256:
            raise DownloadFailed(f"{url} sent another file than Keras expects (its SHA-256 is {digest})")
        part.replace(target)
    except urllib.error.HTTPError as error:
        with error:
            raise DownloadFailed(f"{url} answered {error.code} {error.reason}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise DownloadFailed(f"MNIST cannot be downloaded from {url} ({why})") from None
    finally:
        part.unlink(missing_ok=True)


def _receive(url: str, part: Path) -> None:
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response, part.open("wb") as file:  # noqa: S310 - the user's own address
        size, done = int(response.headers.get("Content-Length") or 0), 0
        progress = Progress("downloading MNIST", size)
        try:
            while block := response.read(_BLOCK):
                file.write(block)
                done += len(block)
                progress.update(done)
        finally:
            progress.close()
    if done < size:
        raise DownloadFailed(f"the download from {url} broke off after {done:,} of {size:,} bytes")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
