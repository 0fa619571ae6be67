import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic.alias_generators import to_camel

from core.db.models.jobs import Job
from core.jobs.spec.job_spec import JobSpec

SEED = "SEED"  # variable that tells the repeats of a comparison apart; it may differ
_COMPARED = (
    *("command", "workspace", "workspace_sha256", "container", "use_dockerfile", "rel_dockerfile_path"),
    *("working_dir", "user", "network", "python", "packages", "requirements_file", "extras", "groups"),
    *("cpus", "memory_mb", "shared_mem_mb", "data_disks", "slurm_options"),
)
"""Options of a program and of what it may use. The capacity of a TPU is not one: figures are of the list price."""
WORKSPACE = ("workspace", "workspaceSha256")  # names of the differences that make two jobs different programs


@dataclass(frozen=True, slots=True)
class Difference:
    name: str  # name of the option in the API; of a variable `envVars.NAME`, of an image as it was run `imageDigest`
    # ids of the jobs by value; of a variable no values, which may be secret, but numbers
    values: Mapping[str, Sequence[str]]


def find_differences(jobs: Sequence[Job]) -> list[Difference]:
    """Find the options in which jobs differ. An image's digest counts only between jobs of one machine type."""
    differences: dict[str, dict[str, list[str]]] = {}
    for job in jobs:
        for name, value in _options(job.spec):
            differences.setdefault(name, {}).setdefault(value, []).append(job.id)
    names = {name for name, values in differences.items() if sum(map(len, values.values())) < len(jobs)}
    differing = [_difference(name, values) for name, values in differences.items() if len(values) > 1 or name in names]
    return differing + _image_differences(jobs)


def shared_options(jobs: Sequence[Job]) -> dict[str, str]:
    """Return the options in which the jobs do not differ."""
    differing = {difference.name for difference in find_differences(jobs)}
    return {name: value for job in jobs[:1] for name, value in _options(job.spec) if name not in differing}


def program_digest(jobs: Sequence[Job]) -> str | None:
    """Return the digest of all options of jobs that differ in nothing but their machine types."""
    if not jobs or find_differences(jobs):
        return None
    return hashlib.sha256(json.dumps(shared_options(jobs)).encode()).hexdigest()


def _options(spec: JobSpec) -> Iterable[tuple[str, str]]:
    for name in _COMPARED:
        value = getattr(spec, name)
        yield to_camel(name), _text(spec.workspace_contents or value if name == "workspace_sha256" else value)
    for name, value in sorted(spec.params.items()):
        yield f"params.{name}", str(value)
    for name, value in sorted(spec.redacted_env().items()):
        if name != SEED:
            yield f"envVars.{name}", value


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _difference(name: str, values: Mapping[str, Sequence[str]]) -> Difference:
    if name.startswith("envVars."):
        return Difference(name, {f"value {number}": ids for number, ids in enumerate(values.values(), 1)})
    return Difference(name, values)


def _image_differences(jobs: Sequence[Job]) -> list[Difference]:
    by_type: dict[str, dict[str, list[str]]] = {}
    for job in jobs:
        if job.image_digest is not None:
            by_type.setdefault(job.machine_type, {}).setdefault(job.image_digest, []).append(job.id)
    return [Difference("imageDigest", digests) for digests in by_type.values() if len(digests) > 1]
