import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from gradient_trainer.errors import DataSetError, OptionsError, OtherTrainingError
from gradient_trainer.outputs.checkpoints import Arrays
from gradient_trainer.recipes import Recipe

from .callbacks import Hooks, sync_variables
from .devices import Devices
from .optimization import Rate, add_weight_decay, make_optimizer

LOSS, ACCURACY = "cross_entropy", "accuracy"
_XLA = {"on": True, "off": False}


class Learner:
    """Trains and evaluates a model by Keras' own loops."""

    def __init__(self, build: Callable[[], keras.Model], devices: Devices) -> None:
        self.devices = devices
        with devices.scope():
            self.model = build()

    def compile(self, recipe: Recipe, rate: Rate | float, *, xla: str = "auto", steps_per_execution: int = 1) -> None:
        # On a CPU TensorFlow's own kernels are as fast, and XLA takes long to compile them.
        without = self.devices.kind == "cpu" and keras.backend.backend() == "tensorflow"
        compiled = _XLA.get(xla, False if without else "auto")
        add_weight_decay(self.model, recipe)
        with self.devices.scope():
            self.model.compile(
                make_optimizer(recipe, rate),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                # Weighted, so that the padding of an evaluation's last batch does not count.
                weighted_metrics=[
                    keras.metrics.SparseCategoricalCrossentropy(LOSS, from_logits=True),
                    keras.metrics.SparseCategoricalAccuracy(ACCURACY),
                ],
                jit_compile=compiled,
                steps_per_execution=steps_per_execution,
            )
            self.model.optimizer.build(self.model.trainable_variables)

    def fit(self, batches: tf.data.Dataset, hooks: Hooks) -> None:
        with _errors_of_data():
            self.model.fit(batches, shuffle=False, verbose=0, callbacks=hooks)

    def evaluate(self, batches: tf.data.Dataset, after_steps: Callable[[], None] = lambda: None) -> tuple[float, float]:
        """Return loss and accuracy, each example counted once."""
        hooks = Hooks(self.model, lambda *_: None, after_steps)
        with _errors_of_data():
            values = self.model.evaluate(batches, verbose=0, callbacks=hooks, return_dict=True)
        return float(values[LOSS]), float(values[ACCURACY])

    def arrays(self) -> Arrays:
        """Return every variable by name, including those of the optimizer and of random layers."""
        sync_variables(self.model)
        return {name: keras.ops.convert_to_numpy(variable) for name, variable in self._variables().items()}

    def load(self, arrays: Arrays) -> None:
        variables = self._variables()
        shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
        if shapes != {name: array.shape for name, array in arrays.items()}:
            raise OtherTrainingError(
                "the checkpoint's variables are not those of the model, which has changed since; "
                "choose another --output, or start from the beginning with --restart"
            )
        for name, variable in variables.items():
            variable.assign(arrays[name])

    def _variables(self) -> dict[str, Any]:
        every = [*self.model.variables, *self.model.optimizer.variables]
        # Two layers of a model may share a name, hence the number.
        return {f"{number:04d}/{variable.path}": variable for number, variable in enumerate(every)}


@contextmanager
def _errors_of_data() -> Iterator[None]:
    """Raise what the input pipeline reports as the data set's error, as such."""
    try:
        yield
    except tf.errors.OpError as error:
        match = re.search(rf"{DataSetError.__name__}: (.*)", str(error))
        if match is None:
            raise
        raise DataSetError(match[1]) from error


def build_model(
    name: str, build: Callable[..., keras.Model], image_shape: tuple[int, int, int], classes: int
) -> keras.Model:
    try:
        model = build(image_shape, classes)
        if not hasattr(model, "operations"):
            # A graph around it converts the images to its input's type.
            images = keras.Input(image_shape)
            model = keras.Model(images, model(images))
    except (ValueError, TypeError, RuntimeError, tf.errors.OpError) as error:
        shape = "x".join(map(str, image_shape))
        reason = str(error).splitlines()[0][:200]
        raise OptionsError(f"--model {name} cannot be built for images of {shape}: {reason}") from error
    return model
