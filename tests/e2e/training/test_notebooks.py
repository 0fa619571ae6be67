"""Notebooks: JupyterLab in a job, through the real client, service and worker."""

import os
import re
import shlex
import signal
import subprocess
from contextlib import contextmanager

import httpx
import pytest
from support.deployment import CLI_PROGRAM, EMPTY_SSL_CONTEXT, TIMEOUT_SECONDS

# In place of the real one, which takes a minute to install: it answers only with the token, in the folder it is given.
JUPYTERLAB = """
import http.server, os, sys

options = dict(word.partition("=")[::2] for word in sys.argv[1:])

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path.endswith(f"?token={os.environ['JUPYTER_TOKEN']}")
        self.send_response(200 if known else 403)
        self.end_headers()
        self.wfile.write(repr(sorted(options.items())).encode())

if __name__ == "__main__":
    os.chdir(options["--ServerApp.root_dir"])
    assert os.path.exists("jupyterlab.py"), "the uploaded folder"
    open("notebook.ipynb", "w").write("{}")
    open("artifacts/weights", "w").close()
    http.server.HTTPServer((options["--ip"], int(options["--port"])), Answer).serve_forever()
"""


@pytest.fixture
def service(deployment):
    deployment.start_up()
    return deployment


def environment(service):
    return {k: v for k, v in os.environ.items() if not k.startswith("GRADIENT_")} | {"GRADIENT_HOME": str(service.home)}


@contextmanager
def notebook(service, folder, source, *options):
    project = folder / "project"
    project.mkdir()
    (project / "jupyterlab.py").write_text(source)
    words = [str(CLI_PROGRAM), "notebooks", "run", "-m", "CPU", "--localPort", "0", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=project, env=environment(service), **pipes) as client:
        yield client
        client.kill()


def test_a_notebook_opens_with_its_token_and_goes_on_after_ctrl_c(service, tmp_path):
    with notebook(service, tmp_path, JUPYTERLAB, "--idleMinutes", "5") as client:
        link = client.stdout.readline().decode().strip()
        with httpx.Client(verify=EMPTY_SSL_CONTEXT) as browser:
            answer = browser.get(link)
            assert (answer.status_code, browser.get(link[:-1]).status_code) == (200, 403)
        assert "('--ip', '127.0.0.1')" in answer.text
        [job] = service.request("GET", "/jobs").json()["jobs"]
        assert link.partition("token=")[2] not in str(job)
        assert job["onIdle"] == "stop:300"
        client.send_signal(signal.SIGINT)
        assert client.wait(TIMEOUT_SECONDS) == 0
        said = client.stderr.read().decode()
    goes_on = (
        f"Ctrl-C ends this link; the notebook keeps running at $0.47/hour until `gradient-cli jobs stop {job['id']}`"
    )
    assert goes_on in said.partition("the notebook keeps running\n")[0]
    [command] = re.findall(r"open it +(gradient-cli jobs port-forward .*)", said)
    words = [str(CLI_PROGRAM), *shlex.split(command.replace(" 8888 ", " 8888:0 "))[1:]]
    with subprocess.Popen(words, env=environment(service), stdout=subprocess.PIPE) as again:
        assert httpx.get(again.stdout.readline().split()[0].decode(), verify=EMPTY_SSL_CONTEXT).status_code == 200
        again.kill()
    assert service.job(job["id"])["state"] == "Running"
    service.request("POST", f"/jobs/{job['id']}/stop")
    service.wait_ended(job["id"])
    assert [file["path"] for file in service.artifacts(job["id"])["files"]] == ["notebook.ipynb", "weights"]


def test_a_notebook_that_ends_at_once_shows_why(service, tmp_path):
    with notebook(service, tmp_path, "raise SystemExit(5 * (__name__ == '__main__'))") as client:
        code, said = client.wait(TIMEOUT_SECONDS), client.stderr.read().decode()
        assert (code, "exit code 5" in said) == (5, True), said
