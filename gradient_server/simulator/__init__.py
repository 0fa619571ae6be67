"""Google's TPU API and Cloud Storage, simulated on one machine, to try TPU jobs without a TPU."""

from importlib import import_module
from typing import TYPE_CHECKING

from core.errors import ExtraMissing

if TYPE_CHECKING:
    from gradient_server.simulator.cloud import SimulatedCloud


def load_simulated_cloud() -> "type[SimulatedCloud]":
    """Import the simulator, which needs Google's libraries."""
    try:
        cloud: type[SimulatedCloud] = import_module("gradient_server.simulator.cloud").SimulatedCloud
    except ModuleNotFoundError as error:
        raise ExtraMissing("The TPU simulator needs", error, "simulator") from error
    return cloud
