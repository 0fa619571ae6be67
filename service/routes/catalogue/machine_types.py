from fastapi import APIRouter

from core.jobs.scheduling.capacity import live_workers
from service.deps import AppStateDep, ReadSession
from service.presenters.jobs import machine_type_view
from service.schemas.catalogue.machine_types import MachineTypes

router = APIRouter(prefix="/machine-types", tags=["machine types"])


@router.get("")
def list_machine_types(session: ReadSession, app_state: AppStateDep) -> MachineTypes:
    """List the machine types, with hardware, price and current availability."""
    offered = live_workers(session)
    views = [machine_type_view(machine, app_state.backend_for(machine), offered) for machine in app_state.catalogue]
    default = app_state.catalogue.get(app_state.settings.default_machine).name
    return MachineTypes(machine_types=views, default=default)
