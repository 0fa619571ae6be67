"""Checks of Google Cloud for TPU jobs: credentials, permissions, what zones offer, network, packages, buckets."""

from collections.abc import Iterator, Sequence

from core.catalogue.machine_types import Catalogue, MachineType
from core.errors import GradientError
from core.settings import Settings
from core.storage.gcs.client import open_client, open_credentials, open_session
from gradient_server.checks import tpu_network
from gradient_server.checks.finding import Finding, ok, problem, warning
from worker.backends.tpu import node_state
from worker.backends.tpu.api import ApiError, ApiUnavailable, NotPermitted, TpuApi
from worker.backends.tpu.provisioning.node_request import runtime_for
from worker.backends.tpu.storage.access import impersonate
from worker.backends.tpu.storage.errors import translate_bucket_errors
from worker.backends.tpu.storage.job_storage import OpenBucket, region_of
from worker.backends.tpu.vm.on_vm.wheels import REQUIRED, find_lacking, split_url

_ROLES = "roles/tpu.admin, and roles/iam.serviceAccountUser on the account that nodes act as"


def check(settings: Settings, open_bucket: OpenBucket | None = None) -> Iterator[Finding]:
    """Check everything, in the order in which to fix it; changes nothing.

    `open_bucket`: opens the bucket of a region; None: jobs have none.
    """
    tpu = settings.tpu
    if tpu.backend is None:
        yield warning(
            "tpu",
            "No Google Cloud project is set: TPU types are simulated, or not offered.",
            "Set GRADIENT_TPU__PROJECT and GRADIENT_TPU__ZONES; or try it with `gradient-server tpu-simulator`.",
        )
        return
    api = TpuApi(tpu)
    try:
        api.connect()
    except ApiError as error:
        yield problem(
            "tpu",
            f"No credentials for Google Cloud were found ({error}).",
            "Give this machine a service account, or point GOOGLE_APPLICATION_CREDENTIALS at a key file.",
        )
        return
    where = f"simulator at {tpu.simulator_address}" if tpu.simulator_address else f"project {tpu.project}"
    yield ok("tpu", f"TPU jobs use the {where}.")
    wanted = [
        machine for machine in _tpu_machine_types(settings) if settings.tpu.provisioning_for(machine.name) != "pool"
    ]
    yield from _zones(settings, api, wanted)
    if tpu.simulator_address is None:
        yield from tpu_network.check(settings, wanted, api)
        yield from _check_packages(settings, wanted)
    yield from _pool(settings, api)
    yield from _buckets(settings, open_bucket)


def _zones(settings: Settings, api: TpuApi, wanted: list[MachineType]) -> Iterator[Finding]:
    """Check that each zone can be queried, and offers the wanted types and runtimes."""
    if not settings.tpu.zones and wanted:
        names = ", ".join(machine.name for machine in wanted)
        yield problem(
            "tpu-zones", f"No zone is set for {names}.", 'Set GRADIENT_TPU__ZONES, for example ["us-central1-b"].'
        )
    offered: dict[str, set[str]] = {}
    for zone in settings.tpu.zones:
        try:
            api.nodes(zone)
            api.queued_resources(zone)
            offered[zone] = api.accelerator_types(zone)
            runtimes = api.runtime_versions(zone)
        except ApiError as error:
            yield _api_problem(zone, error)
            continue
        yield ok("tpu-access", f"{zone}: nodes and queued resources can be listed.")
        yield from _runtimes(
            settings, zone, [machine for machine in wanted if machine.tpu_type in offered[zone]], runtimes
        )
    yield from _offered(wanted, offered)


def _api_problem(zone: str, error: ApiError) -> Finding:
    if isinstance(error, ApiUnavailable) and not isinstance(error, NotPermitted):
        return problem(
            "tpu-access",
            f"{zone}: the TPU API does not answer: {error}",
            "Check the proxy and firewall between here and tpu.googleapis.com, and status.cloud.google.com.",
        )
    return problem(
        "tpu-access",
        f"{zone}: the TPU API refused the request: {error}",
        "Correct GRADIENT_TPU__ZONES if this is not a zone with TPUs (`gcloud compute tpus locations list`). "
        f"Otherwise enable tpu.googleapis.com in the project, and grant the worker's account {_ROLES}.",
    )


def _runtimes(settings: Settings, zone: str, machines: list[MachineType], available: set[str]) -> Iterator[Finding]:
    for machine in machines:
        wanted = runtime_for(machine, settings.tpu)
        if wanted not in available:
            yield problem(
                "tpu-runtime",
                f"{zone} has no runtime version {wanted}, which {machine.name} needs.",
                f'Set GRADIENT_TPU__RUNTIMES={{"{machine.name}": "…"}} to one of those that '
                f"`gcloud compute tpus tpu-vm versions list --zone {zone}` shows.",
            )


def _offered(wanted: list[MachineType], offered: dict[str, set[str]]) -> Iterator[Finding]:
    """Tell which types the zones offer, and which they do not: few people use all of them."""
    lacking = []
    for machine in wanted:
        zones = [zone for zone, types in offered.items() if machine.tpu_type in types]
        if zones:
            yield ok("tpu-offer", f"{machine.name} ({machine.tpu_type}) is offered in {', '.join(zones)}.")
        else:
            lacking.append(f"{machine.name} ({', '.join(machine.zones) or 'no zone known'})")
    if offered and lacking:
        yield warning(
            "tpu-offer",
            f"Not offered in any of {', '.join(offered)}: {'; '.join(lacking)}.",
            "Nothing, unless you use these types. To use one, add one of the zones in brackets to GRADIENT_TPU__ZONES.",
        )


def _pool(settings: Settings, api: TpuApi) -> Iterator[Finding]:
    """Check that each node of a pool exists, has its machine type's TPU type, and is healthy."""
    types = {machine.name: machine.tpu_type for machine in _tpu_machine_types(settings)}
    for machine, names in settings.tpu.pool.items():
        if machine not in types:
            yield problem(
                "tpu-pool",
                f"GRADIENT_TPU__POOL names nodes for {machine!r}, which is not a TPU type.",
                f"Use one of {', '.join(types)}.",
            )
            continue
        for name in names:
            yield _pool_node(api, name, machine, str(types[machine]))


def _pool_node(api: TpuApi, name: str, machine: str, wanted: str) -> Finding:
    zone, slash, node_id = name.partition("/")
    fix = f"Correct GRADIENT_TPU__POOL, or repair the node: gcloud compute tpus tpu-vm describe {node_id} --zone {zone}"
    if not slash:
        return problem("tpu-pool", f"{name!r} has no zone.", "Write it as ZONE/NAME, such as us-central1-b/my-tpu.")
    try:
        node = api.node(zone, node_id)
    except ApiError as error:
        return _api_problem(zone, error)
    if node is None:
        return problem("tpu-pool", f"Node {name} does not exist.", fix)
    if node.accelerator_type not in {"", wanted}:
        return problem("tpu-pool", f"{name} is a {node.accelerator_type}, but {machine} needs a {wanted}.", fix)
    trouble = node_state.permanent_failure(node) or node_state.temporary_failure(node)
    if trouble is not None:
        return warning("tpu-pool", f"{trouble.detail}.", fix)
    return ok("tpu-pool", f"{name} is {node.state}.")


def _buckets(settings: Settings, open_bucket: OpenBucket | None) -> Iterator[Finding]:
    """Check that each region's bucket is usable, also by the service account of the TPUs."""
    if open_bucket is None:
        return
    names = [*settings.tpu.zones, *(name.partition("/")[0] for pool in settings.tpu.pool.values() for name in pool)]
    signs = any(settings.tpu.on_vm(by_default=machine.tpu_on_vm) for machine in _tpu_machine_types(settings))
    for region in dict.fromkeys(map(region_of, names)):
        try:
            inspection = open_bucket(region).inspect(settings.tpu.service_account, signs=signs)
        except GradientError as error:
            yield problem(
                "tpu-bucket",
                f"The bucket for {region}: {error.message}",
                "The worker's account needs roles/storage.admin on the bucket and, for jobs on TPU VMs, "
                "roles/iam.serviceAccountTokenCreator on itself and the API iamcredentials.googleapis.com.",
            )
        else:
            fix = (
                "Nothing if the account may create buckets and all types run on their TPU VMs. Otherwise set "
                "GRADIENT_TPU__SERVICE_ACCOUNT, and grant the worker roles/iam.serviceAccountTokenCreator on it."
            )
            text = f"The bucket for {region}: {inspection.statement}"
            yield ok("tpu-bucket", text) if inspection.proved else warning("tpu-bucket", text, fix)


def _tpu_machine_types(settings: Settings) -> list[MachineType]:
    catalogue = Catalogue.offered(settings)
    return [machine for machine in catalogue if machine.backend == "tpu"]


def _check_packages(settings: Settings, machines: Sequence[MachineType]) -> Iterator[Finding]:
    """Check that the folder has the wheels, as the nodes' account if the worker may act as it."""
    tpu = settings.tpu
    if tpu.packages is None or all(tpu.on_vm(by_default=machine.tpu_on_vm) for machine in machines):
        return
    account = tpu.service_account or "Google's default account"
    bucket, prefix = split_url(tpu.packages)
    role = f"Grant {account} roles/storage.objectViewer on gs://{bucket}."
    try:
        credentials, _ = open_credentials(settings.gcs)
        acting = (
            impersonate(credentials, open_session(settings.gcs), tpu.service_account) if tpu.service_account else None
        )
        with translate_bucket_errors(bucket, "listing it"):
            names = [
                blob.name for blob in open_client(settings.gcs, acting or credentials).list_blobs(bucket, prefix=prefix)
            ]
    except GradientError as error:
        yield problem(
            "tpu-packages",
            f"{tpu.packages} cannot be listed: {error.message}",
            f"Create the bucket if it is missing. {role}",
        )
        return
    if lacking := find_lacking(names, REQUIRED):
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
