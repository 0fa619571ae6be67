import json
import os
import urllib.request

from . import CALL_SECONDS

_METADATA = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")


def read_token() -> str:
    """Return an access token of the VM's account."""
    url = f"http://{_METADATA}/computeMetadata/v1/instance/service-accounts/default/token"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    with urllib.request.urlopen(request, timeout=CALL_SECONDS) as answer:  # noqa: S310 - the VM's own metadata server
        return str(json.load(answer)["access_token"])
