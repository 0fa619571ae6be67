"""A server of Azure's storage, Microsoft's emulator Azurite, as a process."""

import contextlib
import email.utils
import hashlib
import hmac
import itertools
import os
import signal
import socket
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
from obstore.store import AzureStore
from support.deployment import wait_until
from support.free_port import free_port
from support.npm_packages import find_azurite
from support.servers.bucket_harness import BucketHarness

_ACCOUNT = "account"
_KEY = b64encode(b"of tests" * 8).decode()
_numbers = itertools.count(1)


class AzureServer:
    def __init__(self, program: Path, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{(port := free_port())}/{_ACCOUNT}"
        options = ["--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
        with (folder / "azurite.log").open("wb") as log:
            self._process = subprocess.Popen(
                [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options],
                env=os.environ | {"AZURITE_ACCOUNTS": f"{_ACCOUNT}:{_KEY}"},
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: self._listens(port), "Azurite to listen")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def _listens(self, port: int) -> bool:
        assert self._process.poll() is None
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        return False


class AzureHarness(BucketHarness):
    """The server as one test sees it: a container of its own."""

    def __init__(self, server: AzureServer) -> None:
        self._container = f"test-container-{next(_numbers)}"
        settings = {
            "GRADIENT_STORE__URL": f"az://{self._container}/some/prefix",
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_STORAGE_ENDPOINT": server.url,
        }
        self._create_container(server.url)
        direct = AzureStore(
            self._container,
            account_name=_ACCOUNT,
            account_key=_KEY,
            endpoint=server.url,
            client_options={"allow_http": True},
        )
        super().__init__(settings, direct)

    def _create_container(self, url: str) -> None:
        headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        told = "\n".join(f"{name}:{value}" for name, value in headers.items())
        text = "PUT" + "\n" * 12 + f"{told}\n/{_ACCOUNT}/{_ACCOUNT}/{self._container}\nrestype:container"
        signature = b64encode(hmac.new(b64decode(_KEY), text.encode(), hashlib.sha256).digest()).decode()
        headers["Authorization"] = f"SharedKey {_ACCOUNT}:{signature}"
        made = urllib3.request("PUT", f"{url}/{self._container}?restype=container", headers=headers)
        assert made.status == 201, made.data


@pytest.fixture(scope="session")
def azurite() -> Path:
    """The program; what stands for it in `REQUIREMENTS`."""
    found = find_azurite()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def azure_server(azurite: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """One server a test process."""
    server = AzureServer(azurite, tmp_path_factory.mktemp("azure"))
    yield server
    server.stop()


@pytest.fixture
def azure(azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch) -> AzureHarness:
    """A container, whose account's key is in the environment."""
    harness = AzureHarness(azure_server)
    for name, value in harness.settings.items():
        if name.startswith("AZURE_"):
            monkeypatch.setenv(name, value)
    return harness
