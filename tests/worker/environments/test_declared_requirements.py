"""The requirements that a folder declares, and which of several places counts."""

import pytest

from core.settings.network import EgressSettings
from core.system.egress import Egress
from worker.backends.base import LaunchError
from worker.environments.declared_requirements import Declared, LockedProject, find_declared
from worker.environments.inline_metadata import script_of
from worker.environments.requirements_file import RequirementsReader

pytestmark = pytest.mark.unit

SCRIPT = '# /// script\n# requires-python = ">=3.11"\n# dependencies = [\n#   "inline",\n# ]\n# ///\nprint(1)\n'
PROJECT = '[project]\nname = "p"\nrequires-python = ">=3.12"\ndependencies = ["project>=1"]\n'


@pytest.fixture
def find(tmp_path):
    """Find what files declare; returns it with the lines."""

    def look(files, command="python main.py", start="."):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        reader = RequirementsReader(tmp_path, Egress(EgressSettings()))
        return find_declared(reader, tmp_path, tmp_path / start, command), reader.lines

    return look


@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("python main.py --epochs 3", "main.py"),
        ("python3.12 -u src/train.py", "src/train.py"),
        ("A=1 B='x y' python -OO main.py && echo done", "main.py"),
        ("python 'my script.py'", "my script.py"),
        ("python -m train", None),
        ("python -c 'print(1)' main.py", None),
        ("bash run.sh main.py", None),
        ("echo python main.py", None),
        ("python 'unclosed.py", None),
        ("", None),
    ],
)
def test_the_script_of_a_command(command, script):
    assert script_of(command) == script


def test_a_script_outside_of_the_workspace_declares_nothing(find, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-main.py"
    outside.write_text(SCRIPT)
    assert find({}, command=f"python {outside}") == (None, [])
    (tmp_path / "link.py").symlink_to(outside)
    assert find({}, command="python link.py") == (None, [])
    assert find({}, command="python ../other.py") == (None, [])


def test_the_most_specific_place_counts(find):
    assert find({"main.py": "print(1)\n"}) == (None, [])
    assert find({"pyproject.toml": PROJECT}) == (Declared("pyproject.toml", ">=3.12"), ["project>=1"])
    assert find({"requirements.txt": "# nothing yet\n"}) == (Declared("pyproject.toml", ">=3.12"), ["project>=1"])
    assert find({"requirements.txt": "listed\n"}) == (Declared("requirements.txt"), ["listed"])
    assert find({"src/requirements.txt": "inner\n"}, start="src") == (Declared("requirements.txt"), ["inner"])
    assert find({"main.py": SCRIPT}) == (Declared("main.py", ">=3.11"), ["inline"])
    assert find({}, command="python -m main") == (Declared("requirements.txt"), ["listed"])


def test_a_lock_file_stands_for_its_project(find):
    lock = (
        '[[package]]\nname = "a"\nsource = { registry = "https://pypi.org/simple" }\n'
        '[[package]]\nname = "torch"\nsource = { registry = "https://download.pytorch.org/whl/cpu" }\n'
    )
    found, lines = find({"pyproject.toml": PROJECT, "uv.lock": lock})
    assert found == Declared("uv.lock", ">=3.12", LockedProject("p", lock))
    assert lines == ["--extra-index-url https://download.pytorch.org/whl/cpu"]


def test_a_file_for_tools_alone_declares_nothing(find):
    assert find({"pyproject.toml": "[tool.ruff]\nline-length = 120\n"}) == (None, [])


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"environment.yml": "dependencies: [numpy]\n"}, "requirements.txt"),
        ({"pyproject.toml": "[project\n"}, "not valid TOML"),
        ({"pyproject.toml": '[project]\ndependencies = "numpy"\n'}, "not a list of strings"),
        ({"pyproject.toml": '[project]\ndynamic = ["dependencies"]\n'}, "computed by a build"),
        (
            {"pyproject.toml": '[project]\ndependencies = ["a"]\n[tool.uv.sources]\na = { path = "a" }\n'},
            "uv.lock",
        ),
        ({"pyproject.toml": "[project]\nrequires-python = 3\n"}, "requires-python"),
        ({"pyproject.toml": 'tool = 3\n[project]\ndependencies = ["a"]\n'}, "tool is not a table"),
        ({"pyproject.toml": '[project]\ndependencies = ["a"]\n[tool]\nuv = 3\n'}, "uv is not a table"),
        ({"pyproject.toml": "x = " + "[" * 5000 + "]" * 5000}, "not valid TOML"),
        ({"pyproject.toml": "x = " + "9" * 5000}, "not valid TOML"),
        ({"pyproject.toml": PROJECT, "uv.lock": 'package = ["x"]\n'}, "package is not a list of tables"),
        ({"pyproject.toml": PROJECT, "uv.lock": "package = 3\n"}, "package is not a list of tables"),
        ({"pyproject.toml": PROJECT, "uv.lock": "[[package]]\nsource = 3\n"}, "source is not a table"),
        ({"pyproject.toml": "[project]\n", "uv.lock": ""}, "project.name is missing"),
        ({"pyproject.toml": '[project]\nname = "p\\n"\n', "uv.lock": ""}, "project.name is missing"),
        ({"main.py": "# /// script\n# x = " + "[" * 5000 + "]" * 5000 + "\n# ///\n"}, "not valid TOML"),
        ({"main.py": "# /// script\n# dependencies = [\n# ///\n"}, "not valid TOML"),
        ({"main.py": '# /// script\n# dependencies = ["inline"]\n\nprint(1)\n'}, "is empty or does not end"),
        ({"main.py": SCRIPT + SCRIPT}, "more than one block"),
    ],
)
def test_what_cannot_be_used_says_what_to_do(find, files, says):
    with pytest.raises(LaunchError) as refused:
        find(files)
    assert refused.value.reason == "requirements_invalid"
    assert says in refused.value.detail


def test_a_conda_file_beside_requirements_is_left_alone(find):
    found, _ = find({"environment.yml": "dependencies: [numpy]\n", "requirements.txt": "six\n"})
    assert found == Declared("requirements.txt")


@pytest.mark.parametrize("name", ["loop.py", "n" * 5000 + ".py", "'a\0b.py'"])
def test_a_script_whose_path_cannot_be_followed_is_refused(find, tmp_path, name):
    (tmp_path / "loop.py").symlink_to("loop.py")
    with pytest.raises(LaunchError, match="requirements_invalid") as refused:
        find({}, command=f"python {name}")
    assert "\0" not in refused.value.detail


def test_an_index_of_a_lock_file_that_is_no_text_is_left_out(find):
    assert find({"pyproject.toml": PROJECT, "uv.lock": "[[package]]\nsource = {registry = []}\n"})[1] == []
