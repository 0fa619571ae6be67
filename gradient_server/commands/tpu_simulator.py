import argparse
import shlex
import signal
import sys
import threading
from typing import TYPE_CHECKING

from core.settings import Settings
from gradient_server import simulator

if TYPE_CHECKING:
    from gradient_server.simulator.cloud import SimulatedCloud


def run(parsed: argparse.Namespace, _settings: Settings) -> int:
    """Run the simulation until SIGTERM or Ctrl-C, and return the exit code."""
    cloud = simulator.load_simulated_cloud()(
        port=parsed.port,
        storage_port=parsed.storage_port,
        device_port=parsed.device_port,
        create_seconds=parsed.create_seconds,
        room=parsed.room,
    ).start()
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    try:
        _announce(cloud)
        stopped.wait()
    finally:
        cloud.stop()
    return 0


def _announce(cloud: "SimulatedCloud") -> None:
    settings = "\n".join(f"  export {name}={shlex.quote(value)}" for name, value in cloud.environment().items())
    device = (
        f"a TensorFlow server with 8 devices at port {cloud.device.port}; it executes any request to that port, so "
        "keep it behind a firewall"
        if cloud.has_tensorflow
        else f"port {cloud.device.port} only accepts connections (install gradient-jobs[trainer] for TensorFlow)"
    )
    print(
        f"Simulated TPUs are ready. The device is {device}.\nIf the service is started with these settings, jobs of "
        f"all TPU types use the simulator:\n{settings}\nCtrl-C ends the simulation and discards its state.",
        file=sys.stderr,
        flush=True,
    )
