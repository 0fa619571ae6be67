import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("core", "service", "worker", "client", "gradient_server", "images", "bench", "examples", "experiments")
VAGUE = {"one", "found", "each", "known", "place", "words", "own"}


def local_names(tree):
    """Names of all variables and parameters of functions, with lines."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    for node in (node for function in functions for node in ast.walk(function)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name, node.lineno


@pytest.mark.parametrize("package", PACKAGES)
def test_variables_say_what_they_hold(package):
    names = [
        (f"{path.relative_to(ROOT)}:{line}", name)
        for path in sorted((ROOT / package).rglob("*.py"))
        for name, line in local_names(ast.parse(path.read_text()))
    ]
    assert len(names) > 50
    assert sorted({at for at, name in names if name in VAGUE}) == []
