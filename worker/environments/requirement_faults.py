"""Says for users what uv prints when requirements cannot be installed, and what to do about each."""

import json
import re
from collections.abc import Sequence

from gradient_cli.workspace.dependencies.imports import distributions_of
from worker.backends.base import WORKSPACE

_MAX_DETAIL = 600
_MAX_FAULTS = 20
_REMEDIES = (
    (
        r"not found in the (package registry|provided package locations)",
        "the index has no package of this name: check its spelling",
    ),
    (
        rf"not found at: (file://)?(?!(file://)?({WORKSPACE}|\S*/attempts)/)\S*/",
        (
            "it is a path on the machine that wrote the line, as `pip freeze` writes under conda: use `pip list "
            "--format=freeze`, which writes versions"
        ),
    ),
    (r"not found at: ", "it is not in the uploaded folder: submit from the folder that contains it, or see --include"),
    (r"does not appear to be a Python project", "this folder has neither pyproject.toml nor setup.py: choose another"),
    (r"Git operation failed|git fetch|git executable", "git could not fetch it: check its address, branch and login"),
    (
        r"lookup address|dns error",
        "the worker cannot resolve its host name: upload the file with the folder, or use an index",
    ),
    (r"Failed to (fetch|download)|error sending request|status code", "it could not be fetched: check its address"),
    (r"(current|requested) Python version", "it is for another version of Python: see --python"),
    (r"no version of|no versions of|there are no versions", "the index does not have this version: choose another"),
    (
        r"no wheels? with a matching",
        "it has no wheel for this Python or machine: choose another version or another --python",
    ),
    (
        r"Failed to build|build backend|Build backend|build_wheel|setup\.py",
        "its build failed: choose a version that has a wheel or another --python, or use a --container that has it",
    ),
    (r"Expected|Unexpected|parse|Invalid", "it is not a requirement such as numpy>=2: correct the line"),
)
"""Advice by a pattern for uv's output; the first that matches counts."""
_REFUSED = re.compile(r"An index(?: URL)? \((\S+)\).*(40[13]) |status client error \((40[13]) .*for url \((\S+)\)")
_OF_ALL = re.compile(rf"not found at: |in `tool\.uv\.sources`|{_REFUSED.pattern}")
"""Errors of uv about a project, not about its requirements by themselves, which lack the project's sources."""
_ROUNDABOUT = re.compile(
    r"(: (error sending request for url \(\S*\)|client error \(Connect\)|dns error|error resolving DNS))+"
)
_REASON = re.compile(r"(?m)^[ \t]*(?:\w+\.)*(\w*(?:Error|Exception): .{1,160})")


def explain(output: str, faults: list[dict[str, str]], lines: Sequence[str]) -> str:
    """Say what uv's output means; `faults` are the requirements that fail even by themselves."""
    if not faults or (_OF_ALL.search(output) and not any(_OF_ALL.search(fault["output"]) for fault in faults)):
        text = summarize(output)
        text = text if text.endswith((".", "!", "?", "…")) else f"{text}."
        remedies = (remedy for pattern, remedy in _REMEDIES[1:3] if re.search(pattern, text))
        remedy = next(remedies, None) or _login_for(output)
        return f"{text} {remedy[0].upper()}{remedy[1:]}." if remedy else text
    if len(faults) == 1:
        described = _describe(faults[0])
        return described if "(" in described else f"{described} uv: {summarize(faults[0]['output'])}"
    if len(faults) > _MAX_FAULTS and len({_remedy_of(fault["output"]) for fault in faults}) == 1:  # an index that fails
        return f"{len(faults)} of {len(lines)} requirements cannot be installed: {summarize(faults[0]['output'])}"
    listed = [f"({number}) {_describe(fault)}" for number, fault in enumerate(faults[:_MAX_FAULTS], 1)]
    more = f" And {len(faults) - _MAX_FAULTS} more." if len(faults) > _MAX_FAULTS else ""
    failing = {fault["line"] for fault in faults}
    well = ", ".join(line for line in lines if line not in failing)
    others = f" The others can be installed: {well[:_MAX_DETAIL]}." if well else ""
    return f"{len(faults)} of {len(lines)} requirements cannot be installed. {' '.join(listed)}{more}{others}"


def _describe(fault: dict[str, str]) -> str:
    line, output = fault["line"], fault["output"]
    name = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]
    usual = distributions_of(name)
    why = f" ({reason})" if (reason := _last_error(output)) else ""
    if usual and name not in usual:
        remedy = f"the module {name} is in the distribution {usual[0]}: use that name"
    else:
        remedy = _remedy_of(output) or summarize(output)
    return f"{line[:200]}: {remedy.replace('its build failed', f'its build failed{why}')}."


def _remedy_of(output: str) -> str | None:
    remedies = (remedy for pattern, remedy in _REMEDIES if re.search(pattern, output))
    return _login_for(output) or next(remedies, None)


def _login_for(output: str) -> str | None:
    """Return the advice about an index that asks for a login; None if none does."""
    if (refused := _REFUSED.search(output)) is None:
        return None
    return (
        f"the index {refused[1] or refused[4]} refused the login ({refused[2] or refused[3]}): give one in its "
        "address, such as https://USER:${TOKEN}@HOST/simple with -e TOKEN=secret:NAME"
    )


def read_faults(output: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"line": ') and line.endswith("}")]


def _last_error(output: str) -> str:
    reasons = _REASON.findall(output)
    return reasons[-1].rstrip(".") if reasons else ""


def summarize(output: str) -> str:
    """Return the errors in uv's output on one line; of the traceback of a build, only the exception."""
    before, printed, _ = output.partition("[stderr]")
    if printed and (error := _last_error(output)):
        output = f"{before.rstrip()}\n{error}"
    lines = [line.strip() for line in output.splitlines()]
    first = next((number for number, line in enumerate(lines) if re.match(r"error|\u00d7", line)), None)
    if first is None:
        return " ".join(lines[-3:])[-_MAX_DETAIL:]
    causes = [line.partition("cause: ")[2] or line for line in lines[first:] if line and not line.startswith("hint")]
    text = _ROUNDABOUT.sub("", ": ".join(causes)).removeprefix("error: ")
    return text if len(text) <= _MAX_DETAIL else f"{text[: _MAX_DETAIL - 1]}…"
