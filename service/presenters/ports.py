from collections.abc import Sequence

from core.db.models.jobs import PortAllocation
from core.jobs.spec.job_spec import JobSpec
from core.system.canonical_host import canonical_host
from service.schemas.jobs import PortView


def port_views(spec: JobSpec, held: Sequence[PortAllocation] = (), dashboard: str | None = None) -> list[PortView]:
    """Return a job's ports, with links for those allocated on a host.

    `dashboard`: the dashboard's host name. No link leads there: a browser would send its session to the job.
    """
    hosts = {port.internal: port for port in held}
    views = []
    for port in spec.parsed_ports():
        host = hosts.get(port.internal)
        external = host.port if host else port.external or None
        address = f"[{host.address}]" if host and ":" in host.address else host and host.address
        apart = host is not None and canonical_host(host.address) not in {dashboard, ""}
        url = f"{port.scheme}://{address}:{external}" if apart else None
        views.append(PortView(internal=port.internal, external=external, url=url))
    return views
