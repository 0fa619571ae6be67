"""Machine types and clusters: this service is one cluster, with every machine type of its catalogue."""

from collections.abc import Mapping
from typing import Any

from core.catalogue.machine_types import MachineType
from core.errors import MachineTypeUnknown
from core.jobs.scheduling import workers
from core.jobs.scheduling.capacity import LiveWorkers, live_workers
from service.app_state import AppState
from service.auth.authentication import Caller
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.original.error_messages import OriginalRoute
from service.original.params import OriginalParams, openapi_params
from service.original.presenters import CLUSTER, CLUSTER_ID, REGION, vm_type_shape

router = Router(route_class=OriginalRoute)


@router.get(
    "/jobs/getClusterAvailableMachineTypes",
    name="original_list_machine_types",
    openapi_extra=openapi_params("region", "cluster", "machineType", "isBusy"),
)
def list_machine_types(app_state: AppStateDep, given: OriginalParams, session: ReadSession) -> list[dict[str, Any]]:
    """List the machine types, and whether a job would have to wait for them now."""
    offered, running = live_workers(session), workers.held_job_counts(session)
    rows: list[dict[str, Any]] = [
        {
            "region": REGION,
            "cluster": CLUSTER,
            "machineType": machine.name,
            "isBusy": _is_busy(app_state, machine, offered, running),
        }
        for machine in app_state.catalogue
    ]
    wanted = {name: value for name in ("region", "cluster") if (value := given.text(name)) is not None}
    if (machine_type := given.text("machineType")) is not None:
        wanted["machineType"] = app_state.catalogue.get(machine_type).name
    machine_types = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    return (
        machine_types
        if given.text("isBusy") is None
        else [row for row in machine_types if row["isBusy"] == given.flag("isBusy")]
    )


@router.get("/vmTypes/getVmTypesByClusters", name="original_list_vm_types")
def list_vm_types(app_state: AppStateDep, _caller: Caller) -> dict[str, list[dict[str, Any]]]:
    """List the machine types with their hardware, by cluster."""
    return {CLUSTER_ID: [vm_type_shape(machine) for machine in app_state.catalogue]}


@router.get("/clusters/getClusters", name="original_list_clusters", openapi_extra=openapi_params("filter"))
def list_clusters(given: OriginalParams) -> list[dict[str, str]]:
    """List the only cluster; the second page is empty."""
    skipped = given.object("filter").get("offset", 0)
    return [] if skipped else [{"id": CLUSTER_ID, "name": CLUSTER, "type": "Kubernetes Processing Site"}]


@router.get(
    "/machines/getAvailability",
    name="original_machine_available",
    openapi_extra=openapi_params("region", "machineType"),
)
def machine_available(app_state: AppStateDep, given: OriginalParams, session: ReadSession) -> dict[str, bool]:
    """Return whether a machine type is available: whether a running worker offers it."""
    try:
        machine = app_state.catalogue.get(given.required("machineType"))
    except MachineTypeUnknown:
        return {"available": False}
    return {"available": live_workers(session).available(machine.name, app_state.backend_for(machine))}


def _is_busy(
    app_state: AppState, machine: MachineType, offered: LiveWorkers, running: Mapping[str | None, int]
) -> bool:
    takers = offered.for_machine_type(machine.name, app_state.backend_for(machine))
    return not any(worker.drained_at is None and running.get(worker.name, 0) < worker.slots for worker in takers)
