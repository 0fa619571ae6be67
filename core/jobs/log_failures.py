"""Failures as the end of a log shows them: the class, the line that shows it, and the place in the user's code."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from core.jobs.failure_rules import RULES, Rule

_LAST_LINES = 10  # a program may print a little more after the line that tells why it ends
_INDENT = "    "  # of the code in tracebacks
_LAUNCHER_LINES = 150  # that the report of a launcher may have
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_PREFIX = re.compile(
    r"(?:\[(?:rank|default)?(?P<rank>\d+)\]: ?|\[\d+,(?P<mpi>\d+)\]<std\w+>: ?|\(\w+ pid=\d+(?:, ip=[\d.]+)?\) "
    r"|\u2502 ?| *\+-[-+ \d]*$| +[|] | +\+ (?=Exception))"
)
"""Begins of lines by torchrun, Horovod, MPI, Ray, Rich, and of the exceptions of a group."""
_LAUNCHER = re.compile(
    r"Set the environment variable HYDRA_FULL_ERROR|[EW]\d{4} .*torch/distributed/elastic/"
    r"|g?make(?:\[\d+\])?: \*\*\* \[|ninja: build stopped: |error: Recipe `|task: Failed to run task "
    r"|ERROR(?: conda\.cli\.main_run:execute\(\d+\):|: failed to reproduce |: .{1,200}: exit \d+ )|real\t\d+m"
)
"""Lines with which Hydra, torchrun, accelerate, make and their like begin to report an end, which came right before."""
_RANK = re.compile(r"\s+rank\s*: (\d+) \(local_rank: ")
_LAUNCHERS_ERROR = re.compile(r"(?:subprocess\.CalledProcessError|torch\.distributed\.elastic\S*ChildFailedError): ")
_NOISE = re.compile(
    r"wandb: |.*resource_tracker|  warnings\.warn\(|Exception ignored in|\[[WI]\d* ?[\d:. ]*|srun: error: "
    r"|.*destroy_process_group\(\)|\S*sh: line \d+: +\d+ (?:Aborted|Killed|Terminated)\b| *\d+: 0x[0-9a-f]+ |---"
    r"|\+-[-+]*$|[\u2570\u256d]\u2500|-+$|\s*$"
)
"""Lines that programs and libraries print when they end, whatever for."""
_TRACEBACK = re.compile(r".*Traceback \(most recent call last\)")
_CHAINED = re.compile(
    r"(?:The above exception was the direct cause|During handling of the above exception|\w+: Caught \w+ in )"
)
_FRAME = re.compile(
    r'(?:> )?\s*(?:File "(?P<file>[^"]+)", line (?P<line>\d+)|File (?P<cell>\S+?):(?P<at>\d+)(?:, in |\()'
    r"|(?P<rich>/\S+\.py):(?P<row>\d+) in )"
)
_SHELL = re.compile(r"(?P<file>[^\s:]+\.(?:sh|bash)): line (?P<line>\d+): ")
_WORKSPACE = re.compile(r"(?:/paperspace/|.*/j[a-z0-9]{13}-\d+/workspace/|\./|(?![/<~]))(?P<path>.+\.(?:py|sh|bash))\Z")
_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python[\d.]+|\.?venv)/")
_EXCEPTION = re.compile(r"(?:[A-Za-z_][\w.]*\.)?(?P<name>[A-Za-z_]\w*)(?:: .*|:?\Z)")
_OF_MACHINE = re.compile(
    r"(?:\w*(?:OS|IO|Timeout|Connection|Runtime|Memory|HTTP|SSL)Error|SystemExit|KeyboardInterrupt)\Z"
)
"""Exceptions that say nothing about whose fault they are."""
_ERROR = re.compile(
    # an exception, or what a program says of itself, after a time stamp or its name
    r"(?:\S*\[\S*\]:? |\S+: )*(?:[\w.]*(?:Error|Exception|Interrupt|Exit)\b(?!s)"
    r"|(?i:fatal|panic|error)\b(?! rate|s?\s*[:=]?\s*[\d.e+-]+%?\Z))"
    r"|.*\b(?:ERROR|FATAL|CRITICAL|ERR!)(?:\W|\Z)"
    r"|.*(?:: error: |not found|[Nn]o such file|[Pp]ermission denied|[Ss]egmentation fault|core dumped|panicked at"
    r"|terminate called|[Cc]an(?:'t|not) open|[Aa]ssertion .*failed)|(?:Killed|Aborted|Terminated)\Z"
)


class _Line(NamedTuple):
    number: int  # index among the given lines
    text: str


class Place(NamedTuple):
    file: str  # in the workspace
    line: int


class LogFailure(NamedTuple):
    cause: str | None  # class; None: the log does not tell
    line: int | None  # index of the line that shows it, or of the last line that looks like an error
    text: str
    place: Place | None
    rule: Rule | None
    named: dict[str, str]  # what the rule's pattern has found


def find_failure(lines: Sequence[str]) -> LogFailure:
    """Find out why a command ended, from the last lines of its log."""
    plain = _plain(lines)
    ranks = [match[1] for line in plain if (match := _RANK.match(line.text))]  # torchrun's: the root cause is last
    kept = _of_first_rank(_before_launcher(plain), ranks[-1] if ranks else None)
    while kept and _NOISE.match(kept[-1].text):
        kept.pop()
    start = _last(kept, _TRACEBACK)
    start = _last(kept, _FRAME) if start is None else start
    raised = None if start is None else _find_exception(kept, start)
    while start and any(map(_CHAINED.match, (line.text for line in kept[max(0, start - 4) : start]))):
        start = _last(kept[:start], _TRACEBACK) or 0
    if start is None or raised is None or sum(line.text[:1] > " " for line in kept[raised:]) > _LAST_LINES + 1:
        return _judge(kept, [line for line in kept if line.text[:4] != _INDENT][-_LAST_LINES:], None)
    return _judge(kept[start:], kept[raised:], kept[raised])


def _judge(block: list[_Line], output: list[_Line], raised: _Line | None) -> LogFailure:
    """Judge the lines of a failure. `output`: without the frames of a traceback; `raised`: its exception."""
    frames = [
        match for line in (block if raised else output) if (match := _FRAME.match(line.text) or _SHELL.match(line.text))
    ]
    if not any("(most recent call first)" in line.text for line in block):
        frames.reverse()
    location = next((location for location in map(_in_workspace, frames) if location), None)
    text = "\n".join(line.text.strip() for line in output if line.text[:4] != _INDENT)
    source = "\n".join(line.text for line in (block if raised else block[-_LAST_LINES:]))
    for rule in RULES:
        match = rule.pattern.search(text)
        if match and rule.source.search(source):
            shown = text[text.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0]
            line = next(line for line in output if line.text.strip() == shown)
            return LogFailure(rule.cause, line.number, shown, location, rule, match.groupdict())
    error = raised or next((line for line in reversed(block) if _ERROR.match(line.text.strip())), None)
    if error is None:
        return LogFailure(None, None, "", None, None, {})
    name = _EXCEPTION.match(error.text)
    is_own = raised and frames and _in_workspace(frames[0]) and name and not _OF_MACHINE.match(name["name"])
    return LogFailure("code" if is_own else None, error.number, error.text.strip(), location, None, {})


def _plain(lines: Sequence[str]) -> list[_Line]:
    """Return lines without colours; of what was drawn over itself, such as a progress bar, the last text."""
    plain = []
    for number, line in enumerate(lines):
        parts = [part for part in re.split(r"[\r\n]+", _ESCAPES.sub("", line).rstrip()) if part.strip()]
        text = next((part for part in parts if _TRACEBACK.match(part)), parts[-1] if parts else "")
        plain.append(_Line(number, text.rstrip().removesuffix("\u2502").rstrip()))
    return plain


def _before_launcher(lines: list[_Line]) -> list[_Line]:
    """Leave out what a launcher says of the program that it started and that failed."""
    first = max(0, len(lines) - _LAUNCHER_LINES)
    cut = next((at for at in range(first, len(lines)) if _LAUNCHER.match(lines[at].text)), len(lines))
    kept = lines[:cut]
    for at in range(len(kept) - 1, -1, -1):
        if _LAUNCHERS_ERROR.match(kept[at].text):
            kept = kept[: _last(kept[:at], _TRACEBACK) or at]
            break
    return kept


def _of_first_rank(lines: list[_Line], root_cause: str | None) -> list[_Line]:
    """Return the lines without the prefixes of their processes; if several have failed, those of the first."""
    matches = [match for line in lines if _TRACEBACK.match(line.text) and (match := _PREFIX.match(line.text))]
    ranks = {match["rank"] or match["mpi"]: None for match in matches if match["rank"] or match["mpi"]}
    chosen = root_cause if root_cause in ranks else next(iter(ranks), None)
    kept = []
    for line in lines:
        match = _PREFIX.match(line.text)
        rank = (match["rank"] or match["mpi"]) if match else None
        if rank is None or chosen in {None, rank}:
            kept.append(line._replace(text=line.text[match.end() :]) if match else line)
    return kept


def _last(lines: list[_Line], pattern: re.Pattern[str]) -> int | None:
    return next((at for at in range(len(lines) - 1, -1, -1) if pattern.match(lines[at].text)), None)


def _find_exception(lines: list[_Line], start: int) -> int | None:
    """Return the index of the exception of a traceback: the first line after its frames."""
    for at in range(start + 1, len(lines)):
        text = lines[at].text
        if text and not text[0].isspace() and not _FRAME.match(text) and not text.startswith(("Cell In", "-")):
            return at
    return None


def _in_workspace(frame: re.Match[str]) -> Place | None:
    """Return the place in the workspace that a frame names; None: it is in a library, or nowhere."""
    groups = {name: text for name, text in frame.groupdict().items() if text}
    file = groups.get("file") or groups.get("cell") or groups.get("rich") or ""
    match = _WORKSPACE.match(file)
    if match is None or _LIBRARY.search(match["path"]):
        return None
    return Place(match["path"], int(groups.get("line") or groups.get("at") or groups["row"]))
