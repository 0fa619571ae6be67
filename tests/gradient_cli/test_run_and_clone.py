"""`jobs run`, `--env-file`, and clones with changes."""

import json
import shlex

import pytest

from core.jobs.spec.params import command_params
from gradient_cli.errors import UsageError
from gradient_cli.workspace import variables


@pytest.fixture
def script(cli):
    (cli.folder / "src").mkdir()
    for name in ("train.py", "src/my run.sh", "notes.txt"):
        (cli.folder / name).write_text("print(1)\n")
    return cli


def planned(cli, server, *args, **settings):
    """Return the spec that a dry run sends."""
    server.on("POST", "/jobs", {"job": {}, "machineType": {}, "notes": []})
    shown = cli("jobs", "run", "-m", "CPU", "--dry-run", "--json", *args, **settings)
    assert shown.returncode == 0, shown.stderr
    return server.requests_to("POST", "/jobs")[-1].json


def test_a_script_runs_with_all_that_follows_it(script, server):
    spec = planned(script, server, "-n", "first", "train.py", "--lr", "1e-3", "-n", "x y", "--json", "--help")
    assert spec["command"] == "python train.py --lr 1e-3 -n 'x y' --json --help"
    assert spec["name"] == "first"
    assert planned(script, server, "src/my run.sh")["command"] == "bash 'src/my run.sh'"


def test_several_processes_are_started_by_torchrun(script, server):
    torchrun = "python -m torch.distributed.run --standalone --nproc-per-node"
    assert (
        planned(script, server, "--nproc", "2", "train.py", "--lr", "1")["command"] == f"{torchrun}=2 train.py --lr 1"
    )
    assert planned(script, server, "--nproc", "gpu", "train.py")["command"] == f"{torchrun}=gpu train.py"


def test_a_notebook_is_run_and_kept(script, server):
    (script.folder / "src" / "my nb.ipynb").write_text("{}")
    command = planned(script, server, "src/my nb.ipynb", "-p", "lr", "1e-3")["command"]
    program = shlex.split(command.replace("\\\n", "")[command.index("exec") :])
    assert program[:4] == ["exec", "python3", "-m", "papermill"]
    assert "folder=src\n" in command
    assert command_params(command) == {}, "none of them is its user's"
    assert program[-6:] == ["$folder", "src/my nb.ipynb", "$GRADIENT_ARTIFACTS_DIR/my nb.ipynb", "-p", "lr", "1e-3"]


def test_a_script_is_named_from_the_current_folder(script, server, protocol):
    (script.folder / ".gradient.toml").write_text('machineType = "V100"\n')
    server.on("POST", "/jobs", {"job": {}}, protocol.job())
    run = ["jobs", "run", "--json"]
    assert script(*run, "my run.sh", cwd=script.folder / "src").returncode == 0
    spec = server.requests_to("POST", "/jobs")[0].json
    assert (spec["command"], spec["machineType"]) == ("bash 'src/my run.sh'", "V100")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["nosuch.py"], "nosuch.py: no such file"),
        (["notes.txt"], "only .py, .sh and .ipynb files can be run"),
        (["--nproc", "0", "train.py"], "nproc: '0' is not a number of processes"),
        (["--nproc", "2", "src/my run.sh"], "nproc: only .py files"),
        (["--workspace", "src", "train.py"], "not in the workspace src"),
        (["--command", "x", "train.py"], "`jobs run` builds it from FILE"),
        ([], "error: the following arguments are required: FILE\n"),
    ],
)
def test_what_cannot_run_is_refused(script, server, args, told):
    refused = script("jobs", "run", "-m", "CPU", *args)
    assert refused.returncode == 2
    assert told in refused.stderr
    assert server.requests == []


def test_variables_of_files_and_options(script, server):
    (script.folder / "a.env").write_text("A=1\nB=file\n")
    (script.folder / ".gradient.toml").write_text('[envVars]\nB = "toml"\nC = "toml"\n')
    spec = planned(script, server, "--env-file", "a.env", "-e", "A=option", "train.py")
    assert spec["envVars"] == {"A": "option", "B": "file", "C": "toml"}
    refused = script("jobs", "run", "-m", "CPU", "--env-file", "nosuch.env", "train.py")
    assert refused.returncode == 2
    assert "cannot read nosuch.env" in refused.stderr


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=b c", "b c"),
        ("  export A = b # why", "b"),
        ("A=b#c", "b#c"),
        ("A=", ""),
        ("A= # why", ""),
        ("A=''", ""),
        ("A='b # \\n'", "b # \\n"),
        ('A="b\\n\\"c\\" \\\\"  # why', 'b\n"c" \\'),
        ("A=b='c'", "b='c'"),
        ("\ufeffA=b\r\n\r\n# A=c", "b"),
    ],
)
def test_lines_of_an_env_file(tmp_path, text, value):
    file = tmp_path / ".env"
    file.write_bytes(text.encode())
    assert variables.read_file(str(file)) == {"A": value}


@pytest.mark.parametrize("text", ["hunter2", "A='b", 'A="b"c', "1A=b", "=b"])
def test_a_line_that_is_no_assignment_is_named_but_not_shown(tmp_path, text):
    file = tmp_path / ".env"
    file.write_text(f"X=1\n{text}\n")
    with pytest.raises(UsageError, match="line 2: not an assignment") as raised:
        variables.read_file(str(file))
    assert "hunter2" not in str(raised.value)


def test_a_clone_with_changes(script, server, protocol):
    server.on("POST", f"/jobs/{protocol.id}/clone", protocol.Reply(protocol.job(), 201))
    (script.folder / ".gradient.toml").write_text('machineType = "V100"\ncommand = "x"\n')
    clone = ["jobs", "clone", protocol.id, "-d"]
    assert script(*clone, "-m", "CPU", "-e", "LR=0.1", "--timeLimit", "2h", "--", "python", "a b.py").returncode == 0
    changes = {"machineType": "CPU", "envVars": {"LR": "0.1"}, "timeLimit": 7200, "command": "python 'a b.py'"}
    assert server.requests[-1].json == changes, "the project file belongs to new jobs"
    assert script(*clone).returncode == 0
    assert server.requests[-1].json == {}
    assert script(*clone, "--project", "p").returncode == 2


def test_a_lost_answer_does_not_make_two_clones(cli, server, protocol):
    path = f"/jobs/{protocol.id}/clone"
    lost = protocol.Reply(breaks="unanswered")
    server.on("POST", path, lost, protocol.error(503, "busy"), protocol.Reply(protocol.job(), 201))
    done = cli("jobs", "clone", protocol.id, "--pinImage", "-d")
    assert (done.returncode, done.stdout) == (0, f"{protocol.id}\n")
    sent = server.requests_to("POST", path)
    assert [request.query for request in sent] == [{"pinImage": "true"}] * 3
    assert len({request.headers["Idempotency-Key"] for request in sent}) == 1


def test_tags_are_added_and_removed(cli, server, protocol):
    server.on("PATCH", f"/jobs/{protocol.id}", protocol.job(tags=["a", "b"]), protocol.job(tags=[]))
    assert f"tags of {protocol.id}: a, b" in cli("jobs", "tags", "add", protocol.id, "a", "b").stderr
    assert server.requests[-1].json == {"add": ["a", "b"]}
    assert json.loads(cli("jobs", "tags", "remove", protocol.id, "a", "--json").stdout)["tags"] == []
    assert server.requests[-1].json == {"remove": ["a"]}
    assert cli("jobs", "tags", "add", protocol.id).returncode == 2


def test_a_job_is_named_and_gets_a_note_beside_tags(cli, server, protocol):
    changed = protocol.job(tags=["a"], name="best", note="first line\n\x1b[2Jlast")
    server.on("PATCH", f"/jobs/{protocol.id}", changed, protocol.job(note=None))
    done = cli("jobs", "tags", "add", protocol.id, "a", "--name", "best", "--note", "first line\nlast")
    assert server.requests[-1].json == {"add": ["a"], "name": "best", "note": "first line\nlast"}
    assert f"name of {protocol.id}: best" in done.stderr
    assert ("last" in done.stderr, "\x1b[2J" in done.stderr) == (True, False)
    assert "note of" in cli("jobs", "tags", "add", protocol.id, "--note", "").stderr
    assert server.requests[-1].json == {"note": None}


def test_a_project_is_deleted_by_its_name(cli, server, protocol):
    server.on("GET", "/projects", {"projects": [{"id": "pr1", "name": "vision", "jobCount": 2}]})
    busy = protocol.error(400, "1 jobs of this project have not ended.", field="projectId")
    server.on("DELETE", "/projects/pr1", busy, protocol.Reply(status=204))
    unasked = cli("projects", "delete", "vision")
    assert (unasked.returncode, "project vision with 2 jobs" in unasked.stderr) == (2, True)
    assert not [one for one in server.requests if one.method == "DELETE"]
    refused = cli("projects", "delete", "vision", "--yes")
    assert refused.returncode == 4
    assert "have not ended" in refused.stderr
    assert "deleted vision with 2 jobs" in cli("projects", "delete", "vision", "--yes").stderr
    assert cli("projects", "delete").returncode == 2
