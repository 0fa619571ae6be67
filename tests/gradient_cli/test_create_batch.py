"""`jobs create-batch`: many jobs from the lines of a file."""

import json
import signal

import pytest
from support.deployment import wait_until

BATCH = ("POST", "/jobs:batch")


def created(number):
    return {"status": 201, "job": {"id": f"j{number:013}"}, "error": None}


def refused(status, message, **more):
    return {
        "status": status,
        "job": None,
        "error": {"name": "SpecInvalid", "status": status, "message": message} | more,
    }


def create(cli, text, *args, **settings):
    (cli.folder / "jobs.jsonl").write_text(text)
    return cli("jobs", "create-batch", "jobs.jsonl", "-m", "CPU", "--workspace", "none", *args, **settings)


def sent(server):
    return [request.json["jobs"] for request in server.requests_to(*BATCH)]


def test_each_line_is_a_job_over_the_project_file_and_under_the_flags(cli, server):
    (cli.folder / ".gradient.toml").write_text(
        'command = "filed"\npriority = 7\nprojectId = "p1"\n[envVars]\nA = "1"\n'
    )
    server.on(*BATCH, {"results": [created(1), created(2), created(3)]})
    lines = [
        {"command": "python train.py", "machineType": "V100", "timeLimit": "2h", "tags": ["a"], "envVars": {"B": 2}},
        {"project": "mine", "idempotencyKey": "k2"},
        {"workspaceSha256": "0" * 64},
    ]
    done = create(cli, "\n\n".join(map(json.dumps, lines)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["j0000000000001", "j0000000000002", "j0000000000003"]
    assert "3 jobs created, 0 refused" in done.stderr
    [jobs] = sent(server)
    keys = [job.pop("idempotencyKey") for job in jobs]
    assert keys[1] == "k2"
    assert len(set(keys)) == 3
    common = {"machineType": "CPU", "priority": 7, "workspace": "none"}
    assert jobs == [
        common
        | {"command": "python train.py", "projectId": "p1", "timeLimit": 7200, "tags": ["a"]}
        | {"envVars": {"A": "1", "B": "2"}},
        common | {"command": "filed", "project": "mine", "envVars": {"A": "1"}},
        {"machineType": "CPU", "priority": 7, "command": "filed", "projectId": "p1", "envVars": {"A": "1"}}
        | {"workspaceSha256": "0" * 64},
    ]


def test_the_default_machine_type_leaves_the_lowest_priority(cli, server):
    server.on("GET", "/machine-types", {"machineTypes": [], "default": "CPU"})
    server.on(*BATCH, {"results": [created(1), created(2)]})
    lines = '{"command": "a", "priority": 0}\n{"command": "b", "machineType": "V100"}\n'
    done = cli("jobs", "create-batch", "-", "--workspace", "none", given=lines)
    assert done.returncode == 0, done.stderr
    [[first, second]] = sent(server)
    assert (first["machineType"], first["priority"], second["machineType"]) == ("CPU", 0, "V100")


def test_refused_jobs_are_named_by_their_lines_and_stop_no_other(cli, server):
    results = [created(1), refused(400, "No machine type X.", field="machineType"), created(3)]
    server.on(*BATCH, {"results": results})
    text = '{"command": "a"}\n\n{"command": "b"}\n{"command": "c"}\n'
    done = create(cli, text)
    assert done.returncode == 4
    assert done.stdout.split() == ["j0000000000001", "j0000000000003"]
    assert "line 3: machineType: No machine type X." in done.stderr
    assert "2 jobs created, 1 refused" in done.stderr
    shown = [json.loads(line) for line in create(cli, text, "--json").stdout.splitlines()]
    assert [(each["line"], "job" in each) for each in shown] == [(1, True), (3, False), (4, True)]
    assert shown[1]["error"]["status"] == 400


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "not JSON"),
        ("5", "not a JSON object"),
        ('{"comand": "x"}', "unknown option 'comand' (Did you mean command?)"),
        ('{"command": 5}', "command: must be text, not 5"),
        ("{}", "command: required"),
        ('{"command": "x", "timeLimit": "soon"}', "timeLimit: 'soon' is not a duration"),
        ('{"command": "x", "envVars": 5}', "envVars: must be a table"),
        ('{"command": "x", "idempotencyKey": 5}', "idempotencyKey: must be text, not 5"),
        ('{"command": "x", "registryUsername": "ann"}', "registryUsername: the jobs of a batch"),
    ],
)
def test_a_line_that_cannot_be_understood_is_named_and_nothing_is_submitted(cli, server, line, told):
    done = create(cli, f'{{"command": "true"}}\n{line}\n')
    assert done.returncode == 2
    assert f"line 2: {told}" in done.stderr
    assert "nothing was submitted" in done.stderr
    assert server.requests == []


def test_a_file_that_is_missing_or_empty_is_refused(cli, server):
    assert create(cli, "\n").returncode == 2
    done = cli("jobs", "create-batch", "nosuch.jsonl")
    assert (done.returncode, "cannot read nosuch.jsonl" in done.stderr) == (2, True)
    assert server.requests == []


def test_a_lost_answer_is_asked_for_again_with_the_same_keys(cli, server, protocol):
    server.on(*BATCH, protocol.Reply(breaks="unanswered"), {"results": [created(1), created(2)]})
    done = create(cli, '{"command": "a"}\n{"command": "b"}\n')
    assert done.returncode == 0, done.stderr
    first, second = sent(server)
    assert first == second


def test_jobs_over_a_limit_are_sent_again_before_the_others(cli, server):
    limited = refused(429, "Limit reached: 1 submissions a minute.", retryAfter=1)
    first = {"results": [created(n) for n in range(999)] + [limited]}
    server.on(*BATCH, first, {"results": [created(999), created(1000)]})
    done = create(cli, "".join(json.dumps({"command": f"c{n}"}) + "\n" for n in range(1001)))
    assert done.returncode == 0, done.stderr
    assert "Limit reached" in done.stderr
    assert [[job["command"] for job in jobs[-2:]] for jobs in sent(server)] == [["c998", "c999"], ["c999", "c1000"]]
    assert sent(server)[0][-1] == sent(server)[1][0], "with the same key"


def test_an_unreachable_server_says_how_many_have_no_answer(cli, server, protocol):
    server.on(*BATCH, {"results": [created(n) for n in range(1000)]}, protocol.Reply({}, 500))
    done = create(cli, '{"command": "true"}\n' * 1200)
    assert done.returncode == 3
    assert "1,000 jobs created, 0 refused, 200 not answered" in done.stderr
    assert len(done.stdout.split()) == 1000


def test_ctrl_c_says_what_was_created(cli, server):
    limited = refused(429, "Limit reached: 1 submissions a minute.", retryAfter=60)
    server.on(*BATCH, {"results": [created(1), limited]})
    (cli.folder / "jobs.jsonl").write_text('{"command": "a"}\n{"command": "b"}\n')
    running = cli.start("jobs", "create-batch", "jobs.jsonl", "-m", "CPU", "--workspace", "none")
    assert running.stdout.readline() == "j0000000000001\n"
    wait_until(lambda: "Waiting" in running.stderr.readline(), "the wait for the limit")
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "1 job created, 0 refused, 1 not answered" in told


def test_a_folder_is_uploaded_once_with_the_first_job_that_it_fits(cli, server, protocol):
    (cli.folder / "main.py").write_text("print(1)\n")
    no = protocol.error(400, "No.", field="name")
    plan = {"job": {}, "maxWorkspaceFiles": 10}
    server.on("POST", "/jobs", no, plan, {**protocol.job(), "workspaceSha256": "a" * 64})
    server.on(*BATCH, {"results": [created(3), created(4)]})
    (cli.folder / "jobs.jsonl").write_text(
        "".join(json.dumps({"command": f"c{n}", "idempotencyKey": f"k{n}"}) + "\n" for n in range(4))
    )
    done = cli("jobs", "create-batch", "jobs.jsonl", "-m", "CPU")
    assert done.returncode == 4, done.stderr
    assert "line 1: name: No." in done.stderr
    assert len(done.stdout.split()) == 3
    upload = server.requests_to("POST", "/jobs")[-1]
    assert upload.headers["Idempotency-Key"] == "k1"
    assert [upload.json["workspaceSha256"]] == list(server.workspaces)
    [jobs] = sent(server)
    assert jobs == [
        {"machineType": "CPU", "command": f"c{n}", "idempotencyKey": f"k{n}", "workspaceSha256": "a" * 64}
        for n in (2, 3)
    ]
