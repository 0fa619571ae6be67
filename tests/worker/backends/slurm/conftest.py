import os
import shutil

import pytest
from support.servers.ssh_server import SshServer


@pytest.fixture
def apptainer():
    return shutil.which("apptainer")


@pytest.fixture
def ssh_server(tmp_path, monkeypatch):
    """A host to which `ssh` leads, by its own key."""
    with SshServer(tmp_path / "sshd") as server:
        monkeypatch.setenv("PATH", f"{server.programs}:{os.environ['PATH']}")
        yield server
