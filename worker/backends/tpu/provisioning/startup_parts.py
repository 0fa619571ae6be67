"""Parts of the start-up scripts of nodes."""

import base64
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from core.settings.cloud import TpuSettings
from worker.backends.base import LaunchSpec

ON_VM = Path(__file__).parent.parent / "vm" / "on_vm"  # the programs that run on nodes alone, as a package
_ROOT = Path(__file__).parents[4]
_RUNNER = _ROOT / "worker" / "runner"
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
_MODULES = [*(_ROOT / f"core/{name}.py" for name in _CORE), *_RUNNER.glob("*.py")]
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
    """Return the shell commands that write `$place/runner.pyz`, which has the programs that run on nodes.

    It is packed, because a start-up script has at most 256 KiB.
    """
    packed = BytesIO()
    with ZipFile(packed, "w", ZIP_DEFLATED, strict_timestamps=False) as archive:
        archive.write(_RUNNER / "__main__.py", "__main__.py")
        for program in sorted(ON_VM.glob("*.py")):
            archive.write(program, f"on_vm/{program.name}")
        for module in _SHARED:
            archive.write(module, module.relative_to(_ROOT))
    text = base64.encodebytes(packed.getvalue()).decode()
    return f"base64 -d >\"$place/runner.pyz\" <<'GRADIENT_RUNNER'\n{text}GRADIENT_RUNNER"
