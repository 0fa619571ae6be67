from collections.abc import Callable, Mapping
from typing import Any

import keras

Logs = Mapping[str, Any]


class Hooks(keras.callbacks.CallbackList):  # type: ignore[misc]  # Keras has no types
    """Calls a function after each execution, with values that are still on the device.

    Keras' own list of callbacks converts the values to Python numbers each time, which waits for the device.

    Args:
        after_steps: Takes the number of steps done since the start of `fit`, and the averages of the metrics over them.
        after_test_steps: Called after each execution of a validation.
    """

    def __init__(
        self, model: keras.Model, after_steps: Callable[[int, Logs], None], after_test_steps: Callable[[], None]
    ) -> None:
        super().__init__(add_history=True, model=model)  # fit returns the history
        self._after_steps, self._after_test_steps = after_steps, after_test_steps

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Call the function; `batch` is the number of the execution's last step."""
        self._after_steps(batch + 1, logs or {})

    def on_test_batch_end(self, batch: int, logs: Logs | None = None) -> None:  # noqa: ARG002 - Keras' signature
        self._after_test_steps()


def sync_variables(model: keras.Model) -> None:
    """Give the model's variables their present values, which JAX keeps elsewhere during a training."""
    if hasattr(model, "jax_state_sync"):
        model.jax_state_sync()
