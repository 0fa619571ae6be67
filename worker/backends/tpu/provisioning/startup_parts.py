"""Parts of the start-up scripts of nodes."""

import base64
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from core.settings.cloud import TpuSettings
from worker.backends.base import LaunchSpec

AGENT = Path(__file__).parent.parent / "vm" / "agent"  # the programs that run on nodes, as a package
_ROOT = AGENT.parents[4]
_CORE = (  # modules of `core` that need the standard library alone, and run on VMs, too
    "errors",
    "formatting",
    "jobs/exec/channel",
    "jobs/spec/container_options",
    "jobs/spec/outputs",
    "jobs/tracking/metric_limits",
    "storage/artifacts/folder_mirror",
    "storage/artifacts/links",
    "storage/artifacts/manifests",
    "storage/artifacts/paths",
    "storage/artifacts/scan",
    "system/filesystem",
    "system/untrusted_folders",
)
_MODULES = [*(_ROOT / f"core/{name}.py" for name in _CORE), *(_ROOT / "worker" / "runner").glob("*.py")]
_PACKAGES = {folder for module in _MODULES for folder in module.parents if _ROOT in folder.parents}
_SHARED = sorted({*_MODULES, *(package / "__init__.py" for package in _PACKAGES)})  # with the same names on a VM


def node_id(spec: LaunchSpec) -> str:
    """Return the id of an attempt's node and queued resource."""
    return f"gj-{spec.name}"


def resource_names(spec: LaunchSpec, zone: str, settings: TpuSettings) -> list[str]:
    """Return the full names of an attempt's resources, in the order in which its node may delete them itself."""
    parent = f"projects/{settings.project}/locations/{zone}"
    queued = settings.provisioning_for(spec.machine_type) == "queued"
    kinds = ["queuedResources", "nodes"] if queued else ["nodes"]
    return [f"{parent}/{kind}/{node_id(spec)}" for kind in kinds]


def write_programs() -> str:
    """Return the shell commands that write the programs of `AGENT`, and what they share with the worker, to `$place`.

    They are packed, because a start-up script has at most 256 KiB.
    """
    packed = BytesIO()
    with ZipFile(packed, "w", ZIP_DEFLATED, strict_timestamps=False) as archive:
        for program in sorted(AGENT.glob("*.py")):
            archive.write(program, f"agent/{program.name}")
        for module in _SHARED:
            archive.write(module, module.relative_to(_ROOT))
    text = base64.encodebytes(packed.getvalue()).decode()
    target = '"$place/programs.zip"'
    return f"base64 -d >{target} <<'GRADIENT_AGENT'\n{text}GRADIENT_AGENT\npython3 -m zipfile -e {target} \"$place\""
