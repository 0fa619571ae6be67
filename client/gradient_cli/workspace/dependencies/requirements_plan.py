"""The requirements of a folder, as a dry run shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gradient_cli.workspace.dependencies.declared import RequirementOptions
from gradient_cli.workspace.dependencies.imports import ProgramImports
from gradient_cli.workspace.dependencies.index_variables import hide_passwords
from gradient_cli.workspace.dependencies.requirements import find_declared, pinned_python

_SHOWN = 20


class RequirementsPlan:
    """The requirements of a job that is submitted with a folder.

    `offered`: distributions of the server's default packages. Raises `UsageError`: they cannot be used.
    """

    def __init__(self, spec: dict[str, Any], root: str, offered: list[str]) -> None:
        packages, extras, groups = (tuple(spec.get(name) or ()) for name in ("packages", "extras", "groups"))
        file, variables = spec.get("requirementsFile"), spec.get("envVars") or {}
        requested = RequirementOptions(packages, file, extras, groups, tuple(offered), variables)
        folder, command = Path(root, spec.get("workingDir") or "."), str(spec["command"])
        programs = ProgramImports(Path(root), folder, command)
        self._declared = find_declared(programs, requested)
        self._python = pinned_python(programs.workspace, programs.start_folder)
        self.undeclared = {
            name: where
            for name, where in programs.undeclared.items()
            if self._declared is not None and self._declared.lacks(name)
        }
        # digest of what is declared; None: nothing, or it is installed for each job
        self.digest = None if self._declared is None or self._declared.local else self._declared.digest

    def as_json(self) -> dict[str, Any]:
        declared = self._declared
        content: dict[str, Any] = {}
        if declared:
            lines = list(map(hide_passwords, declared.lines))
            content = {"source": declared.source, "lines": lines, "python": declared.python, "notes": self._notes}
        return {**content, "undeclared": self.undeclared}

    @property
    def _notes(self) -> list[str]:
        return list(map(hide_passwords, self._declared.notes)) if self._declared else []

    def as_fields(self, plan: dict[str, Any]) -> dict[str, str]:
        """Return what people read of it, with the server's answer, by the names of the lines."""
        declared, sources = self._declared, ", ".join(plan.get("packageSources") or [])
        if declared is None:
            return {"requirements": "none declared: the server's default packages, if a program needs them"}
        more = f" and {len(declared.lines) - _SHOWN} more" if len(declared.lines) > _SHOWN else ""
        state = {True: "installed already", False: f"to be installed, from {sources}", None: f"from {sources}"}
        stored = plan.get("requirementsInstalled")
        where = f"installed for each job, from {sources}" if declared.local else state[stored]
        return {
            "requirements": hide_passwords(f"{declared.source}: {', '.join(declared.lines[:_SHOWN])}{more}"),
            "installation": where,
            "requirements note": " ".join(self._notes),
        }
