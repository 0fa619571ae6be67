"""The program of a function's job: runs the function and leaves its result as an artifact."""

from __future__ import annotations

import json
import os
import pickle
import platform
import sys
import traceback
import zipfile
from typing import Any

CALL = "call.pickle"
FACTS = "call.json"
RESULT = "gradient_result.pickle"
_OURS = {"gradient_jobs", "gradient_cli", "pickle", "re", "json", "platform"}


def is_job() -> bool:
    """Return whether this program runs as a job."""
    return "GRADIENT_JOB_ID" in os.environ


def run() -> None:
    """Run the function in the archive that this program was started from, and exit: 0 if it returned."""
    sys.path.insert(1, os.getcwd())  # modules of the workspace
    with zipfile.ZipFile(sys.argv[0]) as archive:
        facts = json.loads(archive.read(FACTS))
        payload = archive.read(CALL)
    outcome, value = _call(facts, payload)
    _write(outcome, value)
    if "error" in outcome:
        sys.stderr.write(outcome["traceback"])
        sys.exit(1)


def _check_version(facts: dict[str, str]) -> dict[str, Any] | None:
    """Return an error if this Python cannot run the bytecode of the one that sent the function."""
    theirs, ours = facts["python"], platform.python_version()
    if theirs.split(".")[:2] == ours.split(".")[:2]:
        return None
    text = (
        f"{facts['function']}() was sent by Python {theirs}, and this job has Python {ours}: the first two version "
        "numbers must be the same. Use a container with that Python, or call the function from the job's Python "
        "version."
    )
    return {"error": None, "summary": text, "traceback": f"{text}\n"}


def _call(facts: dict[str, str], payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the outcome of the call, of plain types alone, and the pickled value."""
    import cloudpickle  # noqa: PLC0415  in the archive of a job, and optional elsewhere

    if outcome := _check_version(facts):
        return outcome, b""
    try:
        function, args, kwargs = pickle.loads(payload)  # noqa: S301  of the user who submitted the job
    except Exception as error:  # noqa: BLE001  any is sent to the caller
        text = f"{facts['function']}() cannot be loaded in the job: {_describe(error)}"
        advice = "Name the packages that it needs in `requirements` and its modules in `files`."
        return {"error": None, "summary": f"{text}. {advice}", "traceback": traceback.format_exc()}, b""
    try:
        value: bytes = cloudpickle.dumps(function(*args, **kwargs))
    except Exception as error:  # noqa: BLE001  any is sent to the caller
        failed = {"error": _pickle_error(error), "summary": _describe(error), "traceback": traceback.format_exc()}
        return failed, b""
    return {"versions": versions_in(value)}, value


def _describe(error: Exception) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def versions_in(pickled: bytes) -> dict[str, str]:
    """Return the versions of Python, of cloudpickle and of the imported modules that a pickle may refer to."""
    versions = {"Python": platform.python_version()}
    for name, module in sorted(sys.modules.items()):
        version = getattr(module, "__version__", None)
        named = "." not in name and (name == "cloudpickle" or name.encode() in pickled)
        if named and isinstance(version, str) and name not in _OURS:
            versions[name] = version
    return versions


def _pickle_error(error: Exception) -> bytes | None:
    """Return the pickled exception if another program can load it.

    It is a pickle of its own: the caller may lack the library of its class, and can still load the rest.
    """
    import cloudpickle  # noqa: PLC0415  in the archive of a job, and optional elsewhere

    try:
        data: bytes = cloudpickle.dumps(error)
        pickle.loads(data)  # noqa: S301  written above
    except Exception:  # noqa: BLE001  of any kind: it is only described then
        return None
    return data


def _write(outcome: dict[str, Any], value: bytes) -> None:
    """Write the outcome, which any Python loads, and after it the value."""
    path = os.path.join(os.environ["GRADIENT_ARTIFACTS_DIR"], RESULT)
    with open(f"{path}.part", "wb") as file:
        pickle.dump(outcome, file, protocol=4)
        file.write(value)
    os.replace(f"{path}.part", path)  # no half of it is ever stored
