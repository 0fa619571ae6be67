"""The work of a training step: floating-point operations, and bytes moved to and from the device's memory."""

import importlib
import math
from collections.abc import Iterator
from typing import Any

import keras
from keras import layers

TRAINING_PASSES = 3
"""A backward pass computes two products for each one of the forward pass: for the inputs and for the weights."""
OUTPUT_MOVES = 5
"""An output is written once and read in the next layer and in the backward pass; its gradient is written and read."""
WEIGHT_MOVES = 5  # a weight is read twice and written once; its gradient is written and read
_FLOPS_OF_MAC = 2
_FREE = (
    layers.BatchNormalization,
    layers.LayerNormalization,
    layers.GroupNormalization,
    layers.Normalization,
    layers.Dropout,
)
"""Layers with weights whose operations are few beside those of products."""


def multiply_adds(model: keras.Model) -> int | None:
    """Count the multiply-adds of convolutions and dense layers for one image; None if another layer has weights.

    Papers give this number, often as "FLOPs".
    """
    total = 0
    for layer, output in _outputs(model):
        if isinstance(layer, layers.Conv2D | layers.DepthwiseConv2D):
            # A position of an output channel is one product with each weight of that channel.
            total += math.prod(output.shape[1:3]) * math.prod(layer.kernel.shape)
        elif isinstance(layer, layers.Dense):
            total += math.prod(output.shape[1:-1]) * math.prod(layer.kernel.shape)
        elif getattr(layer, "weights", ()) and not isinstance(layer, _FREE):
            return None
    return total


def count_cost(model: keras.Model, batch_size: int) -> dict[str, Any] | None:
    """Count the work of a training step from the layers, as if none were fused; None if a layer is unknown.

    None also if there are no products, as the layers of a model with a `call()` of its own are not seen.
    """
    macs = multiply_adds(model)
    if not macs:
        return None
    outputs = sum(math.prod(output.shape[1:]) * _size(output.dtype) for _, output in _outputs(model))
    weights = sum(math.prod(weight.shape) * _size(weight.dtype) for weight in model.trainable_variables)
    slots = sum(math.prod(slot.shape) * _size(slot.dtype) for slot in model.optimizer.variables)
    return {
        "source": "counted",
        "flops": float(TRAINING_PASSES * _FLOPS_OF_MAC * macs * batch_size),
        "bytes": float(OUTPUT_MOVES * outputs * batch_size + WEIGHT_MOVES * weights + 2 * slots),
    }


def measure_cost(model: keras.Model, batch: tuple[Any, ...], batch_size: int) -> dict[str, Any] | None:
    """Return the work of a training step: by XLA's analysis of the compiled step with JAX, else counted."""
    if keras.backend.backend() != "jax":
        return count_cost(model, batch_size)
    jax = importlib.import_module("jax")
    parts = (
        model.trainable_variables,
        model.non_trainable_variables,
        model.optimizer.variables,
        model.metrics_variables,
    )
    state = tuple([variable.value for variable in variables] for variables in parts)
    analysis = jax.jit(model.train_step).lower(state, (*batch, None)).compile().cost_analysis()
    if isinstance(analysis, list):
        [analysis] = analysis
    if not analysis or "flops" not in analysis:
        return count_cost(model, batch_size)
    # XLA analyses the program of one device, which gets its share of the batch.
    devices = len(jax.devices())
    return {
        "source": "xla",
        "flops": float(analysis["flops"]) * devices,
        "bytes": float(analysis["bytes accessed"]) * devices,
    }


def _outputs(model: keras.Model) -> Iterator[tuple[Any, Any]]:
    """Yield each operation of a model, also of the models in it, with its output; of other models than graphs none."""
    # A sequential model is a graph inside.
    for operation in getattr(getattr(model, "_functional", None) or model, "operations", [model]):
        if isinstance(operation, keras.Model) and operation is not model:
            yield from _outputs(operation)
        else:
            for node in getattr(operation, "_inbound_nodes", ()):
                if node.input_tensors:
                    yield operation, node.outputs[0]


def _size(dtype: str) -> int:
    return 2 if "16" in dtype else 4
