"""Check of the folder of wheels that new TPU nodes install; reads only."""

from collections.abc import Iterator, Sequence

from core.catalogue.machine_types import MachineType
from core.errors import GradientError
from core.settings import Settings
from core.storage.gcs.client import open_client, open_credentials, open_session
from gradient_server.checks.finding import Finding, ok, problem, warning
from worker.backends.tpu.storage.access_probe import impersonate
from worker.backends.tpu.storage.errors import translate_bucket_errors
from worker.backends.tpu.vm.agent.wheels import REQUIRED, find_lacking, split_url


def check(settings: Settings, machines: Sequence[MachineType]) -> Iterator[Finding]:
    """Check that the folder has the wheels, as the nodes' account if the worker may act as it."""
    tpu = settings.tpu
    if tpu.packages is None or all(tpu.on_vm(one.name, by_default=one.tpu_on_vm) for one in machines):
        return
    account = tpu.service_account or "Google's default account"
    bucket, prefix = split_url(tpu.packages)
    role = f"Grant {account} roles/storage.objectViewer on gs://{bucket}."
    try:
        own, _ = open_credentials(settings.gcs)
        acting = impersonate(own, open_session(settings.gcs), tpu.service_account) if tpu.service_account else None
        with translate_bucket_errors(bucket, "listing it"):
            found = [one.name for one in open_client(settings.gcs, acting or own).list_blobs(bucket, prefix=prefix)]
    except GradientError as error:
        yield problem(
            "tpu-packages",
            f"{tpu.packages} cannot be listed: {error.message}",
            f"Create the bucket if it is missing. {role}",
        )
        return
    if lacking := find_lacking(found, REQUIRED):
        yield problem(
            "tpu-packages",
            f"{tpu.packages} has no wheel of {', '.join(lacking)}: nodes cannot install TensorFlow.",
            "Fill it with the commands in docs/tpu.md.",
        )
    elif acting is None:
        yield warning(
            "tpu-packages",
            f"{tpu.packages} has the wheels of {', '.join(REQUIRED)}; whether the nodes' account may read them was not "
            "checked.",
            role,
        )
    else:
        yield ok("tpu-packages", f"{account} lists the wheels of {', '.join(REQUIRED)} in {tpu.packages}.")
