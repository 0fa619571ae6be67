from sqlalchemy.orm import Session

from core.jobs.scheduling.capacity import live_workers
from service.app_state import AppState
from service.presenters.jobs import machine_type_view
from service.schemas.catalogue import ImageNames, ImageNameView, MachineTypes


def machine_types_view(session: Session, app_state: AppState) -> MachineTypes:
    offered = live_workers(session)
    views = [machine_type_view(machine, app_state.backend_for(machine), offered) for machine in app_state.catalogue]
    default = app_state.catalogue.get(app_state.settings.default_machine).name
    return MachineTypes(machine_types=views, default=default)


def image_names(app_state: AppState) -> ImageNames:
    return ImageNames(
        images=[
            ImageNameView.of(short, stand_in=app_state.images.stand_in(short.image) is not None)
            for short in app_state.images
        ]
    )
