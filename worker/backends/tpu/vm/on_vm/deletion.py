"""Deletes this VM, as its own account."""

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request

from worker.runner.stores import NETWORK_ERRORS

from . import CALL_SECONDS
from .vm_metadata import read_token

_TPUS = "https://tpu.googleapis.com/v2"
_MISSING = 404


def delete_vm(resources: list[str]) -> None:
    """Delete the VM's queued resource or node; if its account may not, switch the VM off."""
    for name in resources:
        force = "?force=true" if "/queuedResources/" in name else ""
        try:
            url = f"{_TPUS}/{name}{force}"
            request = urllib.request.Request(url, headers={"Authorization": f"Bearer {read_token()}"}, method="DELETE")  # noqa: S310 - Google's
            urllib.request.urlopen(request, timeout=CALL_SECONDS).close()  # noqa: S310 - the same
        except (*NETWORK_ERRORS, ValueError) as error:
            sys.stderr.write(f"{name} was not deleted: {error}\n")
            if not (isinstance(error, urllib.error.HTTPError) and error.code == _MISSING):
                break
        else:
            return
    if os.environ.get("GRADIENT_VM_RUN", "docker") == "docker":
        subprocess.run([shutil.which("shutdown") or "shutdown", "-h", "now"], check=False)  # noqa: S603 - a fixed command
