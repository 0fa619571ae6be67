"""Lock files, indexes with a login, and other things that decide which versions a job gets and from where."""

import pytest

from gradient_cli.workspace.dependencies.index_variables import for_uv
from gradient_cli.workspace.dependencies.requirements import pinned_python
from gradient_cli.workspace.dependencies.requirements_plan import RequirementsPlan

pytestmark = pytest.mark.unit

PROJECT = '[project]\nname = "p"\nrequires-python = ">=3.12"\ndependencies = ["project>=1"]\n'
POETRY = '[tool.poetry]\nname = "p"\n[tool.poetry.dependencies]\npython = "^3.11"\na = "^1.2.3"\nb = "*"\n'
PIPFILE = '[packages]\na = "*"\n'
LOCKED = '[[package]]\nname = "a"\nversion = "1.2.4"\n\n[[package]]\nname = "both"\nversion = "1"\n'
LOCKED += '[[package]]\nname = "both"\nversion = "2"\nmarkers = "python_version > \\"3.9\\""\n'
LOCKED += '[[package]]\nname = "d"\nversion = "3"\n\n[package.source]\ntype = "git"\n'


@pytest.mark.parametrize(
    ("files", "pins"),
    [
        ({"pyproject.toml": POETRY, "poetry.lock": LOCKED}, ("a==1.2.4", 'both==2 ; python_version > "3.9"')),
        ({"pyproject.toml": PROJECT, "pdm.lock": LOCKED}, ("a==1.2.4", 'both==2 ; python_version > "3.9"')),
        (
            {"Pipfile": PIPFILE, "Pipfile.lock": '{"default": {"a": {"version": "==9"}}, "develop": {"t": {}}}'},
            ("a==9",),
        ),
        ({"pyproject.toml": POETRY, "poetry.lock": "<<<<<<<"}, ()),
        ({"Pipfile": PIPFILE, "Pipfile.lock": "<<<<<<<"}, ()),
    ],
)
def test_versions_of_other_lock_files_are_constraints(find, files, pins):
    found = find(files, packages=("x>1",))
    assert found.pins == pins
    if pins:
        assert (found.input, found.commands[-1][-3:]) == (pins, ("x>1", "--constraints", "-"))
        assert " and " in found.source
        assert found.digest != find({name: "" for name in files if name.endswith("lock")}, packages=("x>1",)).digest


def test_indexes_of_tables_are_asked_too(find):
    source = '[[tool.poetry.source]]\nname = "torch"\nurl = "https://example.org/cpu/"\n'
    assert find({"pyproject.toml": POETRY + source}).lines[0] == "--extra-index-url https://example.org/cpu"


@pytest.mark.parametrize("packaged", ["p/__init__.py", "src/p/__init__.py", "p.py"])
@pytest.mark.parametrize("table", [POETRY, PROJECT])
def test_of_a_poetry_project_without_its_package_the_dependencies_are_installed(find, table, packaged):
    build = '[build-system]\nrequires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n'
    found = find({"pyproject.toml": table + build})
    assert "--editable" not in found.words
    assert "package-mode = false" in " ".join(found.notes)
    assert len(found.lines) == len(find({"pyproject.toml": table}).lines)
    built = find({"pyproject.toml": table + build, packaged: ""})
    assert ("--editable" in built.words, built.notes) == (True, ())


MEMBER = '[project]\nname = "m"\nversion = "1"\ndependencies = ["six>=1"]\n'
ROOT_LOCK = """
[[package]]
name = "m"
version = "1"
source = { virtual = "apps/m" }

[package.metadata]
requires-dist = [
    { name = "six", specifier = ">=1" },
]
"""


def test_the_lock_of_a_workspace_is_that_of_its_members(find):
    files = {"pyproject.toml": PROJECT + '[tool.uv.workspace]\nmembers = ["apps/*"]\n', "uv.lock": ROOT_LOCK}
    found = find({**files, "apps/m/pyproject.toml": MEMBER}, start="apps/m")
    assert (found.source, found.folder.name, found.notes) == ("uv.lock", "m", ())
    assert find({"apps/other/pyproject.toml": MEMBER}, start="apps/other").source == "pyproject.toml"
    changed = MEMBER.replace('"six>=1"', '"six>= 1", "colorama"')
    [note] = find({"apps/m/pyproject.toml": changed}, start="apps/m").notes
    assert "it lacks colorama. `uv lock`" in note
    [note] = find({"apps/m/pyproject.toml": MEMBER.replace(">=1", ">=2")}, start="apps/m").notes
    assert "it lacks six>=2." in note


@pytest.mark.parametrize(
    ("files", "path"),
    [
        ({"pyproject.toml": PROJECT + '[tool.uv.sources]\nproject = {path = "../../lib"}\n'}, "../../lib"),
        ({"requirements.txt": "-e ../lib[x]\n"}, "../lib"),
        ({"requirements.txt": "lib @ ../lib ; python_version > '3'\n"}, "../lib"),
        ({"pyproject.toml": '[tool.poetry.dependencies]\nlib = {path = "../lib", develop = true}\n'}, "../lib"),
        ({"a/requirements.txt": "-e ../lib\n"}, ""),
    ],
)
def test_what_is_not_in_the_folder_is_named_before_it_is_uploaded(find, files, path):
    notes = " ".join(find(files, start="a" if "a/requirements.txt" in files else ".").notes)
    assert (f"{path} is not in the uploaded folder" in notes or f"{path}, not in the uploaded" in notes) == bool(path)


def test_variables_of_the_job_decide_from_where(find, tmp_path):
    address = "--extra-index-url https://u:${TOKEN}@example.org/simple\nsix\n"
    variables = {"TOKEN": "secret:t", "PIP_INDEX_URL": "https://u:pw@example.org/s", "PIP_CONFIG_FILE": "pip.conf"}
    found = find({"requirements.txt": address}, variables=variables)
    assert (found.variables, found.local) == (("PIP_INDEX_URL", "TOKEN"), False)
    assert found.digest != find({}, variables={**variables, "PIP_INDEX_URL": "x"}).digest
    assert "PIP_CONFIG_FILE: only the command itself" in " ".join(found.notes)
    assert find({}).local, "it may be any path"
    assert for_uv({"PIP_INDEX_URL": "u", "PIP_FIND_LINKS": "a b", "TOKEN": "t"}) == {
        "UV_DEFAULT_INDEX": "u",
        "UV_FIND_LINKS": "a,b",
        "TOKEN": "t",
    }
    (tmp_path / "requirements.txt").write_text(
        "--index-url https://u:hidden@h/s\nx @ git+https://ghp_0123456789ab@h/x\n"
    )
    plan = RequirementsPlan({"command": "python main.py"}, str(tmp_path), [])
    shown = f"{plan.as_json()} {plan.as_fields({})}"
    assert "hidden" not in shown
    assert "ghp_" not in shown
    assert "https://u:****@h/s" in shown


@pytest.mark.parametrize(
    ("text", "python"), [("3.12\n", "3.12"), ("# mine\ncpython-3.11.4\n", "3.11"), ("my-env\n", None), ("3\n", None)]
)
def test_a_python_version_file_names_a_version(tmp_path, text, python):
    (tmp_path / "src").mkdir()
    (tmp_path / ".python-version").write_text(text)
    assert pinned_python(tmp_path, tmp_path / "src") == python
