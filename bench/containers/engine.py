"""The container engine that jobs are measured on, and the cost of containers by its SDK and its client."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docker.api.client import APIClient
from docker.errors import DockerException, ImageNotFound

from bench.measure import MissingRequirement
from core.settings import Settings
from core.settings.docker import DockerSettings

_SHELL = "/bin/sh"


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with an image.

    Attributes:
        settings: Its address and the image: GRADIENT_DOCKER__URL and GRADIENT_DOCKER__DEFAULT_IMAGE.
    """

    settings: DockerSettings

    @property
    def environment(self) -> dict[str, str]:
        """Settings of a service that runs its jobs on this engine, in this image, on the floor's kind of network."""
        return {
            "GRADIENT_MACHINES__SIMULATE": "false",
            "GRADIENT_DOCKER__URL": self.settings.url,
            "GRADIENT_DOCKER__DEFAULT_IMAGE": self.settings.default_image,
            "GRADIENT_DOCKER__PULL": "never",
            "GRADIENT_DOCKER__NETWORK": "none",
        }

    @contextlib.contextmanager
    def client(self) -> Iterator[APIClient]:
        """Open a connection to the engine."""
        with contextlib.closing(APIClient(self.settings.url, version="auto", timeout=120)) as client:
            yield client

    def run_by_sdk(self, client: APIClient, command: str) -> tuple[float, float]:
        """Return the seconds from create to the first line read, and from the last line read until removal."""
        began = time.perf_counter()
        host = client.create_host_config(network_mode="none", init=True)
        made = client.create_container(self.settings.default_image, [_SHELL, "-c", command], host_config=host)["Id"]
        lines = client.attach(made, stream=True, logs=True)
        client.start(made)
        next(lines)
        first = time.perf_counter()
        last = first
        for _ in lines:
            last = time.perf_counter()
        client.wait(made)
        client.remove_container(made)
        return first - began, time.perf_counter() - last

    def run_by_hand(self, command: str) -> tuple[float, float]:
        """Return the seconds of `docker run --rm` to the first line read, and from the last line read to its end."""
        began = time.perf_counter()
        with subprocess.Popen(
            self.docker_command(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None  # noqa: S101 - a pipe was requested
            process.stdout.readline()
            first = last = time.perf_counter()
            while process.stdout.readline():
                last = time.perf_counter()
            process.wait()
        return first - began, time.perf_counter() - last

    def write_by_hand(self, command: str, file: Path) -> float:
        """Return the seconds until the output of `docker run` is in a file, and on disk."""
        began = time.perf_counter()
        with file.open("wb") as out:
            subprocess.run(self.docker_command(command), stdin=subprocess.DEVNULL, stdout=out, check=True)
        subprocess.run(["sync", "-d", str(file)], check=True)
        return time.perf_counter() - began

    def docker_command(self, command: str) -> list[str]:
        """Build the `docker run` command for a shell command."""
        program = shutil.which("docker")
        if program is None:
            raise MissingRequirement("the docker client is not installed")
        run = [program, "--host", self.settings.url, "run", "--rm", "--init", "--network", "none"]
        return [*run, self.settings.default_image, _SHELL, "-c", command]


def engine() -> Engine:
    """Return the engine that the settings name.

    Raises:
        MissingRequirement: The engine does not answer, or does not have the image.
    """
    settings = Settings().docker
    engine_used = Engine(settings)
    try:
        with engine_used.client() as client:
            client.inspect_image(settings.default_image)
    except ImageNotFound as error:
        raise MissingRequirement(
            f"{settings.default_image} is not on the engine: docker pull {settings.default_image}"
        ) from error
    except DockerException as error:
        raise MissingRequirement(f"no container engine at {settings.url} (GRADIENT_DOCKER__URL)") from error
    return engine_used
