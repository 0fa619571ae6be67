"""Ignore rules of workspaces: defaults, git's ignore files as git reads them, `.gradientignore`, and `--include`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gradient_cli.errors import ClientError, UsageError
from gradient_cli.text import decode
from gradient_cli.workspace.packing import git

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec
    from pathspec.util import CheckResult


FILES = (".gitignore", ".gradientignore")  # in ascending precedence: any .gradientignore overrides every .gitignore
_ALWAYS = {".git"}
_CACHES = {"__pycache__"}  # Python's caches change with every run, and would make an unchanged folder look changed
# Environments are built anew on the worker; the others grow with every run, or come from earlier jobs.
_FOLDERS = {".venv", "node_modules", "wandb", "mlruns", ".ipynb_checkpoints", ".aws", ".ssh"}
_FETCHED = re.compile(r"artifacts-j[a-z0-9]{13}")
_CREDENTIALS = re.compile(
    r"\.env|\.env\.(?!example$|sample$|template$).+|.+\.pem|[._]netrc|\.pypirc|\.git-credentials"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?"
)

NOT_EXCLUDED = ""  # answers of `excluded_by`, besides the place of a pattern
BY_RULE = "rule"
BY_DEFAULT = "default"


class Inclusion:
    """The patterns of `--include`, which bring back what is excluded.

    Args:
        root: The workspace's absolute path, which the patterns are relative to.
        patterns: Patterns as in a `.gitignore`; `./x` is the same as `/x`.
    """

    def __init__(self, root: str, patterns: Sequence[str]) -> None:
        from pathspec import GitIgnoreSpec

        self._root = root
        anchored = [pattern[1:] if pattern.startswith("./") else pattern for pattern in patterns]
        self._parts = [pattern.strip("/").split("/") for pattern in anchored]
        try:
            self._spec = GitIgnoreSpec.from_lines(anchored)
            self._each = [(given, GitIgnoreSpec.from_lines([pattern])) for given, pattern in zip(patterns, anchored)]
        except ValueError as error:
            raise UsageError(f"include: {error}", hint="Write a pattern as in a .gitignore: .env, or data/*.") from None

    def matches(self, path: str, *, is_folder: bool) -> bool:
        return bool(_check(self._spec, self._root, path, is_folder=is_folder).include)

    def reaches_into(self, path: str) -> bool:
        """Return whether a pattern names something below the excluded folder at this absolute path."""
        names = path[len(self._root.rstrip("/")) + 1 :].split("/")
        for parts in self._parts:
            depth = parts.index("**") if "**" in parts else len(names)
            if len(parts) > depth and all(fnmatchcase(name, part) for name, part in zip(names, parts[:depth])):
                return True
        return False

    def refuse_unused(self, paths: Sequence[str]) -> None:
        """Refuse a pattern that matches none of these paths to upload; those of folders end with a slash."""
        for pattern, spec in self._each:
            if not pattern.startswith("!") and not any(map(spec.match_file, paths)):
                raise UsageError(
                    f"include: {pattern!r} matches no file in {self._root} that can be uploaded",
                    hint="Correct it, relative to that folder and as in a .gitignore, or leave it out.",
                )


class IgnoreRules:
    """The ignore rules in effect in one folder: its own and those of its parents."""

    def __init__(self, folder: str, above: IgnoreRules | None = None) -> None:
        inherited = above.patterns if above else {name: [] for name in FILES}
        self._folder = folder
        # the patterns that bring back what is excluded; None: no patterns
        self.inclusion: Inclusion | None = above.inclusion if above else None
        # files that git tracks, which no `.gitignore` excludes, and their folders
        self.tracked: set[str] = above.tracked if above else set()
        # for each name of an ignore file, the patterns of all those in effect, outermost first; git's other ignore
        # files count as a `.gitignore`
        self.patterns: dict[str, list[_Patterns]] = {
            name: [*inherited[name], *_read(os.path.join(folder, name), folder)] for name in FILES
        }

    @classmethod
    def for_root(cls, root: str, include: Sequence[str] = ()) -> IgnoreRules:
        """Load the rules of the folder to pack, including those of the folders above it in its git repository.

        `include`: patterns, relative to it, that bring back what is excluded.
        """
        folders = [root]
        while not os.path.exists(os.path.join(folders[-1], ".git")):
            parent = os.path.dirname(folders[-1])
            if parent == folders[-1]:
                folders = [root]  # outside a repository, parent folders do not count
                break
            folders.append(parent)
        top = folders[-1]
        rules = cls(top)
        if os.path.exists(os.path.join(top, ".git")):
            rules.patterns[".gitignore"][:0] = [
                line for path in git.find_ignore_files(top) for line in _read(path, top)
            ]
            rules.tracked = git.find_tracked(root)
        for folder in reversed(folders[:-1]):
            rules = cls(folder, rules)
        rules.inclusion = Inclusion(root, include) if include else None
        return rules

    def excluded_by(self, path: str, *, is_folder: bool) -> str:
        """Return what excludes the file or folder at this absolute path.

        Returns `NOT_EXCLUDED`; `BY_DEFAULT` for a default that a user may not expect; the place of a pattern; else
        `BY_RULE`.
        """
        name = os.path.basename(path)
        if name in _ALWAYS:
            return BY_RULE
        if self.inclusion and self.inclusion.matches(path, is_folder=is_folder):
            return NOT_EXCLUDED
        for kind in reversed(FILES):
            if kind == ".gitignore" and path in self.tracked:
                break
            for rule in reversed(self.patterns[kind]):
                match = _check(rule.spec, rule.base, path, is_folder=is_folder)
                if match.include is not None:
                    if not match.include:
                        return NOT_EXCLUDED
                    return BY_RULE if name in _CACHES else rule.place(match.index)
        if name in _CACHES:
            return BY_RULE
        return BY_DEFAULT if _is_left_out(path, name, is_folder=is_folder) else NOT_EXCLUDED

    def excludes_itself(self) -> bool:
        """Return whether an ignore file of this folder excludes itself: `*` marks all of the folder as excluded."""
        last_rules = ((name, self.patterns[name][-1:]) for name in FILES)
        return any(
            rule.base == self._folder and rule.spec.check_file(name).include
            for name, last in last_rules
            for rule in last
        )


class _Patterns:
    """The patterns of one ignore file, relative to a folder."""

    def __init__(self, path: str, base: str, lines: list[str]) -> None:
        from pathspec import GitIgnoreSpec

        self._path = path
        self._numbers = [number for number, line in enumerate(lines, 1) if line]
        self.base = base
        self.spec = GitIgnoreSpec.from_lines(lines)

    def place(self, index: int | None) -> str:
        return self._path if index is None else f"{self._path}, line {self._numbers[index]}"


def _is_left_out(path: str, name: str, *, is_folder: bool) -> bool:
    if is_folder:
        return (
            name in _FOLDERS
            or _FETCHED.fullmatch(name) is not None
            or os.path.lexists(os.path.join(path, "pyvenv.cfg"))  # a virtual environment of any name
        )
    return _CREDENTIALS.fullmatch(name) is not None


def _check(spec: GitIgnoreSpec, base: str, path: str, *, is_folder: bool) -> CheckResult[str]:
    below = path[len(base.rstrip("/")) + 1 :]
    return spec.check_file(below + ("/" if is_folder else ""))


def _read(path: str, base: str) -> list[_Patterns]:
    try:
        with open(path, "rb") as file:
            lines = decode(file.read(), "surrogateescape").splitlines()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return []
    except OSError as error:
        # nothing in a folder that cannot be entered exists for us
        unreadable = path if os.path.lexists(path) else os.path.dirname(path)
        raise ClientError(
            f"cannot read {unreadable}: {error.strerror}", hint="Fix its permissions, or exclude it in .gradientignore."
        ) from None
    except UnicodeDecodeError:
        raise ClientError(f"{path}: not UTF-8 text", hint="Save it as UTF-8.") from None
    try:
        return [_Patterns(path, base, lines)]
    except ValueError as error:
        raise ClientError(f"{path}: {error}", hint="Correct that line.") from None
