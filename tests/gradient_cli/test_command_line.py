"""The command line: suggestions, short options, ids by their beginnings, errors as JSON."""

import json
import os
import pty

import pytest

OTHER = "jabcdefzzzzzzz"


@pytest.mark.parametrize(
    ("args", "meant"),
    [
        (["jobs", "creat"], "`gradient-cli jobs create`"),
        (["jobs", "create-batch", "jobs.jsonl", "-m", "CPU"], "`gradient-cli jobs create`"),
        (["job", "list"], "`gradient-cli jobs`"),
        (["logs", "-f"], "`gradient-cli jobs logs`"),
        (["jobs", "ls"], "`gradient-cli jobs list`"),
        (["--url", "http://x", "jobs", "artifacts", "download"], "`gradient-cli jobs artifacts get`"),
        (["jobs", "list", "--stat", "Running"], "--state?"),
        (["jobs", "create", "--machine", "CPU"], "--machineType?"),
        (["jobs", "create", "--machinetype=CPU"], "--machineType?"),
        (["jobs", "create", "python", "main.py"], "`gradient-cli jobs create -- python main.py`"),
        (["jobs", "clone", "jabc", "ls", "/tmp"], "`gradient-cli jobs clone jabc -- ls /tmp`"),
        (["jobs", "create", "--mem", "16GB"], "--memoryMb?"),
        (["jobs", "create", "--image=x"], "--container?"),
        (["sweeps", "create", "--maxHours", "1"], "--maxGpuHours?"),
        *(
            (["jobs", "create", flag, "V100"], "-m NAME. `gradient-cli machine-types` lists them")
            for flag in ("--gpus", "--gpu", "--partition", "--flavor", "--accelerators", "--gres")
        ),
    ],
)
def test_a_mistyped_word_gets_the_nearest_word(cli, args, meant):
    refused = cli(*args)
    assert refused.returncode == 2
    assert meant in refused.stderr


def test_help_is_a_command_and_version_has_a_short_option(cli):
    assert cli("help", "jobs", "list").stdout == cli("jobs", "list", "--help").stdout
    assert cli("help").stdout == cli("--help").stdout
    assert cli("-V").stdout == cli("--version").stdout


def test_short_options(cli, server, protocol):
    server.on("POST", "/jobs", protocol.job())
    args = "jobs create -m CPU -c python:3.12 -n first -p vision -e A=1 -t x --command x --workspace none -d"
    assert cli(*args.split()).stdout == f"{protocol.id}\n"
    asked = {"machineType": "CPU", "container": "python:3.12", "name": "first", "project": "vision"}
    more = {"envVars": {"A": "1"}, "tags": ["x"], "command": "x", "workspace": "none"}
    assert server.requests[-1].json == {**asked, **more}
    server.on("GET", "/jobs", {"jobs": [protocol.job()], "next": None})
    assert cli("jobs", "list", "-s", "Running", "-p", "p", "-m", "CPU", "-n", "7").returncode == 0
    assert server.requests[-1].query == {"state": "Running", "project": "p", "machineType": "CPU", "limit": "7"}


def test_the_words_after_two_dashes_are_the_command(cli, server, protocol):
    server.on("POST", "/jobs", protocol.job())
    submit = ["jobs", "create", "-m", "CPU", "--workspace", "none", "-d"]
    assert cli(*submit, "--", "python", "my file.py", "--json", "$HOME", "--").returncode == 0
    assert server.requests[-1].json["command"] == "python 'my file.py' --json '$HOME' --"
    refused = cli(*submit, "--command", "x", "--", "y")
    assert refused.returncode == 2
    assert "both as --command and after --" in refused.stderr


def test_the_beginning_of_an_id_is_enough(cli, server, protocol):
    server.on("GET", "/jobs", {"jobs": [protocol.job()], "next": None})
    server.on("GET", f"/jobs/{protocol.id}", protocol.job())
    assert json.loads(cli("jobs", "show", "jabc", "--json").stdout)["id"] == protocol.id
    assert server.requests[0].query["idPrefix"] == "jabc"
    server.requests.clear()
    assert cli("jobs", "show", protocol.id).returncode == 0
    assert [request.path for request in server.requests] == [f"/jobs/{protocol.id}"], "a whole id needs no search"


def test_the_beginning_of_several_ids_lists_them(cli, server, protocol):
    server.on("GET", "/jobs", {"jobs": [protocol.job(), protocol.job(id=OTHER, name="other")], "next": None})
    refused = cli("jobs", "delete", "jabc")
    assert refused.returncode == 2
    assert f"{protocol.id} (mnist), {OTHER} (other)" in refused.stderr
    assert "several jobs have an id that begins with 'j'" in cli("jobs", "show", "j").stderr
    server.on("GET", "/jobs", {"jobs": [], "next": None})
    unknown = cli("jobs", "delete", "jabc")
    assert unknown.returncode == 4
    assert "'jabc'" in unknown.stderr
    assert not [request for request in server.requests if request.method == "DELETE"]


def test_last_is_the_last_job_of_the_folder(cli, server, protocol):
    assert cli("jobs", "delete", "@last").returncode == 2
    server.on("POST", "/jobs", protocol.job())
    server.on("DELETE", f"/jobs/{protocol.id}", protocol.Reply(status=204))
    cli("jobs", "create", "-m", "CPU", "--command", "x", "--workspace", "none", "-d")
    assert f"deleted {protocol.id}" in cli("jobs", "delete", "@last").stderr


@pytest.mark.parametrize("typed", ["jzrsbk1u2stm97x", "jzrsbk1u2stm9", "jzrsbk1u2stm97"])
def test_a_mistyped_id_is_no_pattern_of_another_job(cli, server, protocol, typed):
    server.on("POST", "/jobs", protocol.job())
    server.on("GET", "/jobs", {"jobs": [], "next": None})
    cli("jobs", "create", "-m", "CPU", "--command", "x", "--workspace", "none", "-d")
    refused = cli("jobs", "artifacts", "get", typed)
    assert refused.returncode == 4
    assert protocol.id not in refused.stderr
    assert not server.requests_to("GET", f"/jobs/{protocol.id}/artifacts")


def test_an_error_is_json_too_if_json_was_asked_for(cli, server, protocol):
    server.on("GET", f"/jobs/{protocol.id}", protocol.error(404, "No such job.", field="jobId", name="JobNotFound"))
    refused = cli("jobs", "show", protocol.id, "--json")
    fields = {"name": "JobNotFound", "status": 404, "field": "jobId", "message": "No such job.", "hint": None}
    assert json.loads(refused.stdout) == {"error": {**fields, "exitCode": 4}, "next": ["gradient-cli jobs list"]}
    assert refused.stderr == "error: No such job.\n"
    wrong = cli("jobs", "list", "--limit", "x", "--json")
    assert json.loads(wrong.stdout)["error"]["exitCode"] == wrong.returncode == 2
    assert json.loads(wrong.stdout)["next"] == ["gradient-cli jobs list --help"]
    away = cli("jobs", "list", "--json", "--url", "http://127.0.0.1:1")
    assert json.loads(away.stdout)["next"] == ["gradient-server up"]
    assert json.loads(away.stdout)["error"] | {"message": ""} == {
        "name": "ConnectionFailed", "status": None, "field": None, "message": "", "exitCode": 3,
        "hint": "Is the server running? `gradient-server up` starts one on this machine; --url selects another.",
    }  # fmt: skip


def test_wait_for_several_jobs(cli, server, protocol):
    server.on("GET", f"/jobs/{protocol.id}", protocol.job(), protocol.ended(3, "Failed"))
    server.on("GET", f"/jobs/{OTHER}", protocol.job(id=OTHER), protocol.ended(id=OTHER))
    for job in (protocol.id, OTHER):
        server.on("GET", f"/jobs/{job}/artifacts", {"files": [], "totalFiles": 0})
    shown = cli("jobs", "wait", protocol.id, OTHER)
    assert shown.returncode == 3, "the highest exit code"
    assert shown.stderr.index(protocol.id) < shown.stderr.index("Failed") < shown.stderr.index(OTHER)
    as_json = cli("jobs", "wait", OTHER, protocol.id, "--json")
    assert [job["id"] for job in json.loads(as_json.stdout)["jobs"]] == [OTHER, protocol.id]
    assert as_json.returncode == 3
    server.on("GET", f"/jobs/{OTHER}", protocol.error(404, "No such job."))
    assert cli("jobs", "wait", protocol.id, OTHER).returncode == 4


def test_links_to_ports_are_printed_once_the_job_runs(cli, server, protocol):
    port = {"internal": 8080, "external": None, "url": None}
    linked = {**port, "external": 20001, "url": "http://host:20001"}
    server.on("POST", "/jobs", protocol.job(ports=[port]))
    server.on("GET", f"/jobs/{protocol.id}", protocol.job(state="Running", ports=[linked]), protocol.ended())
    phases = [("Pending", "queued"), ("Running", "running"), ("Running", "collecting")]
    stream = [protocol.event("phase", {"state": state, "phase": phase}) for state, phase in phases]
    server.on("GET", f"/jobs/{protocol.id}/logs", protocol.Reply(stream=[*stream, protocol.end()]))
    server.on("GET", f"/jobs/{protocol.id}/artifacts", {"files": [], "totalFiles": 0})
    shown = cli.run_process("jobs", "create", "-m", "CPU", "--command", "x", "--workspace", "none")
    assert shown.stderr.count("port: http://host:20001 (its port 8080)") == 1


def test_a_list_of_an_unknown_project_is_refused(cli, server):
    server.on("GET", "/jobs", {"jobs": [], "next": None})
    server.on("GET", "/projects", {"projects": [{"id": "pr1", "name": "empty"}]})
    refused = cli("jobs", "list", "--project", "nosuch")
    assert refused.returncode == 4
    assert "no project has the name or id 'nosuch'" in refused.stderr
    assert cli("jobs", "list", "--project", "empty").returncode == 0


def test_login_checks_the_address_before_it_asks_for_the_key(cli):
    main, side = pty.openpty()
    env = {"GRADIENT_API_KEY": None, "GRADIENT_URL": None, "NO_COLOR": "1"}
    for url, code in (("127.0.0.1:8780", 2), ("http://127.0.0.1:1", 3)):
        with cli.start("login", "--url", url, stdin=side, stderr=side, env=env) as process:
            assert process.wait(timeout=30) == code
        shown = os.read(main, 65536).decode()
        assert url in shown
        assert "API key:" not in shown
    os.close(main)
    os.close(side)


@pytest.mark.parametrize("columns", [50, 60])
def test_tables_fit_a_narrow_terminal(cli, server, protocol, columns):
    jobs = [protocol.job(queuePosition=3, reason="behind_jobs"), protocol.ended(name="a run with a long name")]
    server.on("GET", "/jobs", {"jobs": jobs, "next": None})
    kind = {"name": "A100", "aliases": ["x", "y"], "backend": "docker", "accelerator": "NVIDIA A100", "count": 8,
            "memoryGb": 640, "pricePerHour": 24.48, "simulated": False, "available": True}  # fmt: skip
    server.on("GET", "/machine-types", {"machineTypes": [kind]})
    main, side = pty.openpty()
    for args in (["jobs", "list"], ["machine-types"]):
        with cli.start(*args, stdout=side, env={"COLUMNS": str(columns), "NO_COLOR": "1"}) as process:
            process.communicate(timeout=30)
        shown = b""
        while shown.count(b"\n") < (3 if args[0] == "jobs" else 2):  # a terminal gives what has arrived
            shown += os.read(main, 65536)
        assert max(map(len, shown.decode().splitlines())) <= columns
    os.close(main)
    os.close(side)
