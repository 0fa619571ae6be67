"""The imports of the programs of a command, found without running them, and who publishes the modules."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from threading import Lock

from gradient_cli.workspace.dependencies.inline_metadata import has_metadata
from gradient_cli.workspace.dependencies.workspace_files import find_file, read_text

_MAX_FILES = 500
_MAX_BYTES = 1024**2
_MAX_CODE = 256 * 1024  # characters of a program: to parse them may take a second
_MAX_CHARACTERS = 4 * 1024**2  # of all programs together: a hostile folder must not keep a worker busy
_MAX_ENTRIES = 50_000
_MAX_SHELL = 64 * 1024  # characters of the command and its shell scripts
_MAX_DEPTH = 50  # of shell scripts that run others
_MAX_WORDS = 200  # of a simple command
_MAX_MODULES = 10_000
_MAX_IMPORTS = 1_000
_DEPTH_OF_KEPT = 4  # parts of the longest name of import_names.txt
_MAX_NAME = 255  # of a module, with its packages
_PARSER = Lock()  # CPython 3.11 counts its depth once for all threads, and fails if another one parses
_OURS = {"gradient_jobs", "gradient_cli", "pathspec", "pip"}  # modules that every job has
_RUNS_PYTHON = re.compile(
    r"\b(python[\d.]*|pip3?|uv|ipython|jupyter|papermill|pytest|torchrun|accelerate|deepspeed|make|tensorboard)\b|\.py\b"
)
_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*\Z")
_PYTHON = re.compile(r"i?python[\d.]*\Z|torchrun\Z|accelerate\Z|deepspeed\Z")
BETWEEN_COMMANDS = ";&|()<>\n"
_COMMENT = re.compile(r"(?m)(^|(?<=\s))#.*$")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WITH_VALUE = {
    "--extra",
    "--group",
    "--with",
    "-w",
    "--with-requirements",
    "--with-editable",
    "--python",
    "-p",
    "--env-file",
}
_CHOOSES = re.compile(
    r"--(all-|only-|no-(dev|default-groups|group|extra|install)|dev\b|package|isolated|project|directory|active)"
)
_EXTRAS = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*\[([^]]*)\]")
_INSTALLERS = {"uv", "pip", "pip3", "poetry", "pdm", "pipenv", "conda", "mamba", "micromamba", "pixi"}
_RUNNER = re.compile(rf"{_PYTHON.pattern}|(uv|poetry|pdm|pipenv|pytest)\Z")
_INSTALLING = {"install", "add", "sync", "create", "update"}
_LINE = re.compile(r"(?m)^[ \t]*(?:import|from)[ \t]+([A-Za-z_][\w.]*)")
_CAUGHT = {"ImportError", "ModuleNotFoundError", "Exception"}


@cache
def _kept() -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the distributions of each listed module, and the other modules that it needs."""
    text = Path(__file__).with_name("import_names.txt").read_text(encoding="utf-8")
    lines = (line.partition("+") for line in text.splitlines() if line and not line.startswith("#"))
    return {of[0]: (tuple(of[1:] or of), tuple(needed.split())) for of, needed in ((a.split(), b) for a, _, b in lines)}


def known_module(module: str) -> str | None:
    """Return the listed module that an import begins with; None if there is none."""
    parts = module.split(".", _DEPTH_OF_KEPT)[:_DEPTH_OF_KEPT]
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in names if name in _kept()), None)


def distributions_of(module: str) -> tuple[str, ...]:
    """Return the distributions that have a module, the usual one first; none if it is not listed."""
    key = known_module(module)
    return () if key is None else _kept()[key][0]


def names_of(lines: Iterable[str]) -> set[str]:
    """Return the names of the distributions that requirements name, in their normal form."""
    return {normal_name(match[0]) for line in lines if (match := _NAME.match(line))}


@cache
def _needed_by() -> dict[str, set[str]]:
    """Return the distributions that the modules of a distribution need besides, by its normal name."""
    needed: dict[str, set[str]] = {}
    for names, modules in _kept().values():
        more = {normal_name((distributions_of(module) or (module,))[0]) for module in modules}
        for name in names:
            needed.setdefault(normal_name(name), set()).update(more)
    return needed


def modules_of_extras(lines: Iterable[str]) -> set[str]:
    """Return the names of distributions that extras, such as those of `transformers[torch]`, may bring."""
    names: set[str] = set()
    for match in filter(None, map(_EXTRAS.match, lines)):
        names.update(map(normal_name, match[2].split(",")), _needed_by().get(normal_name(match[1]), ()))
    return names


def normal_name(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def is_of(module: str, distributions: set[str]) -> bool:
    """Return whether one of the distributions, whose names are normal, has a module."""
    return not distributions.isdisjoint(map(normal_name, distributions_of(module) or (module,)))


def remedy_for(module: str) -> str:
    names = distributions_of(module)
    name = names[0] if names else "PACKAGE"
    listed = f"list {name}" if names else "list its package"
    return f"{listed} in requirements.txt, or submit with --with {shlex.quote(name)}"


class UvOptions:
    """Options of `uv run` and `uv sync` in a command."""

    def __init__(self) -> None:
        self.used = False
        self.extras: list[str] = []
        self.groups: list[str] = []
        self.others = False  # whether they choose by options that are not read here

    def read(self, before: list[str], word: str) -> None:
        """Read a word of a simple command."""
        names = [os.path.basename(word) for word in before]
        start = next((at for at, word in enumerate(names) if word in {"run", "sync"} and "uv" in names[:at]), None)
        if start is None:
            self.used = self.used or (word in {"run", "sync"} and names[-1:] == ["uv"])
            self.others = self.others or (names[-1:] == ["uv"] and (word in {"add", "remove"} or word[0] == "-"))
            return
        options = ["", *before[start + 1 :]]
        if any(option[:1] != "-" and last not in _WITH_VALUE for last, option in zip(options, options[1:])):
            return  # an argument of the program
        name, _, value = word.partition("=")
        name, value = (name, value) if value else (options[-1], word)
        if name in {"--extra", "--group"}:
            (self.extras if name == "--extra" else self.groups).append(value)
        elif _CHOOSES.match(word):
            self.others = True


class ProgramImports:
    def __init__(self, workspace: Path, folder: Path, command: str) -> None:
        self.workspace = workspace.resolve()
        self.folder = self.workspace if folder == workspace else folder.resolve()
        self._seen: set[Path] = set()
        self._waiting: deque[Path] = deque()
        self._found: dict[str, str] = {}
        self._queued: dict[tuple[str, ...], bool] = {}
        self._left = _MAX_CHARACTERS
        self._texts: dict[Path, str] = {}
        self._depth = 0
        # What the modules of a distribution import now and then is its users' own choice.
        setup, project = (self.workspace / name for name in ("setup.py", "pyproject.toml"))
        self._published = self._file(setup) is not None or "[build-system]" in self._read(project)
        self.runs_python = False  # whether the command may run Python at all
        self.start: Path | None = None  # folder of the command's first program; None: it names none
        self.scripts: list[Path] = []  # programs that the job's own Python runs
        self.shell = ""  # the command, with the shell scripts that it runs
        self.uv = UvOptions()
        self._of_uv = False  # whether `uv run` installs what a program declares itself
        self._installed: list[str] = []  # requirements that the command installs itself
        self._installs_more = False  # whether it installs others, which it does not name
        self._read_command(command, self.folder)
        # whether it tells which programs it runs; else these are the imports of all programs in its folder
        self.certain = bool(self._waiting or self._found or self._of_uv) or not self.runs_python
        if not self.certain:
            self._waiting += self._every_program()
        self._read_programs()
        ours = self._own_names() if self._found else set()
        installed = names_of(self._installed)
        # the first place of each import of a module that is neither Python's nor the folder's own
        self.imports = {
            name: where
            for name, where in self._found.items()
            if name.partition(".")[0] not in ours and not is_of(name, installed)
        }

    @property
    def start_folder(self) -> Path:
        return self.folder if self.start is None else self.start.resolve()

    @property
    def undeclared(self) -> dict[str, str]:
        """The imports of which it is known that the command's requirements have to bring them."""
        return self.imports if self.certain and not self._installs_more else {}

    def _read_programs(self) -> None:
        programs = set(self._waiting)
        while self._waiting and len(self._seen) < _MAX_FILES and self._left > 0:
            file = self._waiting.popleft()
            if file not in self._seen:
                self._seen.add(file)
                text = _code_of_notebook(self._read(file)) if file.suffix == ".ipynb" else self._read(file)
                every = not self._published or file in programs
                self._read_code(text, str(file.relative_to(self.workspace)), file.parent, every=every)

    def imports_any(self, *modules: str) -> bool:
        return any(name.partition(".")[0] in modules for name in self.imports)

    def _read_command(self, command: str, at: Path) -> None:
        if len(self.shell) + len(command) > _MAX_SHELL or self._depth >= _MAX_DEPTH:
            self.runs_python = self._installs_more = True  # for all that is known
            return
        self._depth += 1
        self.runs_python = self.runs_python or _RUNS_PYTHON.search(command) is not None
        self.shell += f"{command}\n"
        before: list[str] = []  # words of the same simple command
        for number, word in enumerate(command_words := words_of(command)):
            if word.strip(BETWEEN_COMMANDS) == "":
                before = []
                continue
            if len(before) == _MAX_WORDS:
                self._installs_more = True
                continue
            self._read_installed(before, word)
            self.uv.read(before, word)
            if before[-1:] == ["cd"] and os.path.isdir(at / word):
                at = at / word
            elif before[-1:] != ["-c"]:
                self._read_word(word, before, at)
            # Not where it only tries whether a module is there.
            elif "||" not in command_words[number : number + 5] and not self._read_code(word, "the command", at):
                self._read_command(word, at)  # of another shell
            before.append(word)
        if "<<" in command:  # a program as the input of another
            for match in _LINE.finditer(command):
                self._follow(match[1], at, "the command")
        self._depth -= 1

    def _read_word(self, word: str, before: list[str], at: Path) -> None:
        if before[-1:] == ["-m"] and _MODULE.match(word):
            self._add_module(word, at)
        elif file := self._file(at / word):
            self._add_program(file, at, before)
        elif self.start is None and self._within(at) and _RUNNER.match(os.path.basename(word)):
            self.start = at

    def _read_installed(self, before: list[str], word: str) -> None:
        """Note a word of an installer's command, such as `pip install NAME` and `uv run --with NAME`."""
        if not any(os.path.basename(word_before) in _INSTALLERS for word_before in before):
            return
        if before[-1] in {"--with", "-w"}:
            self._installed += word.split(",")
        elif word == "sync" or before[-1] in {"-r", "--requirement", "-e", "--editable", "--with-requirements"}:
            self._installs_more = True
        elif any(word_before in _INSTALLING for word_before in before) and word[0] != "-":
            self._installed.append(word)
            self._installs_more = self._installs_more or not _NAME.match(word)

    def _add_module(self, module: str, at: Path) -> None:
        path = at.joinpath(*module.split("."))
        file = self._file(path.with_name(f"{path.name}.py")) or self._file(path / "__main__.py")
        if file is not None:
            self.start = self.start or at
            self.scripts.append(file)
        self._follow(module, at, "the command")

    def _add_program(self, file: Path, at: Path, before: list[str]) -> None:
        """Add a file that a command names after other words: its program, a shell script, or an argument."""
        code = file.suffix in {".py", ".ipynb"}
        # Arguments such as data leave the room to the programs.
        text = self._read(file, _MAX_BYTES if code or file.suffix in {".sh", ".bash", ""} else _MAX_SHELL)
        first = text.partition("\n")[0]
        if code or re.match(r"#!.*python", first):
            self.runs_python = True
            self.start = self.start or at
            names = [os.path.basename(word) for word in before]
            by_python = any(map(_PYTHON.match, names)) or (not before and "python" in first and "uv run" not in first)
            by_uv = not by_python and ("uv" in names or (not before and "uv run" in first))
            if by_uv and has_metadata(text):
                self._of_uv = True
                return
            # After its program, other files are arguments.
            if (by_python or by_uv) and not any(word.endswith(".py") for word in before):
                self.scripts.append(file)
            self._waiting.append(file)
        elif file.suffix in {".sh", ".bash", ""} and file not in self._seen:
            self._seen.add(file)
            self._read_command(text, at)

    def _every_program(self) -> Iterator[Path]:
        """Yield the programs of a folder whose command does not tell which of them it runs."""
        for pattern in ("*.py", "*.ipynb", "*/*.py"):
            paths = islice(self.folder.glob(pattern), _MAX_ENTRIES)
            yield from islice((file for file in sorted(paths) if self._file(file)), _MAX_FILES)

    def _read_code(self, text: str, source: str, folder: Path, *, every: bool = True) -> bool:
        """Follow the imports of a program; return whether it is one.

        `every`: whether those in functions and conditions count, too.
        """
        statements = None
        with _PARSER, suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            statements = ast.parse(text).body if len(text) <= _MAX_CODE else None
        if statements is None:
            return False
        for node in _certain_imports(statements, every=every):
            where = f"{source}, line {node.lineno}"
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self._follow(alias.name, folder, where)
            elif node.level > _MAX_DEPTH or len(node.module or "") > _MAX_NAME:
                continue
            elif node.level:
                base = folder.joinpath(*[".."] * (node.level - 1))
                parts = node.module.split(".") if node.module else []
                for name in node.names:
                    self._queue(base, [*parts, name.name])
            elif node.module:
                self._follow(node.module, folder, where, [alias.name for alias in node.names])
        return True

    def _follow(self, module: str, folder: Path, where: str, names: list[str] | None = None) -> None:
        """Queue the files of an import, or note it as one of others."""
        parts = module.split(".")
        if len(module) > _MAX_NAME:
            return
        if parts[0] in getattr(sys, "stdlib_module_names", ()) and parts[0] != "distutils":
            return
        for base in dict.fromkeys((folder, self.folder, self.workspace, self.workspace / "src")):
            if self._queue(base, parts):
                for name in names or ():
                    self._queue(base, [*parts, name])
                return
        if parts[0] not in _OURS:
            modules = (known_module(name) for name in (module, *(f"{module}.{name}" for name in names or ())))
            self._record(max(filter(None, modules), key=len, default=parts[0]), where)

    def _record(self, module: str, where: str) -> None:
        if len(self._found) >= _MAX_IMPORTS:
            return
        parent, _, name = module.rpartition(".")
        # A class is no module: what has it is its module's.
        self._found.setdefault(known_module(parent) or parent if parent and name[:1].isupper() else module, where)
        for needed in _kept().get(module, ((), ()))[1]:
            if needed not in self._found:
                self._record(needed, where)

    def _queue(self, base: Path, parts: list[str]) -> bool:
        """Queue the files that an import of the folder's own reads; return whether it is one."""
        key = (str(base), *parts)
        if key not in self._queued:
            if len(self._queued) >= _MAX_MODULES:
                return True  # for all that is known
            self._queued[key] = self._queue_files(base, parts)
        return self._queued[key]

    def _queue_files(self, base: Path, parts: list[str]) -> bool:
        queued = False
        for count in range(1, len(parts) + 1):
            path = base.joinpath(*parts[:count])
            for file in (path.with_name(f"{path.name}.py"), path / "__init__.py", path / "__main__.py"):
                if self._file(file):
                    queued = True
                    self._waiting.append(file.resolve())
            queued = queued or (count == len(parts) and os.path.isdir(path) and self._within(path))
        return queued

    def _own_names(self) -> set[str]:
        """Return the names of modules that are somewhere in the workspace, which a program may put on its path."""
        names: set[str] = set()
        for count, (inner, folders, files) in enumerate(os.walk(self.workspace)):
            folders[:] = [name for name in folders if not name.startswith(".")]
            modules = {name.partition(".")[0] for name in files if name.endswith((".py", ".pyx", ".so"))}
            names |= modules
            if modules:
                names.update(Path(inner).relative_to(self.workspace).parts)
            if count > _MAX_ENTRIES:
                break
        return names

    def _file(self, path: Path) -> Path | None:
        with suppress(OSError, RuntimeError, ValueError):
            return find_file(self.workspace, path)
        return None

    def _read(self, path: Path, limit: int = _MAX_BYTES) -> str:
        """Return the text of a file; none of one that is larger, or when those before it were large together."""
        if path not in self._texts:
            text = ""
            with suppress(OSError, RuntimeError, ValueError):
                text = (read_text(self.workspace, path, limit) if self._left > 0 else None) or ""
            self._left -= len(text)
            self._texts[path] = text
        return self._texts[path]

    def _within(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.workspace)


def words_of(command: str) -> list[str]:
    """Return the words of commands, and what is between these; quotation marks in comments are no obstacle."""
    command = command.replace("\\\n", " ")
    for text in (command, _COMMENT.sub("", command)):
        lexer = shlex.shlex(text, posix=True, punctuation_chars=BETWEEN_COMMANDS)
        lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
        with suppress(ValueError):  # a quotation that is not closed
            return list(lexer)
    return command.split()


def _code_of_notebook(text: str) -> str:
    """Return the code of a notebook's cells, without IPython's own commands."""
    try:
        cells = json.loads(text)["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return re.sub(r"(?m)^([ \t]*)[%!?].*$", r"\1pass", code)


def _certain_imports(nodes: Iterable[ast.AST], *, every: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports whose failure nothing catches: a program may do without the others."""
    passed = ast.expr if every else (ast.expr, ast.FunctionDef, ast.AsyncFunctionDef, ast.If)
    waiting = [*nodes][::-1]  # and no recursion: a chain of `elif` is as deep as it is long
    while waiting:
        node = waiting.pop()
        inner: Iterable[ast.AST] = ()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.Try) and any(
            not handler.type or _names_in(handler.type) & _CAUGHT for handler in node.handlers
        ):
            inner = [*node.orelse, *node.finalbody]
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in _names_in(node.test):
            inner = node.orelse
        elif not isinstance(node, passed):
            inner = ast.iter_child_nodes(node)
        waiting += [*inner][::-1]


def _names_in(expression: ast.expr) -> set[str]:
    nodes = list(ast.walk(expression))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}
