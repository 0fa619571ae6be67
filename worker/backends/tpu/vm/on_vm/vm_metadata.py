"""The facts that a VM's metadata server has: its account's token, and its number in a slice."""

import json
import os
import urllib.request

from . import CALL_SECONDS

_METADATA = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")


def read_token() -> str:
    """Return an access token of the VM's account."""
    return str(json.loads(_read("service-accounts/default/token"))["access_token"])


def read_rank() -> int:
    """Return this VM's number in its slice, which is its index among the addresses that the TPU API lists."""
    return int(_read("attributes/agent-worker-number"))


def _read(path: str) -> bytes:
    url = f"http://{_METADATA}/computeMetadata/v1/instance/{path}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:  # noqa: S310 - the VM's own metadata server
        content: bytes = answer.read()
    return content
