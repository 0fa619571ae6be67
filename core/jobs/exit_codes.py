import re
import signal
from collections.abc import Callable, Sequence

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
_LAST_LINE_CAUSES = {
    r"EOFError: EOF when reading a line\Z": "after it asked for input, which jobs do not have",
    r"(?:ModuleNotFoundError|.*python[\d.]*): No module named '?(?P<name>[\w.]{1,100})'?": "because Python has no "
    "module {name}: {remedy}",
    r"FileNotFoundError: \[Errno 2\] No such file or directory: (?P<name>'[^']{1,300}')": "because the job has no file "
    "{name}",
}
"""Causes of a command's end, by a pattern for the beginning of its log's last line."""
_CAUSES = {
    ".*(?:Name or service not known|failure in name resolution|(?:to|not) (?:resolve|lookup) )": (
        "after a host name could not be resolved: upload what it downloads with the folder or with `gradient-cli "
        "storage put`"
    ),
    ".*(?:(?:CUDA|HIP) (?:error: )?out of memory|OOM when allocating tensor|RESOURCE_EXHAUSTED: )": (
        "after a device ran out of memory: choose a smaller batch, or a machine type whose GPU or TPU has more memory"
    ),
    ".*(?:No CUDA GPUs are available|Found no NVIDIA driver|not compiled with CUDA|no CUDA-capable)": "because "
    "it found no GPU: choose a machine type with a GPU, and a --container whose framework is built for CUDA",
    r".*(?:can't start new thread|[Cc]annot fork|(?:fork|pthread_create|[Tt]hread creation|native thread).*Resource "
    r"temporarily unavailable)|(?:self\.)?pid = os\.fork\(\)": (
        "after it could not start another process or thread: start fewer (such as data loader workers), or have an "
        "administrator raise GRADIENT_DOCKER__PIDS"
    ),
    ".*no kernel image is available for execution on the device": (
        "because its framework is not built for this GPU: use a --container with a newer version of the framework"
    ),
    "fatal: No names found, cannot describe anything": (
        "because git has no tags here: only one commit is fetched, without tags. Run `git fetch --unshallow "
        "--tags` first"
    ),
    ".*(?:CUDA driver version is insufficient|NVIDIA driver on your system is too old)": "because the machine's NVIDIA "
    "driver is too old for its CUDA: use a --container with an older CUDA",
}
"""The same for lines near the end: programs print advice after such errors."""
_OF_LAUNCHER = re.compile(
    r"^Set the environment variable HYDRA_FULL_ERROR|^[EW]\d{4} .*torch/distributed/elastic/"
    r"|^g?make(?:\[\d+\])?: \*\*\* |^ninja: build stopped: |^error: Recipe `|^task: Failed to run task "
    r"|^ERROR(?: conda\.cli\.main_run:execute\(\d+\):|: failed to reproduce |: .{1,200}: exit \d+ )|^\nreal\t"
    r"|^Traceback \(most recent call last\):\n(?:[ \t].*\n)+subprocess\.CalledProcessError: ",
    re.MULTILINE,
)
"""Lines with which Hydra, torchrun, accelerate, make and their like begin to report an end, which came right before."""
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
        command_lines = _lines(_OF_LAUNCHER.split(log_end, maxsplit=1)[0])
        return "exit_nonzero", f"exit code {code}{_describe_cause(command_lines, remedy_for)}"
    name, text = signal.Signals(number).name, signal.strsignal(number) or ""
    if not any(text in line for line in lines):
        return "exit_nonzero", f"exit code {code}: either its own, or the signal {name}"
    return ("killed", None) if number == signal.SIGKILL else ("signalled", f"{name} (exit code {code})")


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()][-_LAST_LINES:]


def _describe_cause(lines: Sequence[str], remedy_for: Callable[[str], str]) -> str:
    """Return what the last lines of a log tell of the command's end, to follow its exit code."""
    for causes, shown in ((_LAST_LINE_CAUSES, lines[-1:]), (_CAUSES, lines)):
        for pattern, text in causes.items():
            if match := next(filter(None, (re.match(pattern, line) for line in shown)), None):
                named = match.groupdict()
                remedy = remedy_for(named["name"]) if "{remedy}" in text else ""
                return f", {text.format(**named, remedy=remedy)}"
    return ""


def _describe_missing(program: str) -> str:
    hint = next(text for pattern, text in _HINTS.items() if re.fullmatch(pattern, program))
    return f"the program {program[:100]} was not found. {hint}"
