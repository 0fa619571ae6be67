"""Machine types."""

from fastapi import APIRouter

from core.jobs.scheduling.capacity import live_workers
from service.deps import Reading, Stores
from service.presenters.jobs import machine_type_view
from service.schemas.jobs import MachineTypes

router = APIRouter(prefix="/machine-types", tags=["machine types"])


@router.get("")
def list_machine_types(session: Reading, stores: Stores) -> MachineTypes:
    """Every machine type, with what it is, what it costs, and whether it can be had now."""
    offered = live_workers(session)
    views = [machine_type_view(machine, stores.backend_for(machine), offered) for machine in stores.catalogue]
    return MachineTypes(machine_types=views)
