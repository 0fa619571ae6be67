"""`notebooks run` against a scripted server."""

import json
from argparse import Namespace
from contextlib import contextmanager

from gradient_cli.commands import notebooks

ENDED = {"id": "j1", "state": "Failed", "exitCode": 5, "finishedAt": "2026-01-01T00:00:00Z"}


class RefusingApi:
    """A server that says that the job runs, accepts a port session, and then finds that the job has ended."""

    url = "http://127.0.0.1:8780"

    def __init__(self):
        self._answers = [{"id": "j1", "state": "Running"}]

    def job(self, _job_id):
        return self._answers.pop() if self._answers else ENDED

    def logs(self, _job_id, *, line):
        return {"lines": [], "total": line}

    @contextmanager
    def forward_port(self, _job_id, _port):
        yield self

    def recv(self):
        return json.dumps({"refused": "The job has just ended.", "name": "JobNotEnterable"})

    def artifacts(self, _job_id, *, limit):
        return {"totalFiles": 0, "limit": limit}


def test_a_job_that_ends_while_it_is_entered_gives_its_own_exit_code(capsys):
    args = Namespace(json=False, detach=False, token="t", localPort=0)
    assert notebooks._open(args, RefusingApi(), {"id": "j1", "url": ""}) == 5
    assert "exit code 5" in capsys.readouterr().err


def test_a_notebook_is_the_last_job_of_its_folder(cli, server, protocol):
    ended = protocol.job(state="Failed", exitCode=5, finishedAt="2026-01-01T00:00:00.000Z")
    server.on("POST", "/jobs", protocol.job())
    server.on("GET", f"/jobs/{protocol.id}", ended)
    server.on("GET", f"/jobs/{protocol.id}/artifacts", {"files": [], "totalFiles": 0, "totalBytes": 0, "next": None})
    assert cli("notebooks", "run", "--workspace", "none", "-m", "CPU").returncode == 5
    assert f"job {protocol.id} (the last one of this folder)" in cli("jobs", "show").stderr


def test_the_ports_of_the_project_file_are_published_too(cli, server, protocol):
    server.on("POST", "/jobs", protocol.job())
    (cli.folder / ".gradient.toml").write_text('ports = ["6006"]\n')
    notebook = ("notebooks", "run", "--workspace", "none", "-m", "CPU", "--detach")
    assert cli(*notebook).returncode == 0
    assert server.requests[-1].json["ports"] == ["6006", "8888"]
    assert cli(*notebook, "--ports", "8888").returncode == 0
    assert server.requests[-1].json["ports"] == ["8888"]
