"""A rule for imports that import-linter's contracts do not have: no module leads back to itself."""

import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

pytestmark = pytest.mark.integration

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def test_the_imports_of_all_modules_have_an_order():
    packages = tomllib.loads(PYPROJECT.read_text())["tool"]["importlinter"]["root_packages"]
    graph = grimp.build_graph(*packages, cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    # graphlib.CycleError names the modules of a circle, each of which imports the one before: move what they share.
    assert len(list(TopologicalSorter(imports).static_order())) == len(graph.modules)
