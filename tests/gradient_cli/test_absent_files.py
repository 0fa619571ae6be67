"""Files that a job lacks because they were not uploaded: named before its start, and after it failed for them."""

import json

import pytest

IGNORED = "# outputs\n*.bin\ndata/\n"
DATA = ("train.bin", "sub/val.bin", "a b.bin", "data/x.csv", "left.npy", ".env")


@pytest.fixture
def project(cli):
    """A folder whose ignore files exclude everything that DATA names."""
    (cli.folder / ".git").mkdir()
    (cli.folder / ".gitignore").write_text(IGNORED)
    (cli.folder / ".gradientignore").write_text("\n*.npy\n")
    for name in (*DATA, "main.py"):
        (cli.folder / name).parent.mkdir(exist_ok=True)
        (cli.folder / name).write_text("x")
    return cli.folder


@pytest.fixture
def outside(tmp_path):
    """A data set of this computer beside the uploaded folder."""
    path = tmp_path / "elsewhere" / "set.csv"
    path.parent.mkdir()
    path.write_text("x")
    return path


@pytest.fixture
def fail(cli, server, protocol, project):  # noqa: ARG001 - its folder is uploaded
    """Submit a job that prints these lines and fails, and return what the client says at its end."""

    def run(*lines, command="python main.py", code=1, options=()):
        cli.in_process = False
        server.on("POST", "/jobs", {"job": {}}, protocol.Reply(protocol.job(), 201))
        stream = [*(protocol.line(number, text) for number, text in enumerate(lines, 1)), protocol.end()]
        server.on("GET", f"/jobs/{protocol.id}/logs", protocol.Reply(stream=stream))
        server.on("GET", f"/jobs/{protocol.id}", protocol.ended(code, "Failed" if code else "Stopped"))
        server.on("GET", f"/jobs/{protocol.id}/artifacts", {"files": [], "totalFiles": 0, "totalBytes": 0})
        made = cli("jobs", "create", "-m", "CPU", "--command", command, *options)
        assert made.returncode == code
        return made.stderr.partition("workspace uploaded")

    return run


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'train.bin'",
            "train.bin is excluded by .gitignore, line 2",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/paperspace/sub/val.bin'", "--include sub/val.bin"),
        ("cat: val.bin: No such file or directory", "sub/val.bin is excluded by .gitignore, line 2"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a b.bin'", "--include 'a b.bin' uploads it"),
        (
            "tensorflow.errors.NotFoundError: ./data/x.csv; No such file or directory",
            "data/x.csv is excluded by .gitignore, line 3",
        ),
        ("FileNotFoundError: Couldn't find any data file at /paperspace/data/x.csv.", "--include data/x.csv"),
        ("OSError: left.npy not found.", "left.npy is excluded by .gradientignore, line 2"),
        ("Error: .env is missing", ".env is excluded by default; --include .env uploads it"),
    ],
)
def test_a_file_that_was_missing_is_named_with_its_rule(fail, line, told):
    assert told in fail("epoch 1", line, "a line more")[2]


def test_a_path_of_this_computer_outside_of_the_folder_is_explained(fail, outside):
    said = fail(f"FileNotFoundError: [Errno 2] No such file or directory: '{outside}'")[2]
    assert (
        f"{outside} is not in the uploaded folder: `gradient-cli storage put {outside}` makes it available to jobs as "
        "/storage/set" in said
    )


def test_a_file_of_the_python_that_runs_the_job_is_not_explained(fail):
    assert "uploaded folder" not in fail(f"{json.__file__}:377: UserWarning: Failed to initialize NumPy")[2]


def test_an_absolute_path_of_this_computer_in_the_folder_is_explained(fail, project):
    said = fail(f"can't open file '{project}/main.py': [Errno 2] No such file or directory")[2]
    assert f"{project}/main.py has a different absolute path in the job: write main.py" in said


def test_a_command_s_files_are_named_before_the_start(fail, project, outside):
    command = f"cd sub; python main.py --data={outside} --val val.bin && cat {project}/train.bin /tmp /etc/passwd"
    before, _, after = fail(command=command, code=0, options=("--workingDirectory", "sub"))
    assert f"{outside} is not in the uploaded folder" in before
    assert "workspace: sub/val.bin is excluded by .gitignore, line 2; --include sub/val.bin uploads it" in before
    assert "workspace: train.bin is excluded by .gitignore, line 2" in before
    assert "/etc/passwd" not in before
    assert "excluded" not in after


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (1, "reading train.bin"),
        (1, "FileNotFoundError: [Errno 2] No such file or directory: 'nowhere.txt'"),
        (0, "train.bin not found, going on"),
    ],
)
def test_what_is_not_missing_is_not_explained(fail, code, line):
    assert "excluded" not in fail(line, code=code)[2]


def test_shell_scripts_with_the_line_ends_of_windows_are_named(fail, project):
    (project / "run.sh").write_bytes(b"mkdir out\r\n")
    (project / "sub/go").write_bytes(b"#!/usr/bin/env bash\r\ncd out\r\n")
    (project / "right.sh").write_bytes(b"printf 'a\\r'\n")
    (project / "main.py").write_bytes(b"#!/usr/bin/env python3\r\npass\r\n")
    said = fail(
        command="bash ../run.sh && ./go; sh ../right.sh; python ../main.py",
        code=0,
        options=("--workingDirectory", "sub"),
    )[0]
    assert [line.split()[1] for line in said.splitlines() if "Windows line endings" in line] == ["run.sh", "sub/go"]
    assert r"`sed -i 's/\r$//' run.sh` removes them" in said
