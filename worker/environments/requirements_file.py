"""Reads requirements, and refuses those that would install anything but packages of an index.

The installer runs as the worker's user, outside of the job: a folder must not make it read other files of this machine,
or run code. So each line is checked here, and included files are read here, within the workspace.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from core.errors import EgressRefused
from core.system.egress import Egress
from gradient_cli.text import decode
from worker.backends.base import LaunchError

_MAX_BYTES = 16 * 1024**2
"""A large uv.lock has a few."""
_MAX_LINES = 10_000
_MAX_DEPTH = 20
"""Most files that include one another by `-r` and `-c`."""
_MAX_DETAIL = 600
_COMMENT = re.compile(r"(^|\s)#.*$")
_OPTION = re.compile(r"(--?[A-Za-z][a-z-]*)(?:\s*=\s*|\s+|$)(.*)\Z")
_INCLUDES = {"-r": "lines", "--requirement": "lines", "-c": "constraints", "--constraint": "constraints"}
_INDEXES = {
    "-i": "--index-url",
    "--index-url": "--index-url",
    "--extra-index-url": "--extra-index-url",
    "-f": "--find-links",
    "--find-links": "--find-links",
}
_OPTION_AFTER = re.compile(r"\s(--?[A-Za-z][A-Za-z-]*)")
_HASH = re.compile(r"\s--hash[=\s]\w+:\w+(?=\s|\Z)")
_WITHOUT_EFFECT = {"--prefer-binary", "--only-binary"}
"""Options that ask for what is done anyway."""
_LOCAL = re.compile(r"(-e |\.{0,2}/|\.\Z|\.\[|~|[A-Za-z0-9_.-]+/|file:|.*\.(whl|zip|tar\.gz)\Z)")


def invalid(where: str, problem: str) -> LaunchError:
    """Return the error for a requirement that is refused."""
    text = f"{where}: {problem}"
    if len(text) > _MAX_DETAIL:
        text = f"{text[: _MAX_DETAIL - 1]}…"
    # Names of files and options may have any character; PostgreSQL stores no NUL.
    return LaunchError("requirements_invalid", "".join(one if one.isprintable() else "\ufffd" for one in text))


def resolve(path: Path) -> Path:
    """Resolve the links of a path that a workspace names.

    Raises:
        LaunchError: It is not a path, or a link leads to itself.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise invalid(path.name, "this path cannot be followed: it is invalid, or a link leads to itself.") from error


class RequirementsReader:
    """Reads the requirements of one workspace.

    Args:
        workspace: The folder that everything read must be in, with links resolved.
        egress: The policy for addresses that requirements name.

    Attributes:
        lines: Requirements and options of the index, checked, as a requirements file has them.
        constraints: Checked constraints.
    """

    def __init__(self, workspace: Path, egress: Egress) -> None:
        self._workspace = workspace.resolve()
        self._egress = egress
        self._seen: set[tuple[Path, str]] = set()
        self.lines: list[str] = []
        self.constraints: list[str] = []

    def read_text(self, path: Path) -> str:
        """Read a small file of the workspace.

        Raises:
            LaunchError: The file is outside, too large, not a file or not UTF-8.
        """
        found = resolve(path)
        if not found.is_relative_to(self._workspace):
            raise invalid(path.name, "this file is outside of the workspace. Put it into the folder of the job.")
        try:
            with found.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
        except OSError as error:
            raise invalid(path.name, f"this file cannot be read: {error.strerror}.") from error
        if len(data) > _MAX_BYTES:
            raise invalid(path.name, f"this file has more than {_MAX_BYTES:,} bytes.")
        try:
            return decode(data)
        except UnicodeDecodeError as error:
            raise invalid(path.name, "this file is not UTF-8 text. Save it as UTF-8.") from error

    def add_file(self, path: Path, kind: str = "lines", depth: int = 1) -> None:
        """Add the requirements of a file, with the files that it includes.

        Raises:
            LaunchError: A line is refused.
        """
        if depth > _MAX_DEPTH:
            raise invalid(path.name, f"more than {_MAX_DEPTH} files include one another. Use fewer files.")
        found = resolve(path)
        if (found, kind) in self._seen:
            return
        self._seen.add((found, kind))
        for number, line in _logical_lines(self.read_text(path)):
            where = f"{path.name}, line {number}"
            if line.startswith("-"):
                self._add_option(line, where, path, kind, depth)
            else:
                self._add(line, where, kind)

    def add_lines(self, lines: Iterable[str], source: str) -> None:
        """Add requirements without options, for example from pyproject.toml.

        Raises:
            LaunchError: A requirement is refused.
        """
        for line in lines:
            self._add(line.strip(), source, "lines")

    def add_index(self, url: str, source: str) -> None:
        """Add an index to search.

        Raises:
            LaunchError: The index may not be connected to.
        """
        self._check_url(url, source)
        self._append(f"--extra-index-url {url}", source, "lines")

    def _add_option(self, line: str, where: str, path: Path, kind: str, depth: int) -> None:
        matched = _OPTION.match(line)
        name, value = (matched[1], matched[2].strip()) if matched else (line, "")
        if name in _INCLUDES and value:
            self.add_file(path.parent / value, "constraints" if kind == "constraints" else _INCLUDES[name], depth + 1)
        elif name in _INDEXES and value:
            self._check_url(value, where)
            self._append(f"{_INDEXES[name]} {value}", where, kind)
        elif name == "--require-hashes":
            self._append(name, where, kind)
        elif name in {"-e", "--editable"}:
            raise invalid(where, _explain_local(line))
        elif name not in _WITHOUT_EFFECT:
            raise invalid(where, f"the option {name} is not supported. Remove it.")

    def _add(self, line: str, where: str, kind: str) -> None:
        plain = _HASH.sub("", line)
        if option := _OPTION_AFTER.search(plain):
            raise invalid(where, f"the option {option[1]} is not supported here. Remove it.")
        try:
            requirement = Requirement(plain)
        except (ValueError, RecursionError) as error:  # the latter for nested markers
            if _LOCAL.match(plain):
                raise invalid(where, _explain_local(plain)) from error
            reason = str(error).partition("\n")[0]
            raise invalid(where, f"{plain[:200]!r} is not a requirement such as numpy>=2: {reason}.") from error
        if requirement.url is not None:
            self._check_url(requirement.url, where)
        self._append(line, where, kind)

    def _check_url(self, url: str, where: str) -> None:
        scheme = urlsplit(url).scheme if "${" not in url else "a variable"
        if scheme not in {"https", "http"}:
            raise invalid(
                where,
                f"{url[:200]!r} is not an https address of an index or a wheel. Install it in the job's command: "
                f"pip install '{url[:200]}' && …",
            )
        try:
            self._egress.check_url(url, where)
        except EgressRefused as error:
            raise invalid(where, error.message) from error

    def _append(self, line: str, where: str, kind: str) -> None:
        # uv would take the rest of such a line for a line of its own, and so for any option.
        if not line.isprintable():
            raise invalid(where, f"{line[:200]!r} has a line break or another control character. Remove it.")
        added: list[str] = getattr(self, kind)
        added.append(line)
        if len(added) > _MAX_LINES:
            raise invalid(where, f"more than {_MAX_LINES:,} requirements.")


def _explain_local(line: str) -> str:
    return (
        f"{line[:200]!r} is a folder or file, and only packages of an index are installed before the command. Install "
        f"it in the command: pip install {line[:200]} && …"
    )


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with the number of their first part: without comments, continued lines joined."""
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if joined else number
        continued = line.endswith("\\")
        joined += line.removesuffix("\\").replace("\t", " ").strip() + " "
        if not continued:
            if plain := _COMMENT.sub("", joined).strip():
                yield first, plain
            joined = ""
    if plain := _COMMENT.sub("", joined).strip():
        yield first, plain
