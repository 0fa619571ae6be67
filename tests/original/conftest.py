"""The original clients, unmodified, against a real service with the process backend."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.deployment import Deployment

MAIN_PY = """
import os, pathlib
print("hello from", pathlib.Path("data/words.txt").read_text().strip())
out = pathlib.Path(os.environ["GRADIENT_ARTIFACTS_DIR"])
(out / "out.txt").write_text("42\\n")
(out / "sub").mkdir()
(out / "sub" / "a b & ü.txt").write_text("x\\n")
"""
JOB_ID = re.compile(r"\bj[a-z0-9]{13}\b")


@dataclass(frozen=True)
class CommandResult:
    """The exit code and output of a client."""

    code: int
    out: str
    err: str

    @property
    def job_id(self) -> str:
        found = JOB_ID.search(self.out + self.err)
        assert found, self
        return found[0]

    @property
    def json(self):
        """The JSON that it printed, after any messages before it."""
        return json.loads(self.out[re.search(r"^[\[{]", self.out, re.MULTILINE).start() :])


class ClientProgram:
    """One of the programs, in a project's folder of its own."""

    def __init__(self, program: Path, folder: Path, env: dict[str, str]) -> None:
        self._program = program
        self.folder = folder
        self.env = env

    def __call__(self, *arguments: str, **env: str) -> CommandResult:
        done = subprocess.run(
            [str(self._program), *arguments],
            cwd=self.folder,
            env={name: value for name, value in (self.env | env).items() if value},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session")
def service(tmp_path_factory) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path_factory.mktemp("original") / "home")
    deployment.start_up()
    yield deployment
    deployment.stop()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project's folder, whose name is the project's."""
    folder = tmp_path / "my-project"
    (folder / "data").mkdir(parents=True)
    (folder / "main.py").write_text(MAIN_PY)
    (folder / "data" / "words.txt").write_text("the workspace\n")
    (folder / "run.sh").write_text("#!/bin/sh\ncat data/link.txt\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "data" / "link.txt").symlink_to("words.txt")
    return folder


@pytest.fixture
def env(service: Deployment, tmp_path: Path) -> dict[str, str]:
    """The environment of a user who moves here, with settings that keep the output plain."""
    (tmp_path / "their-home").mkdir()
    url = service.cli_json["url"]
    (tmp_path / "tmp").mkdir()
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "their-home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "LC_ALL": "C.UTF-8",
        "LANG": "C.UTF-8",
        "PAPERSPACE_CONFIG_HOST": url,
        "PAPERSPACE_CONFIG_LOG_HOST": url,
        "PAPERSPACE_API_KEY": service.cli_json["apiKey"],
        "PAPERSPACE_WEB_URL": url,
        "PAPERSPACE_USE_CONSOLE_COLORS": "false",
        "NODE_NO_WARNINGS": "1",
    }


@pytest.fixture
def paperspace(original_clients: Path, folder: Path, env: dict[str, str]) -> ClientProgram:
    """npm's paperspace-node 0.2.4."""
    return ClientProgram(original_clients / "node" / "node_modules" / ".bin" / "paperspace", folder, env)


@pytest.fixture
def gradient(original_clients: Path, folder: Path, env: dict[str, str]) -> ClientProgram:
    """PyPI's gradient 1.11.0."""
    return ClientProgram(original_clients / "python" / "bin" / "gradient", folder, env)


@pytest.fixture
def paperspace_python(original_clients: Path, folder: Path, env: dict[str, str]) -> ClientProgram:
    """PyPI's paperspace 0.2.0."""
    return ClientProgram(original_clients / "python" / "bin" / "paperspace-python", folder, env)
