"""`make demo-compose`: the service of docker-compose.yml on this machine's engine, with a job in its own container.

It pulls and builds images, so it needs a registry and Python's package index. Everything is in a Compose project of its
own (`gradient-demo`) and in .demo-compose, and is removed at the end.
"""

import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import demo
from demo import ROOT, DemoError, Programs, say

FOLDER = ROOT / ".demo-compose"
PROJECT = "gradient-demo"
PUBLISH = "127.0.0.1:8790"
READY_SECONDS = 120
IMAGE = "python:3.12-slim"
COMMAND = (
    'for step in $(seq 20); do echo "step $step"; sleep 1; done; id; echo weights >"$GRADIENT_ARTIFACTS_DIR/model.bin"'
)


def main() -> int:
    """Run the demo; return its exit code."""
    return demo.told(run)


def run() -> None:
    """Start the service, run a job whose worker is replaced meanwhile, and read its outputs.

    Raises:
        DemoError: Something is missing, or the job did not end well.
    """
    compose = [*find_compose(), "--project-name", PROJECT, "--env-file", str(FOLDER / "env")]
    with service(compose):
        key = docker(*compose, "exec", "-T", "service", "gradient-server", "keys", "create", "demo").split()[-1]
        home = {"GRADIENT_URL": f"http://{PUBLISH}", "GRADIENT_API_KEY": key}
        programs = Programs(Programs.for_home(FOLDER / "client").env | home)
        create = ("jobs", "create", "--machineType", "CPU", "--container", IMAGE, "--workspace", "none")
        if programs.run(*create, "--detach", "--name", "demo", "--command", COMMAND):
            raise DemoError("the job was refused")
        [job] = programs.ask("jobs", "list", "--limit", "1")["jobs"]
        while programs.ask("jobs", "show", job["id"])["state"] == "Pending":
            time.sleep(1)
        say("\nThe job runs. Its worker is replaced now, as by an upgrade:")
        docker(*compose, "up", "--detach", "--force-recreate", "--no-deps", "worker-docker")
        if programs.run("jobs", "logs", job["id"], "--follow") or programs.run("jobs", "wait", job["id"]):
            raise DemoError("the job did not end well")
        programs.run("jobs", "artifacts", "list", job["id"])


def find_compose() -> list[str]:
    """Return the words of Docker Compose.

    Raises:
        DemoError: There is none, or no engine answers.
    """
    if not succeeds("docker", "version"):
        raise DemoError(
            "no Docker engine answers. Install Docker's engine and start it, and have the right to use its socket (as "
            "root, or in the group docker)."
        )
    for command in (["docker", "compose"], ["docker-compose"]):
        if succeeds(*command, "version"):
            return command
    raise DemoError("Docker Compose is missing: install the package docker-compose-plugin or docker-compose.")


@contextmanager
def service(compose: list[str]) -> Iterator[None]:
    """Run the service while the block runs, with jobs in containers of the engine."""
    FOLDER.mkdir(exist_ok=True)
    settings = {"STORES": FOLDER / "home", "PUBLISH": PUBLISH, "GRADIENT_API__PUBLIC_URL": f"http://{PUBLISH}"}
    settings["INSIDE"] = "172.30.98"  # another network than an installation's
    (FOLDER / "env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    docker(str(ROOT / "deploy" / "init"), "--docker", str(FOLDER / "env"))
    say("Building the images and starting the service; the first time takes some minutes")
    try:
        docker(*compose, "--profile", "docker", "up", "--detach", "--build")
        deadline = time.monotonic() + READY_SECONDS
        while not ready():
            if time.monotonic() > deadline:
                raise DemoError(docker(*compose, "logs", "--tail", "20", "service"))
            time.sleep(1)
        say(f"Ready: http://{PUBLISH}")
        yield
    finally:
        succeeds(*compose, "--profile", "docker", "down", "--volumes")
        shutil.rmtree(FOLDER, ignore_errors=True)


def ready() -> bool:
    """Return whether the service takes requests."""
    try:
        with urllib.request.urlopen(f"http://{PUBLISH}/readiness", timeout=5):
            return True
    except OSError:
        return False


def docker(*command: str) -> str:
    """Run a command in the repository and return its output.

    Raises:
        DemoError: It failed; the message has what it said.
    """
    done = run_here(command)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        needs = "The images need a registry (Docker Hub) and Python's package index."
        raise DemoError(f"{' '.join(command)} failed:\n{said}\n\n{needs}")
    return done.stdout


def succeeds(*command: str) -> bool:
    """Return whether a program is there and ends well."""
    return shutil.which(command[0]) is not None and run_here(command).returncode == 0


def run_here(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a command in the repository."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - ours


if __name__ == "__main__":
    sys.exit(main())
