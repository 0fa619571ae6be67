import os
import urllib.request

from . import CALL_SECONDS

_METADATA = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")


def read_rank() -> int:
    """Return this VM's number in its slice, which is its index among the addresses that the TPU API lists."""
    url = f"http://{_METADATA}/computeMetadata/v1/instance/attributes/agent-worker-number"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:  # noqa: S310 - the VM's own metadata server
        return int(answer.read())
