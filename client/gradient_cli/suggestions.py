"""Errors for words that the client does not know, with the word that was probably meant. Imported only for an error."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence

from gradient_cli.errors import UsageError

# Names that other programs have for commands.
_SYNONYMS = {
    "ls": "list",
    "ps": "list",
    "rm": "delete",
    "cancel": "stop",
    "kill": "stop",
    "submit": "create",
    "status": "show",
    "describe": "show",
    "download": "get",
}
# Names that other programs have for options.
_MACHINE_TYPE = (
    "The machine type determines the accelerators and their number: -m NAME. `gradient-cli machine-types` lists them."
)
_OTHER_OPTIONS = {
    **dict.fromkeys(
        (
            *(
                "--accelerator",
                "--accelerators",
                "--flavor",
                "--gpu",
                "--gpus",
                "--gpus-per-node",
                "--gpu-type",
                "--gres",
            ),
            *("--instance", "--instance-type", "--num-gpus", "--partition", "--resources"),
        ),
        "--machineType",
    ),
    **dict.fromkeys(("--budget", "--maxDollars"), "--maxCost"),
    "--maxHours": "--maxGpuHours",
    "--cpu": "--cpus",
    "--cpus-per-task": "--cpus",
    "--env": "--envVars",
    "--image": "--container",
    "--mem": "--memoryMb",
    "--secret": "--envVars",
    "--secrets": "--envVars",
    "--time": "--timeLimit",
    "--timeout": "--timeLimit",
}


def unknown_command(word: str, group: str, commands: Sequence[str]) -> UsageError:
    """Return the error for a command that does not exist. `group`: the group that it was given in; empty for none."""
    program = f"gradient-cli {group}".rstrip()
    inside = {path.rpartition(" ")[2]: path for path in commands if path.rpartition(" ")[0] == group}
    jobs = {path.rpartition(" ")[2]: path for path in commands if path.startswith("jobs ")}
    candidates = inside if group else {**jobs, **inside}  # most people omit `jobs`, not another group
    synonym = _SYNONYMS.get(word) or next((name for name, other in _SYNONYMS.items() if other == word), "")
    suggestion_path = (
        candidates.get(word) or candidates.get(synonym) or candidates.get(_nearest(word, list(candidates)))
    )
    suggestion = f"Did you mean `gradient-cli {suggestion_path}`? " if suggestion_path else ""
    return UsageError(f"unknown command {word!r}", hint=f"{suggestion}`{program} --help` lists the commands.")


def unknown_argument(
    arguments: Sequence[str], parser: argparse.ArgumentParser, *, takes_program: bool, job_id: str | None
) -> UsageError:
    """Return the error for an option or an argument that a command does not take."""
    word, lists = arguments[0], f"`{parser.prog} --help` lists the options."
    if not word.startswith("-"):
        call = " ".join((parser.prog, *([job_id] if job_id else []), "--", *arguments))
        usage = f"The command follows --, as in `{call}`." if takes_program else ""
        return UsageError(
            f"unexpected argument {word!r}", hint=f"{usage or 'A value with spaces needs quotes.'} {lists}"
        )
    flag = word.partition("=")[0]
    flags = [
        name
        for name, action in parser._option_string_actions.items()  # noqa: SLF001  argparse offers no public list
        if name.startswith("--") and action.help != argparse.SUPPRESS
    ]
    if _OTHER_OPTIONS.get(flag) == "--machineType" and "--machineType" in flags:
        return UsageError(f"unknown option {flag}", hint=_MACHINE_TYPE)
    near = nearest_option(flag, flags)
    return UsageError(f"unknown option {flag}", hint=f"Did you mean {near}? {lists}" if near else lists)


def nearest_option(name: str, options: Sequence[str]) -> str:
    """Return the option that was probably meant, with or without its dashes; empty if none is similar."""
    other = _OTHER_OPTIONS.get(f"--{name.lstrip('-')}", "")
    return next((option for option in options if option.lstrip("-") == other[2:]), None) or _nearest(name, options)


def _nearest(word: str, names: Sequence[str]) -> str:
    """Return the name that begins like the word, else the most similar one; empty if none is similar."""
    folded = {name.casefold(): name for name in names}
    low = word.casefold()
    begins = [name for name in folded if len(low) > 2 and name.startswith(low)]  # noqa: PLR2004  "--" begins all options
    near = begins or difflib.get_close_matches(low, folded, n=1)
    return folded[near[0]] if near else ""
