"""Models and data sets by name: each file in `models/` or `datasets/` is an entry.

The file name gives the entry's name (`mnist_cnn.py` is `mnist-cnn`), the first line of its docstring the summary.
Listing imports nothing, so that it needs neither TensorFlow nor the libraries of a single data set.
"""

import ast
import difflib
import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from .errors import OptionsError, UnknownNameError

PACKAGE_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Registry:
    kind: str  # kind of entry, as named in messages: "model" or "data set"
    package: str
    folder: Path
    function: str

    def summaries(self) -> dict[str, str]:
        """Return name and one-line summary of each entry, ordered by name."""
        files = sorted(path for path in self.folder.glob("*.py") if not path.stem.startswith("_"))
        return {path.stem.replace("_", "-"): _first_docstring_line(path) for path in files}

    def check(self, name: str) -> None:
        """Raise if `get` would not find a name; imports nothing."""
        if name.endswith(".py"):
            if not Path(name).is_file():
                raise UnknownNameError(f"{self.kind} {name!r}: there is no such file (looked in {Path.cwd()})")
            return
        names = list(self.summaries())
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UnknownNameError(
                f"unknown {self.kind} {name!r}; {hint}There are: {', '.join(names)}; a .py file of your own also works"
            )

    def get(self, name: str) -> Callable[..., Any]:
        """Import the entry and return its function.

        `name`: a listed name, or the path of a .py file that defines the function.
        """
        self.check(name)
        if name.endswith(".py"):
            module = _load_file(Path(name))
        else:
            module = importlib.import_module(f"{self.package}.{name.replace('-', '_')}")
        loaded = getattr(module, self.function, None)
        if not callable(loaded):
            raise OptionsError(f"{self.kind} {name!r}: {module.__file__} defines no function {self.function}()")
        return loaded  # type: ignore[no-any-return]  # what it takes is known to the caller, not to the registry


def _load_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise OptionsError(f"{path} cannot be imported; is it a Python file?")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _first_docstring_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".")


MODELS = Registry("model", f"{__package__}.models", PACKAGE_FOLDER / "models", "build")
DATASETS = Registry("data set", f"{__package__}.datasets", PACKAGE_FOLDER / "datasets", "load")
