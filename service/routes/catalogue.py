"""Routes of what a job can choose from: machine types, and short names of images."""

from service.deps import AppStateDep, ReadSession
from service.http.routing import api_router
from service.presenters.catalogue import image_names, machine_types_view
from service.schemas.catalogue import ImageNames, MachineTypes

router = api_router()


@router.get("/machine-types", tags=["machine types"])
def list_machine_types(session: ReadSession, app_state: AppStateDep) -> MachineTypes:
    """List the machine types, with hardware, price and current availability."""
    return machine_types_view(session, app_state)


@router.get("/images", tags=["images"])
def list_images(app_state: AppStateDep) -> ImageNames:
    """List the short names for `container`, with their images."""
    return image_names(app_state)
