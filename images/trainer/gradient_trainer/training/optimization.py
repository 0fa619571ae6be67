import math
from typing import Any, TypeAlias

import keras
from keras import ops

from gradient_trainer.errors import OptionsError
from gradient_trainer.recipes import Recipe, span_steps

MOMENTUM = 0.9
ONE_CYCLE_MOMENTUM = 0.95, 0.85  # where the rate is lowest, and at its peak: fastai's `moms`
_ONE_CYCLE_END = 1e-5  # share of the peak: fastai's `div_final`
START = {"cosine": 0.1, "one-cycle": 1 / 25}
"""The share of the peak at which the warm-up begins; of the other schedules 0."""

Rate: TypeAlias = keras.optimizers.schedules.LearningRateSchedule


class WarmUp(Rate):  # type: ignore[misc]  # Keras has no types
    """A learning rate that rises before another schedule begins, or a momentum that falls.

    Args:
        then: The schedule of the steps after the warm-up, counted from 0.
        cosine: Rise along a cosine, not a line.
    """

    def __init__(self, then: Rate, steps: int, start: float, peak: float, *, cosine: bool = False) -> None:
        self.then, self.steps, self.start, self.peak, self.cosine = then, steps, start, peak, cosine

    def __call__(self, step: Any) -> Any:  # noqa: ANN401 - a tensor of any backend
        """Return the learning rate of a step, counted from 0."""
        number = ops.cast(step, "float32")
        share = ops.minimum(number / max(1, self.steps), 1.0)
        if self.cosine:
            share = (1 - ops.cos(math.pi * share)) / 2
        after = self.then(ops.maximum(number - self.steps, 0.0))
        return ops.where(number < self.steps, self.start + (self.peak - self.start) * share, after)

    def get_config(self) -> dict[str, Any]:
        return dict(vars(self))


def make_schedule(recipe: Recipe, per_epoch: int, total: int) -> WarmUp:
    """Return the learning rate of each step.

    `cosine` and `one-cycle` rise and then fall along a cosine to 0, one-cycle (Smith 2018, in the form of fastai) also
    rises along one, and its momentum mirrors it; `linear` falls along a line to 0; `piecewise` falls at the milestones;
    `constant` does not fall.
    """
    peak = float(recipe.learning_rate)  # Keras would compute with integers if it got one
    # A warm-up in percent is at least one step; one of none is none.
    warm_up = span_steps(recipe.warm_up, per_epoch, total) or int(
        recipe.warm_up.endswith("%") and recipe.warm_up != "0%"
    )
    if warm_up > total:
        raise OptionsError(
            f"--warm-up {recipe.warm_up} is {warm_up} steps, more than the training's {total}; shorten it"
        )
    then = _falling(recipe, peak, warm_up, per_epoch, total)
    start = peak * START.get(recipe.schedule, 0.0)
    return WarmUp(then, warm_up, start, peak, cosine=recipe.schedule == "one-cycle")


def _falling(recipe: Recipe, peak: float, warm_up: int, per_epoch: int, total: int) -> Rate:
    schedules, falling = keras.optimizers.schedules, max(1, total - warm_up)
    if recipe.schedule == "piecewise":
        steps = [span_steps(span, per_epoch, total) for span in recipe.milestones.split(",")]
        if steps != sorted(set(steps)) or steps[0] <= warm_up:
            raise OptionsError(
                f"--milestones {recipe.milestones} must rise, and come after the warm-up of {warm_up} steps"
            )
        rates = [peak * recipe.milestone_factor**passed for passed in range(len(steps) + 1)]
        # Keras' boundaries are the last steps of their rate.
        return schedules.PiecewiseConstantDecay([float(step - warm_up - 1) for step in steps], rates)
    if recipe.schedule == "constant":
        return schedules.PolynomialDecay(peak, falling, end_learning_rate=peak)
    if recipe.schedule == "linear":
        return schedules.PolynomialDecay(peak, falling, end_learning_rate=0.0)
    return schedules.CosineDecay(peak, falling, alpha=_ONE_CYCLE_END if recipe.schedule == "one-cycle" else 0.0)


def make_momentum(recipe: Recipe, rate: Rate | float) -> WarmUp | None:
    """Return the momentum of each step if it is not constant: that of one-cycle falls while the rate rises."""
    if recipe.schedule != "one-cycle" or not isinstance(rate, WarmUp):
        return None
    high, low = ONE_CYCLE_MOMENTUM
    then = keras.optimizers.schedules.CosineDecay(low, rate.then.decay_steps, alpha=high / low)
    return WarmUp(then, rate.steps, high, low, cosine=True)


def half_weights() -> keras.dtype_policies.DTypePolicyMap:
    """Return the policy of weights in half precision, but for those of normalization: level O2 of NVIDIA's Apex."""
    normalization = {".*norm.*": keras.dtype_policies.DTypePolicy("mixed_float16")}
    return keras.dtype_policies.DTypePolicyMap("float16", normalization)


def make_optimizer(recipe: Recipe, rate: Rate | float) -> keras.optimizers.Optimizer:
    """Return the optimizer; the weight decay of SGD is in the gradient, see `add_weight_decay`.

    Under the policy of `half_weights` it has masters, and scales the loss.
    """
    cycle = make_momentum(recipe, rate)
    form, options = CycledAdam if cycle else keras.optimizers.Adam, {"weight_decay": recipe.weight_decay or None}
    if recipe.optimizer != "adam":
        keras_form = CycledSGD if cycle else keras.optimizers.SGD
        form = TorchSGD if recipe.optimizer.startswith("torch-") else keras_form
        options = {"momentum": MOMENTUM, "nesterov": recipe.optimizer.endswith("nesterov")}
    masters = isinstance(keras.config.dtype_policy(), keras.dtype_policies.DTypePolicyMap)
    optimizer = (type("Masters", (_Masters, form), {}) if masters else form)(rate, **options)
    if cycle:
        optimizer.cycle = cycle
    return keras.optimizers.LossScaleOptimizer(optimizer) if masters else optimizer


class _Masters:
    """Part of an optimizer that updates a float32 master of each weight and copies it to the weight.

    All of its variables are float32.
    """

    def build(self, weights: Any) -> None:  # noqa: ANN401 - Keras' variables, as below
        super().build(weights)  # type: ignore[misc]  # of the optimizer, as below
        self.masters = [self.add_variable_from_reference(weight, "master") for weight in weights]  # type: ignore[attr-defined]  # a method of Keras' optimizer
        for index, (master, weight) in enumerate(zip(self.masters, weights, strict=True)):
            master.assign(weight)
            self._trainable_variables_indices[self._var_key(master)] = index  # type: ignore[attr-defined]  # an attribute of Keras' optimizer

    def add_variable(self, *given: Any, **options: Any) -> keras.Variable:  # noqa: ANN401 - as Keras calls it
        return super().add_variable(*given, **options | {"dtype": "float32"})  # type: ignore[misc]  # Keras' classes have no types

    def update_step(self, gradient: Any, weight: Any, learning_rate: Any) -> None:  # noqa: ANN401 - as Keras calls it
        master = self.masters[self._get_variable_index(weight)]  # type: ignore[attr-defined]  # a method of Keras' optimizer
        super().update_step(gradient, master, learning_rate)  # type: ignore[misc]  # Keras' classes have no types
        self.assign(weight, ops.cast(master, weight.dtype))  # type: ignore[attr-defined]  # a method of Keras' optimizer

    def _apply_weight_decay(self, weights: Any) -> None:  # noqa: ANN401, ARG002 - as Keras calls it
        super()._apply_weight_decay(self.masters)  # type: ignore[misc]  # Keras' classes have no types


class CycledAdam(keras.optimizers.Adam):  # type: ignore[misc]  # Keras has no types
    """Adam whose first beta, its momentum, changes from step to step."""

    cycle: WarmUp
    beta_1: Any

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:  # noqa: ANN401 - tensors of any backend
        constant = self.beta_1  # which a saved model names
        self.beta_1 = ops.cast(self.cycle(self.iterations), variable.dtype)
        super().update_step(gradient, variable, learning_rate)
        self.beta_1 = constant


class CycledSGD(keras.optimizers.SGD):  # type: ignore[misc]  # Keras has no types
    """SGD whose momentum may change from step to step, in the form of Keras: it holds the learning rate."""

    # Keras' own asks whether the momentum is 0, which no tensor answers while a step is traced.
    cycle: WarmUp | None = None
    includes_rate = True

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:  # noqa: ANN401 - as Keras calls it
        rate, gradient = ops.cast(learning_rate, variable.dtype), ops.cast(gradient, variable.dtype)
        factor = ops.cast(self.cycle(self.iterations) if self.cycle else self.momentum, variable.dtype)
        momentum = self.momentums[self._get_variable_index(variable)]
        added = -rate * gradient if self.includes_rate else gradient
        summed = factor * momentum + added
        self.assign(momentum, summed)
        step = added + factor * summed if self.nesterov else summed
        self.assign_add(variable, step if self.includes_rate else -rate * step)


class TorchSGD(CycledSGD):
    """SGD whose momentum is a sum of gradients, without the learning rate, as in PyTorch and in the papers."""

    includes_rate = False


def add_weight_decay(model: keras.Model, recipe: Recipe) -> None:
    """Add the weight decay of SGD to the gradient of each weight, as the papers have it.

    It is a penalty of the loss, of which Keras gives each replica its share; so it is counted once, not once for each.
    """
    if recipe.weight_decay and recipe.optimizer != "adam":
        for weight in model.trainable_variables:
            weight.regularizer = keras.regularizers.L2(recipe.weight_decay / 2)
