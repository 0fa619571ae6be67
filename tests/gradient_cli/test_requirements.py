"""The requirements that a folder declares, and which of several places counts."""

import re

import pytest

from gradient_cli.errors import UsageError
from gradient_cli.workspace.dependencies.requirements_plan import RequirementsPlan

pytestmark = pytest.mark.unit

SCRIPT = '# /// script\n# requires-python = ">=3.11"\n# dependencies = [\n#   "inline",\n# ]\n# ///\nprint(1)\n'
PROJECT = '[project]\nname = "p"\nrequires-python = ">=3.12"\ndependencies = ["project>=1"]\n'


def told(found):
    return found and (found.source, found.lines, found.python)


def test_a_script_outside_of_the_workspace_declares_nothing(find, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}-main.py"
    outside.write_text(SCRIPT)
    assert find({}, command=f"python {outside}") is None
    (tmp_path / "link.py").symlink_to(outside)
    assert find({}, command="python link.py") is None
    assert find({}, command="python ../other.py") is None


@pytest.mark.parametrize(
    ("files", "undeclared"),
    [
        ({"requirements.txt": "transformers[torch]\n", "main.py": "from transformers import Trainer"}, []),
        (
            {"requirements.txt": "x\n", "main.py": "import ext, space.inner", "ext.pyx": "", "a/space/inner/b.py": ""},
            [],
        ),
        ({"requirements.txt": "numpy\n"}, ["six"]),
        ({"requirements.txt": "numpy\nsix\n"}, []),
        ({"setup.py": ""}, []),
        ({"requirements.txt": "-e .\n", "setup.py": ""}, []),
        ({"requirements.txt": "./lib[a]\n", "lib/setup.py": ""}, []),
    ],
)
def test_what_a_folder_of_its_own_brings_is_not_called_undeclared(find, tmp_path, files, undeclared):
    find({"main.py": "import six\n", **files})
    plan = RequirementsPlan({"command": "python main.py"}, str(tmp_path), [])
    assert list(plan.as_json()["undeclared"]) == undeclared


def test_the_most_specific_place_counts(find):
    assert find({"main.py": "print(1)\n"}) is None
    project = ("pyproject.toml", ("project>=1",), ">=3.12")
    assert told(find({"pyproject.toml": PROJECT})) == project
    assert told(find({"requirements.txt": "# nothing yet\n"})) == project
    assert told(find({"requirements.txt": "listed\n"})) == ("requirements.txt", ("listed",), None)
    assert told(find({"src/requirements.txt": "inner\n"}, start="src")) == ("requirements.txt", ("inner",), None)
    assert told(find({"src/a/b/x": ""}, start="src/a/b")) == ("requirements.txt", ("inner",), None), "of a folder above"
    assert told(find({"main.py": SCRIPT})) == ("main.py", ("inline",), ">=3.11")


@pytest.mark.parametrize(
    "command",
    [
        "python -u -W ignore main.py --x 1",
        "python -m main",
        "./main.py",
        "env A=1 nice -n 5 python3.11 main.py",
        "set -e; exec python main.py 2>&1 | tee log",
        "bash run.sh",
        "torchrun --nproc-per-node 2 main.py",
        "accelerate launch main.py",
        "uv run python main.py",
        "python -m torch.distributed.run main.py",
    ],
)
def test_the_block_of_a_script_counts_however_it_is_started(find, command):
    shebang = {"main.py": f"#!/usr/bin/env python3\n{SCRIPT}", "run.sh": "# it's it\npython main.py\n"}
    assert told(find({**shebang, "requirements.txt": "listed\n"}, command)) == ("main.py", ("inline",), ">=3.11")


def test_blocks_of_several_scripts_are_installed_together(find):
    files = {"src/a.py": SCRIPT, "b.py": SCRIPT.replace("inline", "other"), "c.py": "", "requirements.txt": "listed\n"}
    found = find(files, "cd src && python a.py && cd .. && python b.py")
    assert (found.lines, found.words) == (("inline", "other"), ("--requirements", "a.py", "--requirements", "../b.py"))
    found = find({}, "python c.py && python b.py c.py")
    assert (found.source, found.lines) == ("requirements.txt and b.py", ("listed", "other"))
    assert told(find({}, "uv run b.py")) == ("requirements.txt", ("listed",), None), "uv installs it itself"
    assert find({}, "python c.py b.py").source == "requirements.txt", "an argument"


def test_uv_run_has_its_groups_and_extras(find):
    groups = '[dependency-groups]\ndev = ["pytest"]\nmore = ["x"]\n[project.optional-dependencies]\ngpu = ["y"]\n'
    files = {"pyproject.toml": PROJECT + groups, "uv.lock": ""}
    assert " ".join(find(files).sync) == "sync --frozen --no-default-groups"
    command = "uv run --with z --extra gpu --group=more python main.py --group other"
    assert " ".join(find({}, command).sync) == "sync --frozen --extra gpu --group more"
    assert find({"uv.lock": "x"}, "uv run pytest --extra z").sync == ("sync", "--frozen")
    unlocked = {"a/pyproject.toml": PROJECT + groups, "a/main.py": ""}
    assert find(unlocked, "uv run main.py", "a").words[-2:] == ("--group", "dev")
    assert "dev" not in find({}, "python main.py", "a").words


def test_requirements_are_those_of_the_folder_that_the_first_program_starts_in(find):
    files = {"src/requirements.txt": "inner\n", "src/main.py": "", "requirements.txt": "outer\n"}
    assert find(files, "mkdir -p out; cd src && python main.py").lines == ("inner",)
    assert find({}, "cd src && uv run train").lines == ("inner",)
    assert find({}, "python src/main.py; cd src").lines == ("outer",)


@pytest.mark.parametrize(
    ("files", "source", "words"),
    [
        ({"setup.py": ""}, "setup.py", "--editable ."),
        ({"pyproject.toml": PROJECT + "[build-system]\nrequires = []\n"}, "pyproject.toml", "--editable ."),
        ({"pyproject.toml": PROJECT, "uv.lock": ""}, "uv.lock", "sync --frozen"),
        (
            {"setup.cfg": "[metadata]\n", "pyproject.toml": "[build-system]\nrequires = []\n"},
            "pyproject.toml",
            "--editable .",
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


POETRY = """
[tool.poetry]
name = "p"
[tool.poetry.dependencies]
python = "^3.11"
a = "^1.2.3"
b = "~1.2"
c = {version = "*", optional = true}
d = {git = "https://example.org/d.git", tag = "v1"}
e = [{version = "^0.2", python = "<3.9"}, {version = ">=2", markers = "sys_platform == 'linux'"}]
[tool.poetry.extras]
x = ["c"]
[tool.poetry.group.test.dependencies]
t = "==1.0"
"""
PIPFILE = '[packages]\na = "*"\nb = "==1"\nc = {version = ">2", extras = ["x"]}\n[dev-packages]\nd = "*"\n'
CONDA = """
name: x
channels:
  - defaults
dependencies:
  - python=3.12  # the newest
  - numpy=1.26
  - pip
  - pip:
      - "torch==2.1"
      - tqdm
  - cudatoolkit
prefix: /opt/conda
"""


def test_tables_of_poetry_are_read_where_nothing_is_built(find):
    lines = ("a>=1.2.3,<2", "b>=1.2,<1.3", "d @ git+https://example.org/d.git@v1")
    lines += ("e>=0.2,<0.3 ; (python_full_version < '3.9')", "e>=2 ; (sys_platform == 'linux')")
    found = find({"pyproject.toml": POETRY})
    assert (found.lines, found.given, found.python, found.local) == (lines, lines, ">=3.11,<4", False)
    found = find({}, extras=("x",), groups=("test",))
    assert set(found.lines) == {*lines, "c", "t==1.0"}
    build = '[build-system]\nrequires = ["poetry-core"]\n'
    assert "--editable" in find({"pyproject.toml": POETRY + build, "src/p/__init__.py": ""}).words
    without = POETRY.replace('name = "p"', "package-mode = false")
    assert find({"pyproject.toml": without + build}).lines == lines


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ("^0.0.3", "a>=0.0.3,<0.0.4"),
        ("^0", "a>=0,<1"),
        ("~1", "a>=1,<2"),
        ("~=1.2", "a~=1.2"),
        ("1.2.*", "a==1.2.*"),
        ("2.0", "a==2.0"),
        (">= 1, < 3", "a>=1,<3"),
        ("^1 || ^2", "a>=2,<3"),
        ("*", "a"),
    ],
)
def test_constraints_of_poetry_mean_what_they_mean_there(find, wanted, line):
    assert find({"pyproject.toml": f'[tool.poetry.dependencies]\na = "{wanted}"\n'}).lines == (line,)


def test_tables_of_pipenv(find):
    assert find({"Pipfile": PIPFILE}).lines == ("a", "b==1", "c[x]>2")
    assert find({}, groups=("dev",)).lines == ("a", "b==1", "c[x]>2", "d")
    assert find({"Pipfile": PIPFILE + '[requires]\npython_version = "3.12"\n'}).python == "==3.12.*"


def test_the_pip_part_of_an_environment_of_conda(find):
    found = find({"environment.yml": CONDA})
    assert (found.lines, found.python) == (("torch==2.1", "tqdm"), "==3.12.*")
    assert found.left_out == ("numpy=1.26", "cudatoolkit"), "which is said"


def test_extras_and_groups_choose_more_of_the_project(find):
    extra = '[project.optional-dependencies]\nx = ["six"]\n'
    chosen = {"extras": ("x",), "groups": ("g",)}
    files = {"pyproject.toml": PROJECT + extra, "requirements.txt": "six\n", "main.py": SCRIPT}
    assert "--extra x --group g" in " ".join(find(files, **chosen).words)
    built = find({"pyproject.toml": PROJECT + extra + "[build-system]\nrequires = []\n"}, **chosen)
    assert " ".join(built.words) == "--editable .[x] --group g"
    locked = find({"uv.lock": ""}, **chosen)
    assert " ".join(locked.sync).endswith("--extra x --group g")


def test_packages_are_added_to_what_is_declared(find):
    found = find({}, packages=("six", "tqdm>=1,<2"))
    assert (found.source, found.given, found.local) == ("--with", ("six", "tqdm>=1,<2"), False)
    found = find({"requirements.txt": "numpy\n"}, packages=("six",))
    assert found.commands == (("pip", *found.commands[0][1:-2], "--requirements", "-"),)
    assert (found.lines, found.given) == (("numpy", "six"), ("six",))
    assert found.digest != find({}, packages=("tqdm",)).digest != find({}).digest
    assert find({}, packages=("-e ./lib",)).local
    assert find({}, packages=("-r more.txt",)).local, "its text is not part of the digest"
    assert find({"environment.yml": "dependencies: [numpy]\n", "requirements.txt": ""}, packages=("six",)).given == (
        "six",
    )


def test_what_is_imported_is_added_on_request(find):
    main = {"main.py": "import cv2, yaml, six, unheard_of\nimport tensorflow\n"}
    found = find({**main, "requirements.txt": "six\nopencv-python==4.1\n"}, packages=("auto", "tqdm"))
    assert found.given == ("tqdm", "PyYAML", "tensorflow"), "neither what is declared nor what is not known"
    found = find({"requirements.txt": ""}, packages=("tqdm",), offered=("tensorflow-cpu", "pandas"))
    assert found.given == ("tqdm", "tensorflow-cpu"), "of the default packages those that are imported"
    assert find({}, offered=("tensorflow-cpu",)) is None


def test_a_file_that_is_named_counts_alone(find):
    files = {"requirements.txt": "six\n", "more/gpu.txt": "-r base.txt\ntqdm\n", "more/base.txt": "numpy\n"}
    found = find({**files, "more/environment.yaml": CONDA, "more/Pipfile": PIPFILE}, file="more/gpu.txt")
    assert (found.source, found.folder.name, found.lines) == ("gpu.txt", "more", ("tqdm", "numpy"))
    assert find({}, file="more/environment.yaml").lines == ("torch==2.1", "tqdm")
    assert find({}, file="more/Pipfile").lines == ("a", "b==1", "c[x]>2")
    assert find({"a.py": SCRIPT}, file="a.py").lines == ("inline",)


@pytest.mark.parametrize(
    ("files", "requested", "says"),
    [
        ({}, {"file": "absent.txt"}, "absent.txt: there is no such file"),
        ({}, {"file": "../absent.txt"}, "there is no such file"),
        ({}, {"extras": ("x",)}, "there is no pyproject.toml"),
        ({"r.txt": "six"}, {"file": "r.txt", "groups": ("dev",)}, "it has no extras or groups"),
        (
            {"pyproject.toml": PROJECT + "[build-system]\nrequires = []\n"},
            {"extras": ("y",)},
            "no extra 'y'; extras: none",
        ),
        ({"pyproject.toml": POETRY}, {"groups": ("y",)}, "no group 'y'; groups: test"),
        ({"Pipfile": PIPFILE}, {"groups": ("y",)}, "Pipfile: it has no group 'y'"),
        ({"environment.yml": "dependencies:\n- numpy\n"}, {}, "use --with: numpy"),
    ],
)
def test_an_option_that_cannot_be_followed_is_refused(find, files, requested, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        find(files, **requested)


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
    with pytest.raises(UsageError, match=re.escape(says)):
        find(files)


def test_a_conda_file_beside_requirements_is_left_alone(find):
    found = find({"environment.yml": "dependencies: [numpy]\n", "requirements.txt": "six\n"})
    assert found.source == "requirements.txt"
