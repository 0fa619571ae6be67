"""A client for Google's TPU API, which classifies its errors and replaces its messages with plain values.

| Google's answer | error | a start | a job that runs, a deletion, the sweep |
|---|---|---|---|
| none, 5xx, too many requests | ApiUnavailable | asks again | ask again; the sweep goes on with the next zone |
| 401, 403, or 404 of the zone | NotPermitted | the next zone, or asks again | as above |
| 404 of a resource | none: None or False | creates it | it is gone |
| any other refusal | ApiRefused | the next zone, or ends, by its reason | as above |

A resource is missing only if the list of its zone lacks it, too. Every call has a time limit: the library has none.
"""

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, TypeVar

import grpc
from cachetools import TTLCache
from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError
from google.cloud import tpu_v2
from google.longrunning import operations_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from requests import RequestException

from core.jobs.spec.data_disks import DataDisk
from core.settings.cloud import TpuSettings
from core.storage.gcs.credentials import find_credentials
from worker.backends.tpu import times
from worker.backends.tpu.flex_start import create_flex_start

T = TypeVar("T")
R = TypeVar("R", "Node", "QueuedResource")

TPU_PORT = 8470
CAPACITY, QUOTA, DENIED, FAILED = "tpu_capacity", "tpu_quota", "tpu_denied", "tpu_failed"
_RATE_LIMIT = "RATE_LIMIT_EXCEEDED"
_RATE_WORDS = re.compile(r"per (second|minute|hour|day)\b|\(e\.g\. check quota\)", re.IGNORECASE)
"""In Google's words about too many requests, where it has no code for them; a quota of TPUs is not by time."""
_CHANNEL_OPTIONS = (("grpc.max_reconnect_backoff_ms", 2_000), ("grpc.min_reconnect_backoff_ms", 10_000))
"""After an outage a connection is tried again at once, and each try has 10 seconds: gRPC itself pauses up to two
minutes, in which a device is billed."""
_MAX_ZONES, _OFFER_SECONDS = 200, 3600.0
_UNAVAILABLE = (
    exceptions.ServerError,  # 500, 503, 504
    exceptions.Unknown,
    exceptions.RetryError,
    exceptions.Aborted,
    exceptions.Cancelled,
    GoogleAuthError,  # the account's server did not answer
    RequestException,
)
_CAPACITY_CODES = frozenset({code_pb2.RESOURCE_EXHAUSTED, code_pb2.DEADLINE_EXCEEDED})
_DENIED_CODES = frozenset(
    {code_pb2.PERMISSION_DENIED, code_pb2.FAILED_PRECONDITION, code_pb2.INVALID_ARGUMENT, code_pb2.UNAUTHENTICATED}
)


class ApiError(Exception):
    """The request was refused, or there was no answer."""


class ApiUnavailable(ApiError):
    """No answer, or one that may be another in a moment: the request may have been carried out or not.

    `delay`: seconds for which Google asks not to be asked again.
    """

    reason = "tpu_api_unavailable"

    def __init__(self, detail: str, delay: float = 0.0) -> None:
        super().__init__(detail)
        self.delay = delay


class NotPermitted(ApiUnavailable):
    """The credentials or a permission are refused: a role may have been granted, or a key replaced, a moment ago."""

    reason = DENIED


class ApiRefused(ApiError):
    """The API refused a request.

    `reason`: CAPACITY: another zone or time may work; QUOTA: the project may not have as many; DENIED: nothing will
    work without a change by an administrator; FAILED: it tried and could not.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node; states and health by the API's names."""

    zone: str
    id: str
    state: str
    health: str
    health_detail: str
    endpoints: tuple[tuple[str, int], ...]
    labels: dict[str, str]
    accelerator_type: str
    spot: bool
    created: float

    @property
    def url(self) -> str:
        """Address of its device for TensorFlow; the first endpoint is the one to contact first."""
        return ",".join(f"grpc://{address}:{port}" for address, port in self.endpoints)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedResource:
    zone: str
    id: str
    state: str
    by_user: bool  # a user, not Google, caused this state
    error: ApiRefused | None
    labels: dict[str, str]
    spot: bool
    created: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    id: str
    accelerator_type: str
    runtime: str
    labels: dict[str, str]
    hosts: int  # its virtual machines, as far as the catalogue knows
    spot: bool
    run_seconds: int | None
    """Time after which Google deletes a node of flex-start capacity; None: it has another capacity."""
    price: float | None  # US dollars per hour of its capacity; None: the machine type's
    reservation: str | None  # reservation that it is to be taken from, ZONE/NAME
    disks: tuple[DataDisk, ...] = ()
    zones: frozenset[str] | None = None  # zones that have its disks; None: it has none
    startup: Callable[[str], str]  # returns the start-up script of a node in this zone
    shutdown: str | None = None  # script that a node runs when it is shut down


class TpuApi:
    """See the module; usable from any thread. Every method raises ApiUnavailable and ApiRefused."""

    def __init__(self, settings: TpuSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._project = settings.project or "simulated"
        self._offered: TTLCache[str, set[str]] = TTLCache(_MAX_ZONES, _OFFER_SECONDS)

    def connect(self) -> None:
        """Create a client with credentials; sends no request."""
        self._call(lambda: self._v2)

    def node(self, zone: str, node_id: str) -> Node | None:
        name = f"{self._zone(zone)}/nodes/{node_id}"
        message = self._find(lambda: self._v2.get_node(name=name, timeout=self._timeout))
        return _named(node_id, self.nodes(zone)) if message is None else _node(message)

    def nodes(self, zone: str) -> list[Node]:
        return [_node(node) for node in self._list(zone, lambda: self._v2.list_nodes)]

    def create_node(self, zone: str, request: NodeRequest) -> str | None:
        """Create a node; return the operation's name, or None if a node of this name exists."""
        request = tpu_v2.CreateNodeRequest(
            parent=self._zone(zone), node_id=request.id, node=self._node_message(zone, request)
        )
        return self._create(lambda: self._v2.create_node(request, timeout=self._timeout).operation.name)

    def delete_node(self, zone: str, node_id: str) -> bool:
        """Delete a node; return False if there is none."""
        name = f"{self._zone(zone)}/nodes/{node_id}"
        message = self._find(lambda: self._v2.delete_node(name=name, timeout=self._timeout))
        return message is not None or _named(node_id, self.nodes(zone)) is not None

    def queued(self, zone: str, queued_id: str) -> QueuedResource | None:
        name = f"{self._zone(zone)}/queuedResources/{queued_id}"
        message = self._find(lambda: self._v2.get_queued_resource(name=name, timeout=self._timeout))
        return _named(queued_id, self.queued_resources(zone)) if message is None else _queued(message)

    def queued_resources(self, zone: str) -> list[QueuedResource]:
        return [_queued(resource) for resource in self._list(zone, lambda: self._v2.list_queued_resources)]

    def create_queued(self, zone: str, request: NodeRequest, valid_seconds: float) -> str | None:
        """Create a queued resource; return the operation's name, or None if it exists."""
        parent = self._zone(zone)
        spec = tpu_v2.QueuedResource.Tpu.NodeSpec(
            parent=parent, node_id=request.id, node=self._node_message(zone, request)
        )
        wanted = tpu_v2.QueuedResource(
            tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]),
            queueing_policy=tpu_v2.QueuedResource.QueueingPolicy(valid_until_duration=timedelta(seconds=valid_seconds)),
        )
        if request.spot:
            wanted.spot = tpu_v2.QueuedResource.Spot()
        if request.reservation is not None:
            wanted.guaranteed = tpu_v2.QueuedResource.Guaranteed()
            wanted.reservation_name = f"{parent}/reservations/{request.reservation.partition('/')[2]}"
        message = tpu_v2.CreateQueuedResourceRequest(
            parent=parent, queued_resource_id=request.id, queued_resource=wanted
        )
        run_seconds = request.run_seconds
        if run_seconds is not None:
            return self._create(
                lambda: create_flex_start(self._credentials, self._v2.api_endpoint, message, run_seconds, self._timeout)
            )
        return self._create(lambda: self._v2.create_queued_resource(message, timeout=self._timeout).operation.name)

    def delete_queued(self, zone: str, queued_id: str) -> bool:
        """Delete a queued resource and its node; return False if there is none."""
        name = f"{self._zone(zone)}/queuedResources/{queued_id}"
        request = tpu_v2.DeleteQueuedResourceRequest(name=name, force=True)
        message = self._find(lambda: self._v2.delete_queued_resource(request, timeout=self._timeout))
        return message is not None or _named(queued_id, self.queued_resources(zone)) is not None

    def check_operation(self, name: str) -> bool:
        """Return whether an operation is over; raises its error. A forgotten operation counts as over."""
        # The client's own method of this name is untyped and takes anything; futures use the transport's one, too.
        operations = self._v2.transport.operations_client
        operation: operations_pb2.Operation | None = self._find(
            lambda: operations.get_operation(name, timeout=self._timeout)
        )
        if operation is None:
            return True
        if operation.done and operation.HasField("error"):
            raise _to_refusal(operation.error)
        return bool(operation.done)

    def accelerator_types(self, zone: str) -> set[str]:
        return {type_message.type_ for type_message in self._list(zone, lambda: self._v2.list_accelerator_types)}

    def offers(self, zone: str, accelerator_type: str) -> bool:
        """Return whether a zone offers a TPU type, for all that is known; the API is asked once in a while."""
        with self._lock:
            offered = self._offered.get(zone)
        if offered is None:
            try:
                offered = self.accelerator_types(zone)
            except ApiError:
                return True  # the request itself tells
            with self._lock:
                self._offered[zone] = offered
        return not offered or accelerator_type in offered

    def runtime_versions(self, zone: str) -> set[str]:
        return {version_message.version for version_message in self._list(zone, lambda: self._v2.list_runtime_versions)}

    @property
    def _timeout(self) -> float:
        return times.TIMEOUT_SECONDS

    @cached_property
    def _v2(self) -> tpu_v2.TpuClient:
        return tpu_v2.TpuClient(**self._connection())

    @cached_property
    def _credentials(self) -> Any:  # noqa: ANN401 - of any kind
        return find_credentials()[0]

    def _connection(self) -> dict[str, Any]:
        """Build the client's arguments; a simulator has plain HTTP/2 without credentials."""
        transport: Any = tpu_v2.TpuClient.get_transport_class("grpc")
        simulator = self._settings.simulator_address
        if simulator is not None:
            return {"transport": transport(channel=grpc.insecure_channel(simulator, _CHANNEL_OPTIONS))}

        def open_channel(*arguments: Any, options: Iterable[Any] = (), **others: Any) -> grpc.Channel:  # noqa: ANN401 - arguments of grpc
            return transport.create_channel(*arguments, options=[*options, *_CHANNEL_OPTIONS], **others)

        return {"credentials": self._credentials, "transport": partial(transport, channel=open_channel)}

    def _zone(self, zone: str) -> str:
        return f"projects/{self._project}/locations/{zone}"

    def _node_message(self, zone: str, request: NodeRequest) -> tpu_v2.Node:
        settings = self._settings
        node = tpu_v2.Node(
            accelerator_type=request.accelerator_type,
            runtime_version=request.runtime,
            labels=request.labels,
            tags=settings.tags,
            data_disks=[_disk_message(f"projects/{self._project}/zones/{zone}", disk) for disk in request.disks],
            metadata={"startup-script": request.startup(zone)}
            | ({"shutdown-script": request.shutdown} if request.shutdown is not None else {}),
            network_config=tpu_v2.NetworkConfig(
                network=settings.network or "",
                subnetwork=settings.subnetwork or "",
                enable_external_ips=settings.external_ips,
            ),
        )
        if settings.service_account:
            node.service_account = tpu_v2.ServiceAccount(
                email=settings.service_account, scope=["https://www.googleapis.com/auth/cloud-platform"]
            )
        if request.spot:
            node.scheduling_config = tpu_v2.SchedulingConfig(spot=True)
        if request.reservation is not None:
            node.scheduling_config = tpu_v2.SchedulingConfig(reserved=True)
        return node

    def _create(self, action: Callable[[], str]) -> str | None:
        try:
            return self._call(action, creates=True)
        except exceptions.AlreadyExists:
            return None
        except exceptions.NotFound as error:  # for example, the network, or the zone
            raise ApiRefused(DENIED, error.message) from error

    def _find(self, action: Callable[[], T]) -> T | None:
        try:
            return self._call(action)
        except exceptions.NotFound:
            return None

    def _list(self, zone: str, method: Callable[[], Callable[..., Iterable[Any]]]) -> list[Any]:
        """List what a zone has; one that Google does not know may be one that it hides from this account."""
        try:
            return self._call(lambda: list(method()(parent=self._zone(zone), timeout=self._timeout)))
        except exceptions.NotFound as error:
            raise NotPermitted(f"{zone}: {error.message}") from error

    def _call(self, action: Callable[[], T], *, creates: bool = False) -> T:
        """Send a request and convert its errors; AlreadyExists and NotFound are left to the caller."""
        try:
            return action()
        except (exceptions.AlreadyExists, exceptions.NotFound):
            raise
        except exceptions.TooManyRequests as error:  # 429: called too often; for a creation, no capacity or quota
            if error.reason == _RATE_LIMIT or not creates or _RATE_WORDS.search(error.message):
                raise ApiUnavailable(error.message, _delay(error)) from error
            raise ApiRefused(_exhausted(error.message), error.message) from error
        except (exceptions.Unauthorized, exceptions.Forbidden) as error:
            if isinstance(error, exceptions.Unauthorized):
                self._credentials.token = None  # the next call makes another, of the key that is there then
            raise NotPermitted(error.message) from error
        except _UNAVAILABLE as error:
            raise ApiUnavailable(str(error), _delay(error)) from error
        except exceptions.GoogleAPICallError as error:
            raise ApiRefused(DENIED, error.message) from error


def _delay(error: Exception) -> float:
    details = getattr(error, "details", ())
    delays = [detail.retry_delay for detail in details if isinstance(detail, error_details_pb2.RetryInfo)]
    return max((delay.seconds + delay.nanos / 1e9 for delay in delays), default=0.0)


def _named(resource_id: str, listed: Iterable[R]) -> R | None:
    return next((resource for resource in listed if resource.id == resource_id), None)


def _disk_message(zone: str, disk: DataDisk) -> tpu_v2.AttachedDisk:
    mode = tpu_v2.AttachedDisk.DiskMode.READ_WRITE if disk.writable else tpu_v2.AttachedDisk.DiskMode.READ_ONLY
    return tpu_v2.AttachedDisk(source_disk=f"{zone}/disks/{disk.name}", mode=mode)


def _node(message: tpu_v2.Node) -> Node:
    _, _, _, zone, _, node_id = message.name.split("/")
    scheduling = message.scheduling_config
    return Node(
        zone=zone,
        id=node_id,
        state=message.state.name.removeprefix("STATE_"),
        health=message.health.name.removeprefix("HEALTH_"),
        health_detail=message.health_description,
        endpoints=tuple(
            (endpoint.ip_address, int(endpoint.port or TPU_PORT)) for endpoint in message.network_endpoints
        ),
        labels=dict(message.labels),
        accelerator_type=message.accelerator_type,
        spot=bool(scheduling.preemptible or scheduling.spot),
        created=_seconds(message),
    )


def _queued(message: tpu_v2.QueuedResource) -> QueuedResource:
    _, _, _, zone, _, queued_id = message.name.split("/")
    state = message.state
    specs: Iterable[Any] = message.tpu.node_spec
    return QueuedResource(
        zone=zone,
        id=queued_id,
        state=state.state.name,
        by_user=state.state_initiator.name == "USER",
        error=_to_refusal(state.failed_data.error) if state.state.name == "FAILED" else None,
        labels={key: value for spec in specs for key, value in spec.node.labels.items()},
        spot="spot" in message,
        created=_seconds(message),
    )


def _seconds(message: Any) -> float:  # noqa: ANN401 - a node or a queued resource
    return float(message.create_time.timestamp()) if message.create_time else 0.0


def _to_refusal(status: status_pb2.Status) -> ApiRefused:
    """Convert an operation's error into the refusal of a call."""
    if status.code in _CAPACITY_CODES:
        return ApiRefused(_exhausted(status.message), status.message)
    return ApiRefused(DENIED if status.code in _DENIED_CODES else FAILED, status.message)


def _exhausted(message: str) -> str:
    """Tell a quota from missing capacity: Google has one code for both."""
    return QUOTA if "quota" in message.lower() and not _RATE_WORDS.search(message) else CAPACITY
