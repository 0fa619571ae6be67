"""Parameters of a job: those that it is submitted with, and those that its command and its environment have."""

import re
import shlex
from collections.abc import Collection, Mapping
from contextlib import suppress

from core.errors import SpecInvalid
from core.jobs.spec.image_options import quoted

MAX_PARAMS = 200
"""Most parameters of a job; those of its command and its environment beyond that are left out."""
MAX_PARAM_NAME = 100
MAX_PARAM_TEXT = 500
Value = str | int | float | bool
SCHEDULED_AT = "SCHEDULED_AT"  # variable of a schedule's jobs with the time that each is for, in UTC; no parameter

_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_./-]{{0,{MAX_PARAM_NAME - 1}}}\Z")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_OPTION = re.compile(r"--([A-Za-z_][^=]*)(?:=(.*))?\Z", re.DOTALL)
_SECRET = re.compile(r"(key|token|secret|passw(or)?d|passphrase|credentials?|dsn)\Z", re.IGNORECASE)
_BETWEEN_COMMANDS = "();<>|&\n"
_EXPANDED = re.compile(r"[$`]")
_BOOLEANS = {"true": True, "false": False}
_LARGEST = 10**300  # larger integers are no floating-point numbers


def is_number(text: str) -> bool:
    return _NUMBER.match(text) is not None and abs(float(text)) < _LARGEST


def read_value(text: str) -> Value:
    """Return what a text stands for: a number, true or false, else the text."""
    if not is_number(text):
        return _BOOLEANS.get(text, text)
    return int(text) if text.lstrip("+-").isdigit() else float(text)


def is_name(name: str) -> bool:
    return _NAME.match(name) is not None


def find_fault(name: str, value: object) -> str | None:
    """Return why this cannot be a parameter, as a sentence; None if it can."""
    if not is_name(name):
        return (
            f"{quoted(name)} is not a name for a parameter. Begin with a letter or _, and use letters, digits and "
            f"_ . / -, at most {MAX_PARAM_NAME} characters."
        )
    if isinstance(value, str):
        if len(value) > MAX_PARAM_TEXT or not value.isprintable():
            return f"The value of {name} is not one line of at most {MAX_PARAM_TEXT} printable characters. Shorten it."
        return None
    if isinstance(value, int | float) and abs(value) < _LARGEST:  # also refuses NaN
        return None
    return f"The value of {name} is not a string, a finite number, true or false. Give one of these."


def may_be_secret(name: str, value: object) -> bool:
    """Return whether nobody is shown a text of this name unless it was given as a parameter."""
    return isinstance(value, str) and _SECRET.search(name) is not None


def check_params(params: Mapping[str, Value]) -> dict[str, Value]:
    """Return the parameters with numbers in place of texts that read as numbers."""
    if len(params) > MAX_PARAMS:
        raise SpecInvalid(
            f"{len(params):,} parameters; at most {MAX_PARAMS} are allowed. Put the others into a file in the "
            "workspace and read that.",
            field="params",
        )
    for name, value in params.items():
        if fault := find_fault(name, value):
            raise SpecInvalid(fault, field="params")
    return {name: read_value(value) if isinstance(value, str) else value for name, value in params.items()}


def variable_params(variables: Mapping[str, str], unseen: Collection[str]) -> dict[str, Value]:
    """Return the parameters that variables of the environment are, without those that nobody is shown."""
    seen = {name: text for name, text in variables.items() if name not in {*unseen, SCHEDULED_AT}}
    return {name: read_value(text) for name, text in seen.items() if find_fault(name, text) is None}


def command_params(command: str) -> dict[str, Value]:
    """Return the parameters that the words of a command name: `--name value` and `--name=value`, the last of a name.

    A value that the shell would expand is not known, and is left out. Dashes in names become _, as in Python programs.
    """
    if "--" not in command:
        return {}
    lexer = shlex.shlex(command.replace("\\\n", " "), posix=True, punctuation_chars=_BETWEEN_COMMANDS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    params: dict[str, Value] = {}
    name = ""
    with suppress(ValueError):  # a quotation mark without its end
        for word in lexer:
            option = _OPTION.match(word)
            value: str | None = option[2] if option else word
            name = option[1].replace("-", "_") if option else name
            if option and value is None:
                continue
            readable = value and (option or _is_value(value)) and not _EXPANDED.search(value)
            if name and value and readable and find_fault(name, value) is None:
                params[name] = read_value(value)
            name = ""
    return {name: value for name, value in params.items() if not may_be_secret(name, value)}


def _is_value(word: str) -> bool:
    """Return whether a word after `--name` can be its value: no other option, and not the end of the command."""
    return word[0] not in _BETWEEN_COMMANDS and (word[0] != "-" or is_number(word))
