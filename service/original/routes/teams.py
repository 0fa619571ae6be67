"""Teams do not exist here; their namespace is the part of web addresses that leads to the dashboard."""

from service.auth.authentication import Caller
from service.http.routing import Router
from service.original.error_messages import OriginalRoute

router = Router(route_class=OriginalRoute)

NAMESPACE = "ui"
"""`gradient` prints WEB_URL/NAMESPACE/jobs/ID after creating a job; this makes it the address of the job's page."""


@router.get("/teams/namespace", name="original_namespace")
def namespace(_caller: Caller) -> str:
    """Return the namespace."""
    return NAMESPACE
