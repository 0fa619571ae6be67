"""Teams: there are none. Their namespace is the part of web addresses that leads to this service's own pages."""

from fastapi import APIRouter

from service.auth import Caller
from service.routes.original.routing import OriginalRoute

router = APIRouter(route_class=OriginalRoute)

NAMESPACE = "ui"
"""`gradient` prints WEB_URL/NAMESPACE/jobs/ID after it made a job: that is where its page is."""


@router.get("/teams/namespace", name="original_namespace")
def namespace(_caller: Caller) -> str:
    """The namespace."""
    return NAMESPACE
