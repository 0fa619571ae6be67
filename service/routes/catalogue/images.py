from fastapi import APIRouter

from core.jobs.scheduling import image_affinity
from service.deps import AppStateDep, ReadSession
from service.schemas.catalogue.images import ImageNames, ImageNameView

router = APIRouter(prefix="/images", tags=["images"])


@router.get("")
def list_images(session: ReadSession, app_state: AppStateDep) -> ImageNames:
    """List the short names for `container`, with their images."""
    return ImageNames(
        images=[
            ImageNameView.of(
                short,
                stand_in=app_state.images.stand_in(short.image) is not None,
                hosts=image_affinity.count_hosts_having(session, {short.image, short.gpu_image or short.image}),
            )
            for short in app_state.images
        ]
    )
