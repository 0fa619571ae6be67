"""Plan of a submission: what it would do, and what would go wrong; nothing is submitted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from gradient_cli.api.client import Api
from gradient_cli.errors import TOO_MANY_REQUESTS, UNREACHABLE, ClientError
from gradient_cli.formatting import format_size
from gradient_cli.workspace import submission, workspace_path
from gradient_cli.workspace.dependencies.imports import BETWEEN_COMMANDS, remedy_for, words_of
from gradient_cli.workspace.dependencies.requirements_plan import RequirementsPlan
from gradient_cli.workspace.packing.absent_files import ERROR, INFO, WARNING, Finding, explain_command
from gradient_cli.workspace.packing.archive import WorkspaceFolder

_LARGE = 100_000_000
_MAX_FILE, _MAX_FILES = 1 << 20, 32 << 20  # bytes of a file, and of all, that are searched for tokens
_DISTINCT = 8  # different characters that a real token has at least
_RUNNER = re.compile(r"(python[\d.]*|bash|sh|torchrun|accelerate|deepspeed)\Z")
_PREPARES = {"cd", "export", "set", "pip", "pip3", "uv", "echo", "mkdir", "nvidia-smi", "ulimit", "source", "."}
_BY_SHELL = re.compile(r"[\s$*?`{}\[\]~\\]|^(?:/|\.\.)")
_EMPTY = re.compile(r"(?:^|\s)(--?[\w-]+=)(?=\s|$)")
_QUOTE = "put the whole command into single quotes, so that your shell leaves it as it is"
_STORE_IT = "`gradient-cli secrets set NAME` stores it, and --envVars VARIABLE=secret:NAME passes it to the job"


class JobPlan(NamedTuple):
    answer: dict[str, Any]  # of the server; empty: it refuses the job
    upload: dict[str, Any] | None
    requirements: RequirementsPlan | None
    findings: list[Finding]


def plan_job(
    api: Api, spec: dict[str, Any], workspace: str, folder: WorkspaceFolder | None, *, collect: bool = False
) -> JobPlan:
    """Return what the server and the folder say of a job; `folder` is None without one, or with an archive.

    `collect`: have a refusal among the findings, not raised.
    """
    plan = JobPlan({}, None, None, list(_inspect(spec, str(spec.get("command") or ""), folder)))
    try:
        plan = _resolve(api, spec, workspace, folder, plan.findings)
    except ClientError as error:
        if not collect or error.code == UNREACHABLE or getattr(error, "status", 0) == TOO_MANY_REQUESTS:
            raise
        plan.findings.append(Finding(ERROR, f"{str(error).rstrip('.')}. ", error.hint or "Change what it names."))
    start = str(plan.answer.get("wouldStart"))
    if start.startswith("cannot start"):
        plan.findings.append(Finding(WARNING, f"it {start}: ", "`gradient-cli machine-types` shows what is free"))
    image = plan.answer.get("imageCheck") or {}
    if image.get("state") in {"missing", "login", "unknown"}:
        severity = INFO if image["state"] == "unknown" else WARNING
        plan.findings.append(Finding(severity, f"{str(image['message']).rstrip('.')}. ", str(image["remedy"])))
    plan.findings.sort(key=lambda finding: (ERROR, WARNING, INFO).index(finding.severity))
    return plan._replace(answer=_without_tokens(plan.answer))


def _without_tokens(value: Any) -> Any:  # noqa: ANN401 - of JSON
    if isinstance(value, dict):
        return {name: _without_tokens(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_without_tokens(item) for item in value]
    for _, token, what in _find_tokens(value) if isinstance(value, str) else ():
        value = value.replace(token, what.partition(", ")[2])
    return value


def _resolve(
    api: Api, spec: dict[str, Any], workspace: str, folder: WorkspaceFolder | None, findings: list[Finding]
) -> JobPlan:
    if workspace == "none" or workspace_path.is_url(workspace):
        return JobPlan(api.resolve_job({**spec, "workspace": workspace}), None, None, findings)
    archive, requirements = submission.plan_upload(api, workspace, folder), None
    upload = {"sha256": archive.sha256, "size": archive.size, "alreadyStored": api.has_workspace(archive.sha256)}
    upload |= {"files": len(folder.files), "bytes": folder.size} if folder else {"files": None, "bytes": None}
    upload["largest"] = [{"path": entry.path, "size": entry.size} for entry in (folder.largest() if folder else [])]
    upload["leftOut"] = folder.left_out if folder else []
    spec = {**spec, "workspaceSha256": archive.sha256} if upload["alreadyStored"] else spec
    answer = api.resolve_job(spec)
    submission.check_file_count(answer, folder)
    if folder and answer["job"].get("backend") == "process" and not answer["job"].get("image"):  # which has packages
        requirements = RequirementsPlan(spec, folder.root, answer["defaultPackages"])
        answer = api.resolve_job(spec, requirements.digest) if requirements.digest else answer
        for name, where in requirements.undeclared.items():
            findings.append(Finding(ERROR, f"nothing declares {name} ({where}): ", remedy_for(name)))
    return JobPlan(answer, upload, requirements, findings)


def _inspect(spec: dict[str, Any], command: str, folder: WorkspaceFolder | None) -> Iterator[Finding]:
    variables = spec.get("envVars")
    for name, value in {**(variables if isinstance(variables, dict) else {}), "": command}.items():
        for *_, what in _find_tokens(str(value)):
            where = f"the variable {name}" if name else "the command"
            yield Finding(WARNING, f"whoever sees the job sees {where}, which has {what}: ", _STORE_IT)
    yield from _quoting(command)
    if folder is None:
        return
    start = spec.get("workingDir") or ""
    yield from explain_command(folder, command, start)
    yield from _absent_program(folder, command, start, [str(given) for given in spec.get("inputs") or ()])
    if folder.size > _LARGE:
        sizes: Counter[str] = Counter()
        for entry in folder.files:
            sizes["/".join(entry.path.split("/")[:-1][:2]) or entry.path] += entry.size
        largest = ", ".join(f"{name} {format_size(size)}" for name, size in sizes.most_common(5))
        remedy = "a line in .gradientignore excludes one; `gradient-cli storage put` keeps data for all jobs"
        yield Finding(INFO, f"the folder has {format_size(folder.size)} ({largest}): ", remedy)
    yield from _tokens_in_files(folder)


def _quoting(command: str) -> Iterator[Finding]:
    bash, checked = shutil.which("bash"), None
    if bash:  # which reads the command, and runs nothing of it
        checked = subprocess.run([bash, "-pn"], input=os.fsencode(command), capture_output=True, check=False)  # noqa: S603 - see above
    if checked and checked.returncode and checked.stderr:
        why = os.fsdecode(checked.stderr).splitlines()[0].partition(": ")[2]
        yield Finding(ERROR, f"a shell refuses the command ({why}): ", _QUOTE)
    elif match := _EMPTY.search(command):
        yield Finding(WARNING, f"{match[1]} has no value; did your shell expand a variable behind it? ", _QUOTE)


def _absent_program(folder: WorkspaceFolder, command: str, start: str, inputs: list[str]) -> Iterator[Finding]:
    """Tell that the first program of a command is not there; those after it may be made by it."""
    at, simple = start, [""]
    for word in [*words_of(command), ";"]:
        if word.strip(BETWEEN_COMMANDS):
            simple.append(word)
            continue
        at = os.path.join(at, simple[-1]) if simple[1:2] == ["cd"] else at
        if simple[1:] and simple[1] not in _PREPARES:
            break
        simple = [""]
    script = next((index for index, word in enumerate(simple) if word.endswith((".py", ".sh", ".ipynb"))), 0)
    is_run = any(_RUNNER.match(os.path.basename(word)) for word in simple[:script]) or simple[script][:2] == "./"
    path = os.path.normpath(os.path.join(at, simple[script]))
    made = tuple(given.partition(":")[2].strip("/") for given in inputs)
    unknown = path.startswith(made) or "||" in command or _BY_SHELL.search(path)
    if script and is_run and not unknown and not os.path.lexists(os.path.join(folder.root, path)):
        same = [entry.path for entry in folder.files if os.path.basename(entry.path) == os.path.basename(path)]
        remedy = f"did you mean {same[0]}?" if same else "--workspace names another folder"
        yield Finding(ERROR, f"{path} is not in the folder {folder.root}: ", remedy)


@cache
def _tokens() -> tuple[dict[str, str], re.Pattern[str]]:
    """Return the services by the beginnings of their tokens, and the pattern of all tokens and private keys."""
    with open(os.path.join(os.path.dirname(__file__), "token_patterns.txt"), encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    patterns = "|".join(pattern for _, pattern in rows)
    return {pattern.partition("[")[0]: what for what, pattern in rows}, re.compile(f"(?<![A-Za-z0-9_-])(?:{patterns})")


def _find_tokens(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line of each token, the token, and what may be shown of it."""
    services, pattern = _tokens()
    for match in pattern.finditer(text):
        start = max((start for start in services if match[0].startswith(start)), key=len)
        rest = match[0][len(start) :]
        if "EXAMPLE" not in rest and len(set(rest)) >= _DISTINCT and re.search("[0-9]", rest):
            yield text.count("\n", 0, match.start()) + 1, match[0], f"{services[start]}, {start}…"


def _tokens_in_files(folder: WorkspaceFolder) -> Iterator[Finding]:
    left = _MAX_FILES
    for entry in folder.files:
        if entry.size > min(_MAX_FILE, left):
            continue
        left -= entry.size
        with suppress(OSError), open(os.path.join(folder.root, entry.path), "rb") as file:
            content = file.read(_MAX_FILE)
            for line, _, what in () if b"\0" in content else _find_tokens(content.decode(errors="replace")):
                yield Finding(WARNING, f"{entry.path}, line {line}, would be uploaded, and has {what}: ", _STORE_IT)
