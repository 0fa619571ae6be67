"""Measures the training steps of any program, so that a comparison can say what bounds it and predict it elsewhere."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from gradient_jobs.metrics import log

_WARM_UP_STEPS = 5
_COUNTED_STEP = 3
_MIN_SECONDS, _MAX_SECONDS, _SHARE_OF_RUN = 0.2, 10.0, 0.05
_BITS_OF_BYTE, _SINGLE_BITS = 8, 32
_JAX_BITS = {"bf16": 16, "f16": 16, "f64": 64}
_JAX_PRODUCT = re.compile(r"stablehlo\.(?:dot_general|convolution).*?tensor<(?:\d+x)*(?P<type>\w+)>")


def watch(trained: Any, *, batch_size: int | None = None) -> Any:  # noqa: ANN401  of optional packages
    """Record the steps of a training run, their pace and the work of one step as metrics of this job.

    Use `watch(model)` for a PyTorch module, `step = watch(jax.jit(step))` for JAX, and
    `model.fit(..., callbacks=[watch(model, batch_size=64)])` for Keras.

    Metrics: `step` with `steps_per_second`, at first several times a second and later every 10 seconds;
    `startup_seconds`; `flops_per_step` and `bytes_per_step`, `compute_bits` and `replicas`; with PyTorch on a GPU
    `peak_device_bytes`, with JAX `compile_seconds`. With several `torch.distributed` processes, the first one records
    for all.

    For PyTorch, each step of the module's optimizer is a step. The third step is counted operation by operation:
    products by PyTorch's own formulas, and the bytes of all operations as if none were fused. JAX's first step is
    analysed by XLA. Keras layers are counted by `gradient_trainer` if it can be imported: it is in the image `trainer`
    and among the default packages of the process backend.

    Args:
        trained: What is trained.
        batch_size: Examples per step; required to count the work of Keras models.

    Returns:
        The same module, a function that calls the step, or a Keras callback.

    Raises:
        TypeError: It is none of these.
    """
    torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
    if keras is not None and isinstance(trained, keras.Model):
        return _keras_callback(keras, trained, batch_size)
    if torch is not None and isinstance(trained, torch.nn.Module):
        _ModuleWatch(torch, trained)
        return trained
    if callable(trained) and hasattr(trained, "lower"):
        return _watch_jax_step(trained)
    kinds = "a torch.nn.Module, a keras.Model or a function compiled by jax.jit"
    raise TypeError(f"watch() takes {kinds}, not {type(trained).__name__}")


class Steps:
    """Counts training steps, and records their pace."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}  # recorded with the next report
        self._count, self._began = 0, time.monotonic()
        self._since: tuple[int, float] | None = None
        atexit.register(self.report)

    def begin(self) -> None:
        """Record the time before the training, unless it is recorded."""
        if sys.platform == "linux":
            self.values.setdefault("startup_seconds", _seconds_of_this_process())

    def count(self, steps: int = 1) -> int:
        """Count steps; return how many there were so far."""
        self._count += steps
        if self._count == steps:
            self.begin()
        if self._count < _WARM_UP_STEPS:
            return self._count
        now = time.monotonic()
        if self._since is None:
            self._since = self._count, now
        elif now - self._since[1] >= min(max(_MIN_SECONDS, (now - self._began) * _SHARE_OF_RUN), _MAX_SECONDS):
            self.report()
        return self._count

    def report(self) -> None:
        """Record the pace since the last report, and the values."""
        values, now = self.values, time.monotonic()
        if self._since is not None and self._count > self._since[0]:
            values["steps_per_second"] = (self._count - self._since[0]) / (now - self._since[1])
            self._since = self._count, now
        if values:
            log(step=self._count, **values)
            self.values = {}


def _seconds_of_this_process() -> float:
    """Return the time since this process began, from proc(5): the 22nd field, without the program's name."""
    with open("/proc/self/stat", "rb") as file:
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class _ModuleWatch:
    """Watches the training of a module of PyTorch by a hook that runs after each step of its optimizers."""

    def __init__(self, torch: Any, module: Any) -> None:  # noqa: ANN401  an optional package
        self._torch, self._steps, self._counting = torch, Steps(), contextlib.ExitStack()
        self._counter: Any = None
        self._parameters = {id(parameter) for parameter in module.parameters()}
        importlib.import_module("torch.optim.optimizer").register_optimizer_step_post_hook(self._after_step)

    def _after_step(self, optimizer: Any, _arguments: Any, _options: Any) -> None:  # noqa: ANN401 - as PyTorch calls it
        groups, torch = optimizer.param_groups, self._torch
        if not any(id(parameter) in self._parameters for group in groups for parameter in group["params"]):
            return
        grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
        if grouped and torch.distributed.get_rank():
            return
        self._counting.close()
        if self._counter is not None:
            log(**self._counter.metrics(torch.distributed.get_world_size() if grouped else 1))
            self._counter = None
        if self._steps.count() == _COUNTED_STEP - 1:
            # A compiled module runs its operations one by one meanwhile.
            self._counting.enter_context(torch.compiler.set_stance("force_eager"))
            self._counter = self._counting.enter_context(_counting_mode(torch)())
        elif torch.cuda.is_initialized():
            self._steps.values["peak_device_bytes"] = torch.cuda.max_memory_allocated()


@functools.cache
def _counting_mode(torch: Any) -> Any:  # noqa: ANN401 - of optional packages
    """Return a mode of PyTorch that sees each operation, also those of the backward pass and of the optimizer."""
    base: Any = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
    tree_leaves = importlib.import_module("torch.utils._pytree").tree_leaves
    flop_registry = importlib.import_module("torch.utils.flop_counter").flop_registry

    class Counter(base):  # type: ignore[misc]  # a base of an optional package
        def __init__(self) -> None:
            super().__init__()
            self.flops: dict[int, int] = {}  # by size of the numbers in bytes
            self.bytes = 0

        def __torch_dispatch__(self, operation: Any, _types: Any, arguments: Any, options: Any = None) -> Any:  # noqa: ANN401 - as PyTorch calls it
            options = options or {}
            result = operation(*arguments, **options)
            tensors = [leaf for leaf in tree_leaves((arguments, options, result)) if isinstance(leaf, torch.Tensor)]
            if not operation.is_view:
                self.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            formula = flop_registry.get(operation.overloadpacket)
            if formula is not None:
                size = tensors[0].element_size()
                self.flops[size] = self.flops.get(size, 0) + formula(*arguments, **options, out_val=result)
            return result

        def metrics(self, replicas: int) -> dict[str, float]:
            bits = _BITS_OF_BYTE * max(self.flops, key=self.flops.__getitem__, default=_SINGLE_BITS // _BITS_OF_BYTE)
            work: dict[str, float] = {
                "flops_per_step": sum(self.flops.values()) * replicas,
                "bytes_per_step": self.bytes * replicas,
            }
            return work | {"compute_bits": bits, "replicas": replicas}

    return Counter


def _watch_jax_step(step: Any) -> Callable[..., Any]:  # noqa: ANN401 - of optional packages
    steps, compiled = Steps(), list[Any]()

    @functools.wraps(step)
    def watched(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - of optional packages
        if not compiled:
            steps.begin()
            began = time.monotonic()
            lowered = step.lower(*arguments, **options)
            compiled.append(lowered.compile())
            log(compile_seconds=time.monotonic() - began, **_jax_work(lowered, compiled[0]))
        steps.count()
        try:
            return compiled[0](*arguments, **options)
        except TypeError:  # static arguments, or other shapes
            return step(*arguments, **options)

    return watched


def _jax_work(lowered: Any, compiled: Any) -> dict[str, float]:  # noqa: ANN401 - of optional packages
    """Return the work of a compiled step: XLA analyses the program of one device, which does its share of it."""
    analysis = compiled.cost_analysis() or {}
    analysis = analysis[0] if isinstance(analysis, list) else analysis
    shardings = sys.modules["jax"].tree.leaves(compiled.input_shardings)
    replicas = max((len(sharding.device_set) for sharding in shardings), default=1)
    types = _JAX_PRODUCT.findall(lowered.as_text())
    bits = _JAX_BITS.get(max(types, key=types.count, default=""), _SINGLE_BITS)
    work = {"flops_per_step": analysis.get("flops", 0.0), "bytes_per_step": analysis.get("bytes accessed", 0.0)}
    counted = {name: value * replicas for name, value in work.items() if value > 0}
    return counted | {"compute_bits": bits, "replicas": replicas}


def _keras_callback(keras: Any, model: Any, batch_size: int | None) -> Any:  # noqa: ANN401 - of optional packages
    class StepsCallback(keras.callbacks.Callback):  # type: ignore[misc]  # a base of an optional package
        _last = -1

        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002 - as Keras calls it
            self._steps = Steps()
            self._steps.begin()
            if batch_size is not None:
                log(**_keras_work(model, batch_size))

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ANN401, ARG002 - as Keras calls it
            # Keras calls once for several steps (steps_per_execution), and counts anew in each epoch.
            self._steps.count(batch - self._last if batch > self._last else batch + 1)
            self._last = batch

        def on_train_end(self, logs: Any = None) -> None:  # noqa: ANN401, ARG002 - as Keras calls it
            self._steps.report()

    return StepsCallback()


def _keras_work(model: Any, batch_size: int) -> dict[str, float]:  # noqa: ANN401 - of optional packages
    try:
        work = importlib.import_module("gradient_trainer.measurement.cost").count_cost(model, batch_size)
        cause = "the model has layers other than convolutions and dense layers, or its own call()"
    except ImportError:
        work = None
        cause = "gradient_trainer is not installed; the image `trainer` and the default packages include it"
    if work is None:
        advice = "Count it and report it with gradient_jobs.log(step=1, flops_per_step=..., bytes_per_step=...)"
        print(f"gradient_jobs: the work of a step is not counted: {cause}. {advice}", file=sys.stderr)
        return {"replicas": 1}
    bits = re.search(r"16|64", model.dtype_policy.compute_dtype)
    return {
        "flops_per_step": work["flops"],
        "bytes_per_step": work["bytes"],
        "compute_bits": int(bits[0]) if bits else _SINGLE_BITS,
        "replicas": 1,
    }
