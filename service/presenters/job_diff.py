"""The difference between two jobs: options, environment, image and files, with secrets hidden."""

from typing import Any

from core.comparison.workspace_diff import WorkspaceDiff, compare_workspaces
from core.jobs.spec.job_spec import REDACTED
from core.storage.workspaces import WorkspaceStore
from service.schemas.comparisons import ChangedFileView, JobDiff, OptionValues, WorkspaceDiffView
from service.schemas.jobs import JobView

_COMPARED = (
    *("name", "project", "command", "machineType", "backend", "simulated", "container", "image", "imageDigest"),
    *("useDockerfile", "relDockerfilePath", "buildOnly", "registryTarget", "imagePullPolicy", "ignoreEntrypoint"),
    *(
        "workspace",
        "workspaceSha256",
        "codeCommit",
        "codeBranch",
        "codeDirty",
        "workingDir",
        "python",
        "packages",
        "requirementsFile",
        "extras",
        "groups",
        "user",
        "network",
        "cpus",
        "memoryMb",
        "sharedMemMb",
    ),
    *("timeLimit", "maxCost", "maxGpuHours", "stopGrace", "stopSignal", "warnBefore", "keepOnFail", "maxAttempts"),
    *(
        "priority",
        "capacity",
        "dataDisks",
        "slurmOptions",
        "onIdle",
        "onStall",
        "onDiverge",
        "onDisk",
        "metricPatterns",
        "tags",
    ),
    *("after", "inputs", "arrayReuse", "arrayValue"),
)


_FROM_GIT = (
    "Files from git are not stored, so they are not compared. Each job's events name its commit; run git diff on "
    "the two commits."
)


def job_diff(first: JobView, second: JobView, workspaces: WorkspaceStore) -> JobDiff:
    """Compare two jobs. A hidden value is not compared either: nobody finds it out by comparing guesses with it."""
    before, after = comparable_options(first), comparable_options(second)
    names = list(dict.fromkeys([*before, *after]))
    differing = {
        name: OptionValues(first=before.get(name), second=after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    }
    hidden = [name for name in names if before.get(name) == after.get(name) == REDACTED]
    uploaded = before["workspaceSha256"], after["workspaceSha256"]
    if before["workspace"] or after["workspace"]:
        files: WorkspaceDiff | None = WorkspaceDiff(left_out=_FROM_GIT)
    else:
        files = None if uploaded[0] == uploaded[1] else compare_workspaces(workspaces, *uploaded)
    return JobDiff(
        first=first.id,
        second=second.id,
        differences=differing,
        hidden=hidden,
        workspace=_workspace_view(files) if files else None,
    )


def comparable_options(job: JobView) -> dict[str, Any]:
    shown = job.model_dump(by_alias=True, mode="json")
    params = {f"params.{name}": value for name, value in shown["params"].items() if name not in shown["envVars"]}
    variables = {f"envVars.{name}": value for name, value in sorted(shown["envVars"].items())}
    ports = [port["internal"] for port in shown["ports"]]
    return {**{name: shown[name] for name in _COMPARED}, "ports": ports, **params, **variables}


def _workspace_view(diff: WorkspaceDiff) -> WorkspaceDiffView:
    added, removed, changed, unchanged = diff.counts
    return WorkspaceDiffView.of(
        diff,
        changed=[
            ChangedFileView.of(file, first_size=file.sizes[0], second_size=file.sizes[1]) for file in diff.changed
        ],
        added_count=added,
        removed_count=removed,
        changed_count=changed,
        unchanged_count=unchanged,
    )
