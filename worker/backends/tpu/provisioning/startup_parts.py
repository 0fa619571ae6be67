"""Parts of the start-up scripts of nodes."""

from pathlib import Path

from core.settings.cloud import TpuSettings
from worker.backends.base import LaunchSpec

AGENT = Path(__file__).parent.parent / "vm" / "agent"  # the programs that run on nodes, as a package
_ROOT = AGENT.parents[4]
_SHARED = (  # modules of the worker that the agent imports; on a VM they have the same names
    *(_ROOT / package / "__init__.py" for package in ("core", "core/jobs", "core/jobs/exec", "worker")),
    _ROOT / "core" / "jobs" / "exec" / "channel.py",
    *sorted((_ROOT / "worker" / "runner").glob("*.py")),
)


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
    """Return the shell commands that write programs of `AGENT` to the folder `$place/agent`; without names, all.

    All of them come with the modules that they share with the worker.
    """
    programs = [AGENT / name for name in names] or sorted(AGENT.glob("*.py"))
    files = {f"agent/{file.name}": file for file in programs}
    files |= {} if names else {str(file.relative_to(_ROOT)): file for file in _SHARED}
    return "\n".join(_write_file(name, file.read_text().rstrip()) for name, file in files.items())


def _write_file(name: str, content: str) -> str:
    folder = f"$place/{name.rpartition('/')[0]}"
    return f'mkdir -p "{folder}"\ncat >"$place/{name}" <<\'GRADIENT_AGENT\'\n{content}\nGRADIENT_AGENT'
