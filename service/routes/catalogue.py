"""Routes of what a job can choose from: machine types, and short names of images."""

from core.jobs.scheduling.capacity import live_workers
from service.deps import AppStateDep, ReadSession
from service.http.routing import api_router
from service.presenters.jobs import machine_type_view
from service.schemas.catalogue import ImageNames, ImageNameView, MachineTypes

router = api_router()


@router.get("/machine-types", tags=["machine types"])
def list_machine_types(session: ReadSession, app_state: AppStateDep) -> MachineTypes:
    """List the machine types, with hardware, price and current availability."""
    offered = live_workers(session)
    views = [machine_type_view(machine, app_state.backend_for(machine), offered) for machine in app_state.catalogue]
    default = app_state.catalogue.get(app_state.settings.default_machine).name
    return MachineTypes(machine_types=views, default=default)


@router.get("/images", tags=["images"])
def list_images(app_state: AppStateDep) -> ImageNames:
    """List the short names for `container`, with their images."""
    return ImageNames(
        images=[
            ImageNameView.of(short, stand_in=app_state.images.stand_in(short.image) is not None)
            for short in app_state.images
        ]
    )
