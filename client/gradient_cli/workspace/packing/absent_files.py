"""Files that a command or the end of a log names, and that a job lacks, or whose line ends are those of Windows."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gradient_cli.workspace.packing.archive import WorkspaceFolder

ERROR, WARNING, INFO = "error", "warning", "info"  # what would go wrong, what may, and what is good to know
_FEW = 3
_MAX_SCRIPT_BYTES = 1 << 20
_WORD = re.compile(r"'([^']+)'|\"([^\"]+)\"|([^\s'\",;:()\[\]=<>|&]+)")
_PROBLEM = re.compile(
    r"no such file|not ?f(?:ound|ile)|(?:not|n't) (?:exist|find|open|load|read)|unable to |failed to |missing|invalid",
    re.IGNORECASE,
)
_OF_EVERY_MACHINE = re.compile(
    r"/(?:(?:bin|dev|etc|lib\w*|opt|proc|run|s?bin|sys|usr|var|storage|artifacts)(?:/|\Z)|\w*\Z|.*/lib/python\d)"
)
"""Absolute paths that mean the job's own machine, its Python, and top folders such as /tmp."""


class Finding(NamedTuple):
    severity: str
    message: str  # with what joins the remedy to it
    remedy: str

    def __str__(self) -> str:
        return self.message + self.remedy

    def as_json(self) -> dict[str, str]:
        return {"severity": self.severity, "message": self.message.rstrip(".;: "), "remedy": self.remedy}


def explain_command(folder: WorkspaceFolder, command: str, working_directory: str = "") -> list[Finding]:
    """Return a finding for each file that a command names and its job will lack, or run otherwise than meant."""
    absent = _explain(folder, _words(command), working_directory, of_job=False)
    return absent + _explain_line_ends(folder, command, working_directory)


def explain_log(folder: WorkspaceFolder, lines: Iterable[str], working_directory: str = "") -> list[Finding]:
    """Return a finding for each file that lines of a log say is missing, and that this computer has."""
    log_words = (word for line in lines if _PROBLEM.search(line) for word in _words(line))
    return _explain(folder, log_words, working_directory, of_job=True)


def _explain_line_ends(folder: WorkspaceFolder, command: str, working_directory: str) -> list[Finding]:
    files = {entry.path for entry in folder.files}
    explanations = []
    for word in dict.fromkeys(_words(command)):
        path = os.path.normpath(os.path.join(working_directory, word))
        if path in files and _is_script_of_windows(os.path.join(folder.root, path)):
            why = (
                f"{path} has Windows line endings: shells treat the carriage return as part of each line's last word. "
            )
            explanations.append(Finding(ERROR, why, rf"`sed -i 's/\r$//' {shlex.quote(path)}` removes them"))
    return explanations[:_FEW]


def _is_script_of_windows(file: str) -> bool:
    try:
        with open(file, "rb") as opened:
            text = opened.read(_MAX_SCRIPT_BYTES)
    except OSError:
        return False
    return b"\r\n" in text and (file.endswith((".sh", ".bash")) or re.match(rb"#!.*sh\b", text) is not None)


def _words(text: str) -> Iterator[str]:
    for quoted in _WORD.finditer(text):
        yield next(filter(None, quoted.groups())).rstrip(".")


def _explain(folder: WorkspaceFolder, names: Iterable[str], working_directory: str, *, of_job: bool) -> list[Finding]:
    explanations = {}
    for word in names:
        path = os.path.expanduser(word)
        relative = _find_excluded(folder, path, working_directory, of_job=of_job)
        if relative:
            rule, pattern = folder.find_exclusion(relative), shlex.quote(relative)
            why = f"{relative} is excluded by {rule}; "
            explanations[relative] = Finding(ERROR, why, f"--include {pattern} uploads it")
        elif os.path.isabs(path) and not _OF_EVERY_MACHINE.match(path) and os.path.exists(path):
            explanations[path] = _explain_place(folder, path)
    return list(explanations.values())[:_FEW]


def _find_excluded(folder: WorkspaceFolder, path: str, working_directory: str, *, of_job: bool) -> str:
    """Return the excluded file of the folder that a path means, or an empty text."""
    parts = os.path.normpath(path).split("/")
    inside = os.path.relpath(path, folder.root) if path.startswith(f"{folder.root}/") else path
    candidates = [os.path.join(working_directory, inside), inside]
    if of_job:  # its folder has another absolute path, and a program may have changed to a folder below
        candidates += ["/".join(parts[index:]) for index in range(1, len(parts))]
        candidates += [ignored for ignored, _ in folder.ignored if f"/{ignored}".endswith(f"/{parts[-1]}")]
    for candidate in map(os.path.normpath, filter(None, candidates)):
        if candidate != os.curdir and not os.path.isabs(candidate) and folder.find_exclusion(candidate):
            return candidate
    return ""


def _explain_place(folder: WorkspaceFolder, path: str) -> Finding:
    if path.startswith(f"{folder.root}/"):
        remedy = f"write {os.path.relpath(path, folder.root)}, relative to the folder"
        return Finding(ERROR, f"{path} has a different absolute path in the job: ", remedy)
    put, name = f"gradient-cli storage put {shlex.quote(path)}", os.path.basename(path.rstrip("/"))
    remedy = f"`{put}` makes it available to jobs as /storage/{name}"
    return Finding(ERROR, f"{path} is not in the uploaded folder: ", remedy)
