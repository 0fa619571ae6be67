"""Parts of the start-up scripts of nodes."""

from pathlib import Path

from core.settings.cloud import TpuSettings
from worker.backends.base import LaunchSpec

AGENT = Path(__file__).parent.parent / "vm" / "agent"  # the programs that run on nodes, as a package


def node_id(spec: LaunchSpec) -> str:
    """Return the id of an attempt's node and queued resource."""
    return f"gj-{spec.name}"


def resource_names(spec: LaunchSpec, zone: str, settings: TpuSettings) -> list[str]:
    """Return the full names of an attempt's resources, in the order in which its node may delete them itself."""
    parent = f"projects/{settings.project}/locations/{zone}"
    queued = settings.provisioning_for(spec.machine_type) == "queued"
    kinds = ["queuedResources", "nodes"] if queued else ["nodes"]
    return [f"{parent}/{kind}/{node_id(spec)}" for kind in kinds]


def write_programs(*names: str) -> str:
    """Return the shell commands that write programs of `AGENT` to the folder `$place/agent`; without names, all."""
    files = [AGENT / name for name in names] or sorted(AGENT.glob("*.py"))
    return "\n".join(
        f"cat >\"$place/agent/{file.name}\" <<'GRADIENT_AGENT'\n{file.read_text().rstrip()}\nGRADIENT_AGENT"
        for file in files
    )
