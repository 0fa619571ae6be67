"""Finds the devices of a training."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from .errors import DeviceUnreachable

_WORKER = "worker"


@dataclass(frozen=True)
class Devices:
    """The devices of a training.

    Attributes:
        strategy: The strategy by which TensorFlow distributes a step over them.
        name: Name for the user.
    """

    strategy: tf.distribute.Strategy
    name: str

    @property
    def replicas(self) -> int:
        """Number of parts that a batch is divided into."""
        return int(self.strategy.num_replicas_in_sync)


def find_devices(environ: Mapping[str, str] = os.environ) -> Devices:
    """Find the TPU that the environment names; else all GPUs of this machine; else its CPU.

    Args:
        environ: `TPU_GRPC_URL` names a TPU on the network, which is known to listen; `TPU_NAME=local` means
            that this machine is a TPU VM.

    Raises:
        DeviceUnreachable: The named device is not a TPU.
    """
    if environ.get("TPU_GRPC_URL"):
        return _tpu(environ["TPU_GRPC_URL"], environ["TPU_GRPC_URL"])
    if environ.get("TPU_NAME") == "local":
        return _tpu("local", "this machine")
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    if len(gpus) > 1:
        return Devices(tf.distribute.MirroredStrategy(), f"{len(gpus)} x {_gpu_name(gpus[0])}")
    if gpus:
        return Devices(tf.distribute.get_strategy(), _gpu_name(gpus[0]))
    # Not every system reports which cores this process may run on.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Devices(tf.distribute.get_strategy(), f"{cores} CPU cores")


def _tpu(address: str, shown: str) -> Devices:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        if address != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return Devices(tf.distribute.TPUStrategy(resolver), f"TPU at {shown}")
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        simulated = _simulated()
        if simulated is None:
            raise DeviceUnreachable(
                f"there is no TPU behind {shown}: {str(error).splitlines()[0][:200]}; on a TPU VM the program needs "
                "tensorflow-tpu in the same version as the TPU's runtime"
            ) from error
        names = [device.name for device in simulated]
        strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())
        return Devices(strategy, f"simulated TPU at {shown}: {len(names)} CPU devices")


def _simulated() -> list[tf.config.LogicalDevice] | None:
    """Return the CPU devices that stand in for a TPU's cores, if any.

    A real host has one CPU device; several mean a simulated TPU.
    """
    devices = [device for device in tf.config.list_logical_devices("CPU") if f"/job:{_WORKER}/" in device.name]
    return devices if len(devices) > 1 else None


def _gpu_name(gpu: tf.config.PhysicalDevice) -> str:
    return str(tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name))
