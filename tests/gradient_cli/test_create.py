import json
import signal
import threading

import pytest

BASICS = ("--machineType", "CPU", "--command", "python main.py")


def spec_of(server):
    return server.requests_to("POST", "/jobs")[-1].json


@pytest.fixture
def main_py(cli):
    (cli.folder / "main.py").write_text("print('hello')\n")


def uploads(server):
    """Return the requests that stored a folder."""
    return [request for request in server.requests if request.method == "PUT"]


@pytest.mark.parametrize("mode", ["--dry-run", "--detach"])
def test_too_many_files_are_refused_before_the_upload(cli, server, protocol, mode):
    for number in range(3):
        (cli.folder / f"file{number}").touch()
    server.on("POST", "/jobs", {"job": {}, "maxWorkspaceFiles": 2}, protocol.job())
    refused = cli("jobs", "create", *BASICS, mode)
    assert refused.returncode == 2
    assert "has 3 files and folders; the server accepts at most 2" in refused.stderr
    assert [request.query for request in server.requests_to("POST", "/jobs")] == [{"dryRun": "true"}]


def test_what_is_left_out_is_named_and_can_be_included(cli, server):
    for name in ("main.py", ".env", "key.pem"):
        (cli.folder / name).write_text("x")
    server.on("POST", "/jobs", {"job": {}})
    shown = cli("jobs", "create", *BASICS, "--dry-run", "--json", "--include", ".env")
    assert "workspace: left out key.pem by default; --include PATTERN uploads such files" in shown.stderr
    upload = json.loads(shown.stdout)["upload"]
    assert upload["leftOut"] == ["key.pem"]
    assert {entry["path"] for entry in upload["largest"]} == {"main.py", ".env"}
    (cli.folder / ".gradient.toml").write_text('include = ["*.pem", ".env"]\n')
    shown = cli("jobs", "create", *BASICS, "--dry-run", "--json")
    assert json.loads(shown.stdout)["upload"]["leftOut"] == []
    assert "left out" not in shown.stderr


def test_a_name_that_would_be_another_path_is_left_out_and_named(cli, server):
    for name in ("main.py", "data\\1.csv"):
        (cli.folder / name).write_text("x")
    server.on("POST", "/jobs", {"job": {}})
    shown = cli("jobs", "create", *BASICS, "--dry-run", "--json")
    assert "workspace: left out data\\1.csv: its name has a backslash" in shown.stderr
    assert {entry["path"] for entry in json.loads(shown.stdout)["upload"]["largest"]} == {"main.py"}


def test_include_needs_a_folder(cli, server):
    refused = cli("jobs", "create", *BASICS, "--workspace", "none", "--include", ".env")
    assert refused.returncode == 2
    assert "include: only possible with a folder" in refused.stderr
    assert server.requests == []


@pytest.mark.usefixtures("main_py")
def test_an_include_pattern_without_a_file_is_refused_before_anything_is_sent(cli, server):
    refused = cli("jobs", "create", *BASICS, "--include", "conf/*.pem")
    assert refused.returncode == 2
    assert "include: 'conf/*.pem' matches no file in" in refused.stderr
    assert server.requests == []


@pytest.mark.usefixtures("main_py")
def test_a_workspace_removed_in_between_is_uploaded_after_all(cli, server, protocol):
    server.on("POST", "/jobs", protocol.job(job={}))
    cli("jobs", "create", *BASICS, "--detach")
    refusal = protocol.error(404, "no such workspace", "workspaceSha256")
    server.on("POST", "/jobs", refusal, protocol.job(job={}))
    made = cli("jobs", "create", *BASICS, "--detach")
    assert made.returncode == 0
    assert len(uploads(server)) == 2
    server.workspaces.clear()
    assert "workspace uploaded" in cli("jobs", "create", *BASICS, "--detach").stderr


def test_every_field_goes_out_as_the_server_names_it(cli, server, protocol):
    server.on("POST", "/jobs", protocol.job())
    made = cli(
        "jobs", "create", *BASICS, "--workspace", "https://host/repo.git#main", "--container", "tf:2",
        "--projectId", "pr1", "--envVars", "A=1", "--envVars", '{"B": 2, "C": true}', "--env-vars", "TOKEN",
        "--timeLimit", "1h30m", "--stop-grace", "90", "--maxAttempts", "3", "--priority", "70", "--tag", "x",
        "--tag", "y", "--cpus", "2", "--memoryMb", "512", "--sharedMemMb", "256", "--workingDirectory", "src",
        "--user", "1000:100", "--python", "3.12", "--stopSignal", "INT", "--warn-before", "300", "--json",
        env={"TOKEN": "t=s"},
    )  # fmt: skip
    shown = [f"gradient-cli jobs {step}" for step in (f"logs {protocol.id} --follow", f"show {protocol.id}")]
    assert json.loads(made.stdout) == {**protocol.job(), "next": [*shown, f"gradient-cli jobs stop {protocol.id}"]}
    assert made.stderr == ""
    assert spec_of(server) == {
        "machineType": "CPU",
        "command": "python main.py",
        "workspace": "https://host/repo.git#main",
        "container": "tf:2",
        "projectId": "pr1",
        "envVars": {"A": "1", "B": "2", "C": "true", "TOKEN": "t=s"},
        "timeLimit": 5400,
        "stopGrace": 90,
        "stopSignal": "INT",
        "warnBefore": "300",
        "maxAttempts": 3,
        "priority": 70,
        "tags": ["x", "y"],
        "cpus": 2.0,
        "memoryMb": 512,
        "sharedMemMb": 256,
        "workingDir": "src",
        "user": "1000:100",
        "python": "3.12",
    }


def test_the_project_file_holds_it_all(cli, server, protocol):
    (cli.folder / ".gradient.toml").write_text(
        'machineType = "A100"\ncommand = "python train.py"\nproject = "mnist"\ntimeLimit = "2h"\n'
        'workspace = "src"\ntags = ["nightly"]\nuser = 1000\nworkingDirectory = "deep"\n[envVars]\nEPOCHS = 2\n'
    )
    (cli.folder / "src" / "deep").mkdir(parents=True)
    (cli.folder / "src" / "train.py").touch()
    server.on("POST", "/jobs", {"job": {}}, protocol.job())
    made = cli("jobs", "create", "--detach", cwd=cli.folder / "src" / "deep")
    assert made.returncode == 0
    [(digest, manifest)] = server.workspaces.items()
    assert spec_of(server) == {
        "machineType": "A100",
        "command": "python train.py",
        "project": "mnist",
        "timeLimit": 7200,
        "tags": ["nightly"],
        "user": "1000",
        "workingDir": "deep",
        "envVars": {"EPOCHS": "2"},
        "workspaceSha256": digest,
    }
    assert ([path for path, *_ in manifest["files"]], [path for path, _ in manifest["folders"]]) == (
        ["train.py"],
        ["deep"],
    )


def test_flags_win_over_the_project_file(cli, server, protocol):
    (cli.folder / ".gradient.toml").write_text(
        'machineType = "A100"\ncommand = "a"\nprojectId = "pr9"\nenvVars = ["A=1", "B=1"]\nworkspace = "none"\n'
    )
    server.on("POST", "/jobs", protocol.job())
    cli("jobs", "create", "--machineType", "CPU", "--project", "mine", "--envVars", "B=2", "--detach")
    assert spec_of(server) == {
        "machineType": "CPU",
        "command": "a",
        "project": "mine",
        "envVars": {"A": "1", "B": "2"},
        "workspace": "none",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('machinetype = "CPU"', "Did you mean machineType?"),
        ('apiKey = "k"', "never read from a project file"),
        ("command = 3", "command: must be text"),
        ("command = python", "Text values need quotes"),
        ('timeLimit = "soon"', "timeLimit: 'soon' is not a duration"),
        ("tags = 'one'", "tags: must be a list"),
        ("envVars = 'A=1'", ".gradient.toml: envVars: must be a table"),
        ("maxDollars = 3", "Did you mean maxCost?"),
        ("maxAttempts = 'two'", ".gradient.toml: maxAttempts: 'two' is not a whole number"),
        ("memoryMb = '16 potatoes'", "memoryMb: '16 potatoes' is not a memory size"),
        ("sharedMemMb = 1.5", "Write MiB, such as 16384, or 16GB."),
        ("[envVars]\nA = [1]", "envVars.A: the value must be text"),
        ("project = 'a'\nprojectId = 'b'", "given as both project and projectId"),
    ],
)
def test_a_wrong_project_file_is_explained(cli, server, text, told):
    (cli.folder / ".gradient.toml").write_text(text)
    refused = cli("jobs", "create", "--machineType", "CPU", *([] if "command" in text else ["--command", "x"]))
    assert refused.returncode == 2
    assert told in refused.stderr
    assert server.requests == []


def test_a_job_without_a_machine_type_gets_the_servers_default_and_says_so(cli, server, protocol):
    server.on("GET", "/machine-types", {"machineTypes": [], "default": "T4"})
    server.on("POST", "/jobs", protocol.job())
    words = ("jobs", "create", "--command", "x", "--workspace", "none", "--detach")
    shown = cli(*words)
    assert server.requests[-1].json["machineType"] == "T4"
    assert "machine type: T4, the server's default; --machineType NAME selects another\n" in shown.stderr
    cli(*words, "--machineType", "CPU")
    assert (server.requests[-1].json["machineType"], len(server.requests)) == ("CPU", 3)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--machineType", "CPU"], "command: required"),
        ([*BASICS, "--envVars", "NOT_SET_HERE"], "export NOT_SET_HERE"),
        ([*BASICS, "--envVars", "1A=x"], "'1A' is not a valid variable name"),
        ([*BASICS, "--envVars", "{1}"], "envVars: not JSON"),
        ([*BASICS, "--maxAttempts", "two"], "maxAttempts: 'two' is not a whole number"),
        ([*BASICS, "--timeLimit", "5x"], "Write 90m, 1h30m, 2d, or seconds"),
        ([*BASICS, "--workspace", "nowhere"], "workspace: nowhere does not exist"),
    ],
)
def test_wrong_options_are_explained_before_anything_is_sent(cli, server, args, told):
    refused = cli("jobs", "create", *args)
    assert refused.returncode == 2
    assert told in refused.stderr
    assert server.requests == []


def test_the_whole_home_is_never_packed_unasked(cli, server):
    refused = cli("jobs", "create", *BASICS, cwd=cli.home)
    assert refused.returncode == 2
    assert "would be uploaded" in refused.stderr
    assert server.requests == []


def test_a_lost_answer_does_not_make_two_jobs(cli, server, protocol):
    lost, busy = protocol.Reply(breaks="unanswered"), protocol.error(503, "busy")
    server.on("POST", "/jobs", lost, busy, protocol.job())
    made = cli("jobs", "create", *BASICS, "--workspace", "none", "--detach")
    assert made.returncode == 0
    keys = [request.headers["Idempotency-Key"] for request in server.requests_to("POST", "/jobs")]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert made.stderr.count("trying again") == 2


def test_a_submission_is_not_repeated_after_a_failure_of_the_server(cli, server, protocol):
    server.on("POST", "/jobs", protocol.error(500, "internal error"))
    assert cli("jobs", "create", *BASICS, "--workspace", "none", "--detach").returncode == 3
    assert len(server.requests) == 1


@pytest.mark.usefixtures("main_py")
def test_a_lost_upload_is_repeated_whole(cli, server, protocol):
    (cli.folder / "code.zip").write_bytes(b"PK\x03\x04rest")
    server.on("POST", "/jobs", {"job": {}}, protocol.Reply(breaks="unanswered"), protocol.job())
    assert cli("jobs", "create", *BASICS, "--workspace", "code.zip", "--detach").returncode == 0
    _, first, second = server.requests_to("POST", "/jobs")
    assert first.body == second.body
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]


@pytest.mark.usefixtures("main_py")
def test_dry_run_shows_the_job_and_makes_nothing(cli, server):
    plan = {
        "job": {"command": "python main.py", "envVars": {"TOKEN": "[hidden]"}, "maxAttempts": 1, "container": None},
        "machineType": {"name": "A100"},
        "pricePerHour": 3.06,
        "notes": ["no free A100 right now"],
        "wouldStart": "would start in about 4 minutes",
    }
    server.on("POST", "/jobs", plan)
    shown = cli("jobs", "create", *BASICS, "--dry-run")
    assert shown.returncode == 0
    assert "start        would start in about 4 minutes" in shown.stdout
    assert "A100 · $3.06/hour" in shown.stdout
    assert "TOKEN=[hidden]" in shown.stdout
    assert "1 file, 15 B" in shown.stdout
    assert "is large" not in cli("jobs", "create", *BASICS, "--dry-run", "--largeWorkspace", "0").stderr
    assert "main.py" in shown.stdout
    assert "note: no free A100 right now" in shown.stderr
    assert all(request.query == {"dryRun": "true"} for request in server.requests_to("POST", "/jobs"))
    machine = json.loads(cli("jobs", "create", *BASICS, "--dry-run", "--json").stdout)
    assert machine["upload"]["largest"] == [{"path": "main.py", "size": 15}]
    assert machine["upload"]["alreadyStored"] is False
    assert machine["pricePerHour"] == 3.06


def test_a_large_workspace_names_its_largest_files(cli, server, protocol):
    for number in range(12):
        (cli.folder / f"data{number:02}").write_bytes(b"x" * 1000 * (number + 1))
    server.on("POST", "/jobs", {"job": {}}, protocol.job())
    made = cli("jobs", "create", *BASICS, "--detach", "--largeWorkspace", "0.05")
    assert "is large (78.0 kB); its largest files:\n    12.0 kB  data11\n" in made.stderr
    assert "data02" in made.stderr
    assert "data01" not in made.stderr
    assert ".gradientignore" in made.stderr


def test_nothing_is_left_in_the_folder(cli, server, protocol):
    server.on("POST", "/jobs", {"job": {}}, protocol.job())
    cli("jobs", "create", *BASICS, "--detach")
    assert list(cli.folder.iterdir()) == []


def test_a_home_that_cannot_be_written_is_no_reason_to_fail(cli, server, protocol):
    (cli.home / ".config").write_text("a file where a folder should be")
    server.on("POST", "/jobs", protocol.job())
    made = cli("jobs", "create", *BASICS, "--workspace", "none", "--detach")
    assert (made.returncode, made.stdout) == (0, f"{protocol.id}\n")
    assert "cannot remember this job" in made.stderr


def test_ctrl_c_before_the_id_is_known_says_where_to_look(cli, server):
    hold = threading.Event()
    asked = threading.Event()

    def answer(request):
        asked.set()
        hold.wait(60)
        return answered(request)

    answered, server.answer = server.answer, answer
    with cli.start("jobs", "create", *BASICS, "--workspace", "none") as process:
        assert asked.wait(60)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    hold.set()
    assert process.returncode == 130
    assert "gradient-cli jobs list" in err
    assert "Traceback" not in err
