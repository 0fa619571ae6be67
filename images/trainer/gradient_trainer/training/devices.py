import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import keras
import tensorflow as tf

from gradient_trainer.errors import DeviceUnreachable, OptionsError

T = TypeVar("T")

_WORKER = "worker"
_TENSOR_CORES = 7
_BFLOAT16 = 8  # CUDA's compute capabilities from which float16 and bfloat16 are faster than float32 (Volta, Ampere)


@dataclass(frozen=True)
class Devices:
    name: str
    kind: str = "cpu"
    replicas: int = 1
    # the strategy by which TensorFlow distributes a step over them; None: Keras' default
    strategy: tf.distribute.Strategy | None = None
    remote: bool = False
    capability: int = 0  # CUDA's compute capability of a GPU, if TensorFlow knows it

    def scope(self) -> AbstractContextManager[object]:
        return self.strategy.scope() if self.strategy is not None else nullcontext()

    def precision(self, chosen: str) -> str:
        """Return the precision to use: the chosen one, or for `auto` that which suits the device."""
        if chosen != "auto":
            return chosen
        if self.kind == "tpu" or self.capability >= _BFLOAT16:
            return "mixed_bfloat16"
        return "mixed_float16" if self.capability >= _TENSOR_CORES else "float32"

    def peak_memory(self) -> int | None:
        """Return the most bytes of device memory in use at once, if the device has memory of its own and counts it."""
        if self.kind == "cpu":
            return None
        if keras.backend.backend() == "jax":
            statistics = importlib.import_module("jax").devices()[0].memory_stats() or {}
            return statistics.get("peak_bytes_in_use")
        if keras.backend.backend() == "torch":
            return int(importlib.import_module("torch").cuda.max_memory_allocated())
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]) if self.kind == "gpu" else None


class SimulatedTpuStrategy(tf.distribute.MirroredStrategy):  # type: ignore[misc]  # TensorFlow has no types
    """The strategy for CPU devices that stand in for a TPU's cores; each replica takes its part of a whole batch.

    TensorFlow's own iterator over a distributed data set traces functions for each device when it is created, and Keras
    creates three for each epoch and each validation. For eight devices that takes seconds, longer than a small epoch.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        super().__init__(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())

    def experimental_distribute_dataset(
        self,
        dataset: tf.data.Dataset,
        options: tf.distribute.InputOptions | None = None,  # noqa: ARG002 - TensorFlow's signature
    ) -> tf.data.Dataset:
        """Return the data set, whose batches `run` divides."""
        return dataset

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: tf.distribute.RunOptions | None = None,
    ) -> Any:  # noqa: ANN401 - TensorFlow's values by replica have no public type
        """Run `fn` on each replica, with its part of the tensors in `args`."""

        def run_on_replica(*whole: Any, **options: Any) -> Any:  # noqa: ANN401 - as `fn`
            replica = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
            parts = self.num_replicas_in_sync
            return fn(*tf.nest.map_structure(lambda tensor: tf.split(tensor, parts)[replica], whole), **options)

        return super().run(run_on_replica, args, kwargs, options)


def find_devices(count: int | None = None, environ: Mapping[str, str] = os.environ) -> Devices:
    """Find the TPU that the environment names; else all GPUs of this machine; else its CPU.

    `count`: how many GPUs, or cores of the TPU, to use; None: all. `environ`: `TPU_GRPC_URL` names a TPU on the
    network, which is known to listen; `TPU_NAME=local` means that this machine is a TPU VM.
    """
    backend = keras.backend.backend()
    if backend == "jax":
        return _find_with_jax(count)
    if backend == "torch":
        _first(count, ["cuda:0"])
        cuda = importlib.import_module("torch").cuda
        return Devices(cuda.get_device_name(0), "gpu") if cuda.is_available() else Devices(_cpu_name())
    if environ.get("TPU_GRPC_URL"):
        return _tpu(environ["TPU_GRPC_URL"], environ["TPU_GRPC_URL"], count)
    if environ.get("TPU_NAME") == "local":
        return _tpu("local", "this machine", count)
    return _find_local(count)


def _first(count: int | None, devices: Sequence[T]) -> Sequence[T]:
    if count is not None and count > len(devices):
        raise OptionsError(f"--devices {count} is more than this machine has, which is {len(devices)}; choose fewer")
    return devices[:count]


def _find_local(count: int | None) -> Devices:
    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        _first(count, ["CPU"])
        return Devices(_cpu_name())
    gpus = _first(count, gpus)
    tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, enable=True)
    details = tf.config.experimental.get_device_details(gpus[0])
    name = str(details.get("device_name", gpus[0].name))
    capability = details.get("compute_capability", (0,))[0]
    if len(gpus) > 1:
        strategy = tf.distribute.MirroredStrategy()
        return Devices(f"{len(gpus)} x {name}", "gpu", len(gpus), strategy, capability=capability)
    return Devices(name, "gpu", capability=capability)


def _find_with_jax(wanted: int | None) -> Devices:
    tf.config.set_visible_devices([], "GPU")  # TensorFlow only reads the input then, and must not take the GPU's memory
    devices = _first(wanted, importlib.import_module("jax").devices())
    kind, count = devices[0].platform, len(devices)
    parallel = keras.distribution.DataParallel(devices=devices) if count > 1 else None
    keras.distribution.set_distribution(parallel)
    name = str(devices[0].device_kind) if kind != "cpu" else "CPU device" if count > 1 else _cpu_name()
    prefix = f"{count} x " if count > 1 else ""
    # Whether a GPU has tensor cores is unknown here; bfloat16 is right on those that JAX is used with today.
    return Devices(f"{prefix}{name}", kind, count, capability=_BFLOAT16 if kind == "gpu" else 0)


def _cpu_name() -> str:
    # Not every system reports which cores this process may run on.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} CPU cores"


def _tpu(address: str, shown: str, count: int | None) -> Devices:
    remote = address != "local"
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
        if remote:
            tf.config.experimental_connect_to_cluster(resolver)
        topology = tf.tpu.experimental.initialize_tpu_system(resolver)
        _first(count, range(topology.num_tasks * topology.num_tpus_per_task))
        some = count and tf.tpu.experimental.DeviceAssignment.build(topology, num_replicas=count)
        strategy = tf.distribute.TPUStrategy(resolver, experimental_device_assignment=some)
        return Devices(f"TPU at {shown}", "tpu", int(strategy.num_replicas_in_sync), strategy, remote)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        simulated = _simulated()
        if simulated is None:
            raise DeviceUnreachable(
                f"there is no TPU behind {shown}: {str(error).splitlines()[0][:200]}; on a TPU VM the program needs "
                "tensorflow-tpu in the same version as the TPU's runtime"
            ) from error
        names = [device.name for device in _first(count, simulated)]
        strategy = SimulatedTpuStrategy(names)
        name = f"simulated TPU at {shown}: {len(names)} CPU devices"
        return Devices(name, "cpu", len(names), strategy, remote)


def _simulated() -> list[tf.config.LogicalDevice] | None:
    """Return the CPU devices that stand in for a TPU's cores, if any.

    A real host has one CPU device; several mean a simulated TPU.
    """
    devices = [device for device in tf.config.list_logical_devices("CPU") if f"/job:{_WORKER}/" in device.name]
    return devices if len(devices) > 1 else None
