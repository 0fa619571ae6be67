"""Ignore rules of workspaces: `.gitignore` with git's semantics, overridden by `.gradientignore`."""

from __future__ import annotations

import os

from gradient_cli.errors import ClientError

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

# In ascending precedence: any .gradientignore overrides every .gitignore.
FILES = (".gitignore", ".gradientignore")
_ALWAYS = {".git"}
# Python's caches change with every run, and would make an unchanged folder look changed.
_BY_DEFAULT = {"__pycache__"}


class IgnoreRules:
    """The ignore rules in effect in one folder: its own and those of its parents.

    Args:
        folder: The folder's absolute path.
        above: The rules of the parent folder.

    Attributes:
        specs: For each name of an ignore file, the folders that have one, with its patterns, outermost first.
    """

    def __init__(self, folder: str, above: IgnoreRules | None = None) -> None:
        inherited = above.specs if above else {name: [] for name in FILES}
        self.specs: dict[str, list[tuple[str, GitIgnoreSpec]]] = {
            name: _with_own(inherited[name], folder, name) for name in FILES
        }

    @classmethod
    def for_root(cls, root: str) -> IgnoreRules:
        """Load the rules of the folder to pack, including those of the folders above it in its git repository."""
        folders = [root]
        while not os.path.exists(os.path.join(folders[-1], ".git")):
            parent = os.path.dirname(folders[-1])
            if parent == folders[-1]:
                return cls(root)  # outside a repository, parent folders do not count
            folders.append(parent)
        rules: IgnoreRules | None = None
        for folder in reversed(folders):
            rules = cls(folder, rules)
        return rules or cls(root)

    def ignores(self, path: str, *, is_folder: bool) -> bool:
        """Return whether the file or folder at this absolute path is excluded."""
        name = os.path.basename(path)
        if name in _ALWAYS:
            return True
        for kind in reversed(FILES):
            for base, spec in reversed(self.specs[kind]):
                below = path[len(base.rstrip("/")) + 1 :]
                ignored = spec.check_file(below + ("/" if is_folder else "")).include
                if ignored is not None:
                    return ignored
        return name in _BY_DEFAULT


def _with_own(inherited: list[tuple[str, GitIgnoreSpec]], folder: str, name: str) -> list[tuple[str, GitIgnoreSpec]]:
    path = os.path.join(folder, name)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except (FileNotFoundError, IsADirectoryError):
        return inherited
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}", hint="Fix its permissions.") from None
    from pathspec import GitIgnoreSpec

    try:
        return [*inherited, (folder, GitIgnoreSpec.from_lines(lines))]
    except ValueError as error:
        raise ClientError(f"{path}: {error}", hint="Correct that line.") from None
