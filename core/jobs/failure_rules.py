import re
import tomllib
from pathlib import Path
from typing import NamedTuple

CLASSES = {
    "code": "the program, its command or its options",
    "memory": "the memory of the job or its machine",
    "device_memory": "the memory of a GPU or TPU",
    "image": "the image, programs or packages",
    "data": "files that the program needs",
    "disk": "disk space",
    "network": "the network, or a server in it",
    "machine": "the machine, or this service",
    "preempted": "the machine was taken away",
    "time": "a time limit",
    "budget": "a limit of cost",
}


class Rule(NamedTuple):
    cause: str  # class
    pattern: re.Pattern[str]
    says: str  # why the command ended, and what to do, to follow its exit code; empty: nothing to say
    option: str  # the option of a clone that helps; empty: none does
    source: re.Pattern[str]  # for the traceback


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\n\s*", "", pattern).replace("ERR ", r"^(?:[\w.]+\.)?"), re.MULTILINE)


def _rule(cause: str, pattern: str, says: str = "", option: str = "", source: str = "") -> Rule:
    return Rule(cause, _compile(pattern), says, option, _compile(source))


RULES = tuple(_rule(*row) for row in tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["rules"])
