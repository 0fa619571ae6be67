"""The requirements that a folder declares, and which of several places counts."""

import pytest

from worker.backends.base import LaunchError
from worker.environments.declared_requirements import find_declared
from worker.environments.inline_metadata import script_of

pytestmark = pytest.mark.unit

SCRIPT = '# /// script\n# requires-python = ">=3.11"\n# dependencies = [\n#   "inline",\n# ]\n# ///\nprint(1)\n'
PROJECT = '[project]\nname = "p"\nrequires-python = ">=3.12"\ndependencies = ["project>=1"]\n'


@pytest.fixture
def find(tmp_path):
    """Find what files declare."""

    def look(files, command="python main.py", start="."):
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return find_declared(tmp_path, tmp_path / start, command)

    return look


def told(found):
    return found and (found.source, found.lines, found.python)


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
    assert find({}, command=f"python {outside}") is None
    (tmp_path / "link.py").symlink_to(outside)
    assert find({}, command="python link.py") is None
    assert find({}, command="python ../other.py") is None


def test_the_most_specific_place_counts(find):
    assert find({"main.py": "print(1)\n"}) is None
    project = ("pyproject.toml", ("project>=1",), ">=3.12")
    assert told(find({"pyproject.toml": PROJECT})) == project
    assert told(find({"requirements.txt": "# nothing yet\n"})) == project
    assert told(find({"requirements.txt": "listed\n"})) == ("requirements.txt", ("listed",), None)
    assert told(find({"src/requirements.txt": "inner\n"}, start="src")) == ("requirements.txt", ("inner",), None)
    assert told(find({"src/a/b/x": ""}, start="src/a/b")) == ("requirements.txt", ("inner",), None), "of a folder above"
    assert told(find({"main.py": SCRIPT})) == ("main.py", ("inline",), ">=3.11")
    assert told(find({}, command="python -m main")) == ("requirements.txt", ("listed",), None)


@pytest.mark.parametrize(
    ("files", "source", "words"),
    [
        ({"setup.py": ""}, "setup.py", "--editable ."),
        ({"pyproject.toml": PROJECT + "[build-system]\nrequires = []\n"}, "pyproject.toml", "--editable ."),
        ({"pyproject.toml": '[tool.poetry]\nname = "p"\n'}, "pyproject.toml", "--editable ."),
        ({"pyproject.toml": PROJECT, "uv.lock": ""}, "uv.lock", "sync --frozen"),
        (
            {"Pipfile": '[packages]\na = "*"\nb = "==1"\nc = {version = ">2", extras = ["x"]}\n'},
            "Pipfile",
            "-- a b==1 c[x]>2",
        ),
    ],
)
def test_every_kind_of_project_is_installed_by_uv(find, files, source, words):
    found = find(files)
    assert found.source == source
    assert words in " ".join(found.commands[0])
    assert found.local == ("." in found.commands[0])


@pytest.mark.parametrize(
    ("line", "local"),
    [
        ("numpy", False),
        ("numpy>=2,<3 ; python_version > '3'", False),
        ("torch[x] == 2.5.1 --hash=sha256:aa", False),
        ("--extra-index-url https://download.example.org/whl/cpu", False),
        ("tool @ git+https://example.org/tool.git@main", False),
        ("tool @ https://example.org/tool-1-py3-none-any.whl", False),
        ("-r more.txt", False),
        ("-c more.txt", False),
        ("git+https://example.org/tool.git", True),
        ("-e .", True),
        ("-e git+https://example.org/tool.git#egg=tool", True),
        ("./lib", True),
        ("lib/tool-1-py3-none-any.whl", True),
        ("tool @ file:///tmp/tool.whl", True),
        ("tool @ ./lib", True),
        ("--find-links ./wheels", True),
        ("tool @ ${HOME}/tool", True),
        ("-r absent.txt", True),
        ("-r ../outside.txt", True),
        ("-r more.txt -e /x", True),
    ],
)
def test_what_may_name_a_file_is_shared_with_no_other_job(find, line, local):
    """Whatever is not recognized is installed all the same, and belongs to the one job."""
    assert find({"requirements.txt": f"six\n{line}\n", "more.txt": "tqdm\n"}).local == local


def test_included_files_decide_what_is_installed(find):
    one = find(
        {
            "requirements.txt": "-r more/base.txt\n",
            "more/base.txt": "-c limits.txt\nsix\n",
            "more/limits.txt": "six<2\n",
        }
    )
    other = find({"more/limits.txt": "six<3\n"})
    assert one.contents != other.contents
    assert one.commands == other.commands
    assert find({"more/limits.txt": "-r ../requirements.txt\n"}) is not None, "they may include one another"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_file_is_read_in_the_encodings_of_editors(find, encoding):
    assert find({"requirements.txt": "numpy\r\nsix\r\n".encode(encoding)}).lines == ("numpy", "six")


def test_a_file_for_tools_alone_declares_nothing(find):
    assert find({"pyproject.toml": "[tool.ruff]\nline-length = 120\n"}) is None


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"environment.yml": "dependencies: [numpy]\n"}, "requirements.txt"),
        ({"pyproject.toml": "[project\n"}, "not valid TOML"),
        ({"pyproject.toml": "[project]\nrequires-python = 3\n"}, "requires-python"),
        ({"pyproject.toml": "x = " + "[" * 5000 + "]" * 5000}, "not valid TOML"),
        ({"pyproject.toml": "x = " + "9" * 5000}, "not valid TOML"),
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
    found = find({"environment.yml": "dependencies: [numpy]\n", "requirements.txt": "six\n"})
    assert found.source == "requirements.txt"


@pytest.mark.parametrize("name", ["loop.py", "n" * 5000 + ".py", "'a\0b.py'"])
def test_a_script_whose_path_cannot_be_followed_is_refused(find, tmp_path, name):
    (tmp_path / "loop.py").symlink_to("loop.py")
    with pytest.raises(LaunchError, match="requirements_invalid") as refused:
        find({}, command=f"python {name}")
    assert "\0" not in refused.value.detail
