"""An in-process fake of the Google Cloud services that a TPU job uses: TPU API, Cloud Storage, and a device."""

import contextlib
import importlib.util
import json
import logging
import socket
import threading
from typing import Protocol, Self

from core.errors import GradientError
from core.settings import Settings
from gradient_server.simulator.gcs.server import GcsSimulator
from gradient_server.simulator.tpu.api import TpuSimulator
from gradient_server.simulator.tpu.device_server import DeviceServer
from gradient_server.simulator.tpu.state import TpuProject
from gradient_server.simulator.tpu.vms import SimulatedVms

logger = logging.getLogger(__name__)

ZONE = "us-central1-b"
_LOCALHOST = "127.0.0.1"


class SimulatorPortTaken(GradientError):
    """A port of the simulation is in use."""


class _Device(Protocol):
    port: int

    def start(self) -> object: ...

    def stop(self) -> None: ...


class FakeDevice:
    """A device that only accepts connections, for computers without TensorFlow."""

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server((_LOCALHOST, port))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="tpu-device", daemon=True)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        # Closing alone does not wake a thread that waits in accept().
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._listener.accept()[0].close()


class SimulatedCloud:
    def __init__(
        self,
        *,
        port: int = 0,  # port of the TPU API; 0, also for the other ports: any free one
        storage_port: int = 0,
        device_port: int = 0,
        create_seconds: float = 0.0,
        room: int = 100,
    ) -> None:
        self._stopping = False
        self.has_tensorflow = importlib.util.find_spec("tensorflow") is not None
        made = contextlib.ExitStack()  # closes the parts created so far if a later one fails
        try:
            self.storage = GcsSimulator(storage_port)
            made.callback(self.storage.stop)
            environment = self.storage.environment()
            self.device: _Device = (
                DeviceServer(device_port, 8, environment) if self.has_tensorflow else FakeDevice(device_port)
            )
            made.callback(self.device.stop)
            self.machines = SimulatedVms(environment)
            made.callback(self.machines.stop)
            cloud = TpuProject((_LOCALHOST, self.device.port), create_seconds, room=room, machines=self.machines)
            self.tpus = TpuSimulator(port, cloud)
        except OSError as error:
            made.close()
            ports = ", ".join(str(number) for number in (port, storage_port, device_port) if number)
            raise SimulatorPortTaken(
                f"Cannot listen on {_LOCALHOST} at all of the ports {ports} ({error.strerror}). Choose others with "
                "--port, --storage-port and --device-port; 0 selects any free port.",
                field="port",
            ) from error

    def start(self) -> Self:
        """Start serving; the device starts in the background, because TensorFlow takes a while."""
        self.storage.start()
        self.tpus.start()
        threading.Thread(target=self._start_device, name="tpu-device-start", daemon=True).start()
        return self

    def stop(self) -> None:
        self._stopping = True
        self.tpus.stop()
        self.machines.stop()
        self.device.stop()
        self.storage.stop()

    def _start_device(self) -> None:
        try:
            self.device.start()
        except GradientError as error:
            if not self._stopping:
                logger.error("tpu_device_not_started", extra={"why": error.message})  # noqa: TRY400 - it says it all

    def environment(self) -> dict[str, str]:
        """Return the settings, as variables, that point a worker to this simulation."""
        return {
            "GRADIENT_TPU__SIMULATOR_ADDRESS": self.tpus.address,
            "GRADIENT_TPU__ZONES": json.dumps([ZONE]),
            "GRADIENT_TPU__RUNNER": "process",
            "GRADIENT_TPU__POLL_SECONDS": "0.5",
            "GRADIENT_GCS__ENDPOINT": self.storage.url,
            "GRADIENT_GCS__CA": str(self.storage.ca),
        }

    def settings(self, settings: Settings) -> Settings:
        """Return a copy of the settings that uses this simulation."""
        simulated = {"simulator_address": self.tpus.address, "zones": [ZONE], "runner": "process", "poll_seconds": 0.5}
        gcs = settings.gcs.model_copy(update={"endpoint": self.storage.url, "ca": self.storage.ca})
        return settings.model_copy(update={"tpu": settings.tpu.model_copy(update=simulated), "gcs": gcs})
