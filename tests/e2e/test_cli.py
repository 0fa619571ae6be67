"""The client as a user types it, against a real service that runs the jobs."""

import hashlib
import subprocess

import psutil
import pytest
from support.client_shell import ClientShell

MAIN = """
import os
print("training", flush=True)
with open(os.path.join(os.environ["GRADIENT_ARTIFACTS_DIR"], "model.bin"), "wb") as file:
    file.write(bytes(range(256)) * 1000)
raise SystemExit(int(os.environ.get("CODE", "0")))
"""


@pytest.fixture
def shell(service, tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "main.py").write_text(MAIN)
    return ClientShell(service, folder, tmp_path)


def jobs(service):
    return service.request("GET", "/jobs?limit=500").json()["jobs"]


def last_id(service):
    return jobs(service)[0]["id"]


def test_a_job_and_its_record_have_the_commit_of_the_folder(service, shell):
    def git(*command):
        author = ("-c", "user.name=n", "-c", "user.email=n@example.org")
        done = subprocess.run(
            ["git", "-C", shell.folder, *author, *command], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q", "-b", "work")
    (shell.folder / "pyproject.toml").write_text("[tool.ruff]\n")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    git("tag", "v1.2")
    commit = git("rev-parse", "HEAD")
    run = ("jobs", "create", "-m", "CPU", "--command", "env | grep ^GRADIENT_GIT_ | sort; cat .git_archival.txt")
    clean = shell(*run)
    (shell.folder / "main.py").write_text("")
    changed = shell(*run)
    told = f"GRADIENT_GIT_BRANCH=work\nGRADIENT_GIT_COMMIT={commit}\nGRADIENT_GIT_DIRTY=%d\n"
    archival = f"node: {commit}\ndescribe-name: v1.2-0-g{commit[:7]}\n"
    assert clean.stdout == told % 0 + archival
    assert changed.stdout == told % 1 + archival
    assert "not kept" not in clean.stderr, "the file is not the job's"
    assert f"{commit} · work · v1.2-0-g{commit[:7]} · with changes" in shell("jobs", "show").stdout
    second, first = [job["id"] for job in jobs(service)[:2]]
    assert "codeDirty" in shell("jobs", "diff", first, second).stdout
    assert commit[:12] in service.request("GET", f"/ui/jobs/{second}/config").text


def test_one_command_runs_a_folder_and_brings_its_outputs_back(service, shell, tmp_path):
    create = ("jobs", "create", "--machineType", "TPU")
    done = shell(*create, "--command", "python main.py")
    assert done.stdout == "training\n"
    job_id = last_id(service)
    assert job_id in done.stderr
    assert f"/ui/jobs/{job_id}" in done.stderr
    assert "uploaded" in done.stderr
    assert "exit code 0" in done.stderr
    assert "simulated" in done.stderr
    listed = shell("jobs", "artifacts", "list", job_id)
    digest = hashlib.sha256(bytes(range(256)) * 1000).hexdigest()
    assert "model.bin" in listed.stdout
    assert digest[:12] in listed.stdout
    shell("jobs", "artifacts", "get", job_id, "--to", str(tmp_path / "back"))
    assert (tmp_path / "back" / "model.bin").read_bytes() == bytes(range(256)) * 1000
    again = shell(*create, "--command", "python main.py")
    assert "not uploaded" in again.stderr


def test_the_log_follows_over_a_restart_of_the_service(deployment, tmp_path):
    up = deployment.start("up", "--port", "0")
    deployment.wait_ready(up)
    port = deployment.cli_json["url"].rpartition(":")[2]
    folder = tmp_path / "project"
    folder.mkdir()
    shell = ClientShell(deployment, folder, tmp_path)
    command = 'echo one; until [ -e "$GRADIENT_STORAGE_DIR/go" ]; do sleep 0.05; done; echo two; exit 6'
    following = shell.start("jobs", "create", "--machineType", "CPU", "--workspace", "none", "--command", command)
    assert following.stdout.readline() == "one\n"
    processes = psutil.Process(up.pid).children()
    up.kill()
    psutil.wait_procs(processes, 30)  # the kernel kills them with it
    again = deployment.start("up", "--port", port)
    deployment.wait_ready(again)
    (deployment.storage / "go").touch()
    out, said = following.communicate(timeout=60)
    assert out == "two\n", said
    assert following.returncode == 6
    assert "trying again" in said
