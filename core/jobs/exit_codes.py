import re
import signal
from collections.abc import Callable

from core.jobs.log_failures import find_failure

_NOT_EXECUTABLE, _NOT_FOUND, _SIGNALLED = 126, 127, 128
_LAST_LINES = 10  # at the end of a log: a program may print a little more after its shell's message
_MISSING = re.compile(
    r"(?:\A|[\s:])(?P<name>\S+): command not found\Z"
    r"|\A(?:\S*sh|\S*env|exec|nohup|timeout|nice|setsid|stdbuf|time|xargs|busybox): (?:.*[ :])?"
    r"[\"'`\u2018]?(?P<program>[^\s:\"'\u2019]+)[\"'\u2019]?: "
    r"(?:not found|No such file or directory|cannot execute: required file not found|.*bad interpreter: .*)\Z"
)
_REFUSED = re.compile(
    r"Permission denied|annot execute|Is a directory|Exec format error|bad interpreter|not executable"
)
_HINTS = {
    "python|python2|pip|pip3": (
        "Call python3, or use an image that has it in a folder that every user can read: jobs do not run as root "
        "and cannot read /root."
    ),
    "conda|mamba|micromamba": (
        "Conda environments are not activated in jobs: list the packages in requirements.txt, or use a --container "
        "whose Python has them."
    ),
    "module|ml|spack": (
        "Environment modules exist only on clusters: list Python packages in requirements.txt, or use a "
        "--container that has the programs."
    ),
    "srun|sbatch|salloc|qsub|bsub": (
        "The job itself is the allocation: call the program directly, and set --machineType, --cpus and --memoryMb."
    ),
    "sudo|apt|apt-get|yum|dnf|apk": (
        "Jobs do not run as root and cannot install system packages: use a --container that has them."
    ),
    "nvidia-smi|nvcc": "Choose a machine type with a GPU, and an image that has it.",
    ".*/.*": "Check that the file is in the uploaded folder, and that the program in its first line exists.",
    ".*": "Check its spelling, that the machine or container has it, and that your own programs are called with their "
    "path (./run.sh).",
}
"""Advice about a program that was not found, by a pattern for its name."""


def reason_of_exit(code: int, log_end: str, remedy_for: Callable[[str], str]) -> tuple[str, str | None]:
    """Return reason and detail for the exit code of a command that ended by itself.

    A program may return any code. What a shell says by codes above 125 (POSIX, 2.8.2) is believed if the log says so,
    too.
    """
    if code == 0:
        return "completed", None
    lines = _lines(log_end)
    missing = next(filter(None, map(_MISSING.search, reversed(lines))), None)
    if code == _NOT_FOUND and missing is not None:
        return "command_not_found", _describe_missing(missing["name"] or missing["program"])
    if code == _NOT_EXECUTABLE and any(map(_REFUSED.search, lines)):
        return "command_not_executable", None
    number = code - _SIGNALLED
    if number not in set(signal.Signals):
        return "exit_nonzero", f"exit code {code}{_describe_cause(log_end, remedy_for)}"
    name, text = signal.Signals(number).name, signal.strsignal(number) or ""
    if not any(text in line for line in lines):
        return "exit_nonzero", f"exit code {code}: either its own, or the signal {name}"
    return ("killed", None) if number == signal.SIGKILL else ("signalled", f"{name} (exit code {code})")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()][-_LAST_LINES:]


def _describe_cause(log_end: str, remedy_for: Callable[[str], str]) -> str:
    """Return what the last lines of a log tell of the command's end, to follow its exit code."""
    failure = find_failure(log_end.split("\n"))
    text = failure.rule.says if failure.rule else ""
    if not text:
        return ""
    remedy = remedy_for(failure.named["name"]) if "{remedy}" in text else ""
    return f", {text.format(**failure.named, remedy=remedy)}"


def _describe_missing(program: str) -> str:
    hint = next(text for pattern, text in _HINTS.items() if re.fullmatch(pattern, program))
    return f"the program {program[:100]} was not found. {hint}"
