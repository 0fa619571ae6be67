"""The declared requirements of a job, as words of uv."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from gradient_cli.workspace.dependencies.imports import is_of, modules_of_extras, names_of, normal_name

INSTALL = ("pip", "install", "--strict", "--index-strategy", "unsafe-best-match")
"""With pip's own rule for several indexes, which requirements files are written for."""
_LOCKED = re.compile(r'(?m)^name = "(.+)"')


class RequirementOptions(NamedTuple):
    # lines of a requirements.txt that are added; `auto` stands for what the program imports
    packages: tuple[str, ...] = ()
    # path of the file in the workspace that declares the others, in place of those that are found
    file: str | None = None
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    # names of distributions that are added if the program imports them, where only packages are asked for
    offered: tuple[str, ...] = ()
    variables: Mapping[str, str] = {}  # the job's own, those of secrets with the secret's name


@dataclass(frozen=True)
class Declared:
    source: str
    folder: Path
    lines: tuple[str, ...]
    contents: tuple[str, ...]
    words: tuple[str, ...] = ()  # words of `uv pip install` that name the requirements
    given: tuple[str, ...] = ()  # lines of a requirements.txt that are installed with them
    sync: tuple[str, ...] = ()  # words of another command of uv that comes first
    local: bool = False  # whether something of the workspace itself is installed, so that no other job can share it
    python: str | None = None  # the declared versions of Python, as a version specifier; None: any
    left_out: tuple[str, ...] = ()  # requirements that are not installed
    pins: tuple[str, ...] = ()  # versions of a lock file, as constraints
    variables: tuple[str, ...] = ()  # names of the job's variables that the installation uses
    notes: tuple[str, ...] = ()  # what is not as one may think

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """Words of uv, one command after the other, of which the last has `input` as its input."""
        arguments = self.words
        if self.pins:
            of_given = (shlex.split(line) if line.startswith("-") else [line] for line in self.given)
            arguments = (*arguments, *(word for line in of_given for word in line), "--constraints", "-")
        elif self.given:
            arguments = (*arguments, "--requirements", "-")
        return tuple(filter(None, (self.sync, (*INSTALL, *arguments) if arguments else ())))

    @property
    def input(self) -> tuple[str, ...]:
        """Lines that the last command reads."""
        return self.pins or self.given

    def names_module(self, module: str) -> bool:
        return is_of(module, self._named)

    @cached_property
    def _named(self) -> set[str]:
        locked = (normal_name(name) for text in self.contents for name in _LOCKED.findall(text))
        return {*names_of(self.lines), *modules_of_extras(self.lines), *locked}

    def lacks(self, module: str) -> bool:
        """Return whether it is certain that no requirement names a module."""
        # What a folder that is installed itself declares is known only to its build, such as a setup.py.
        return not self._built and not self.names_module(module)

    @cached_property
    def _built(self) -> bool:
        return any(line.split()[-1].startswith(".") for line in self.lines if line.strip())

    @property
    def digest(self) -> str:
        """Digest of all that decides what is installed, but for the machine."""
        return sha256(json.dumps([self.commands, self.contents, self.given]).encode()).hexdigest()
