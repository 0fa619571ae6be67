"""The learning-rate finder: trains with a rate that rises at each step, and proposes the one of the steepest fall.

Source: Smith, "Cyclical Learning Rates for Training Neural Networks" (arXiv:1506.01186), section 3.3; the bounds, the
smoothing and the end are those of fastai.
"""

import functools
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import keras
import numpy as np

from gradient_trainer.datasets import DataSet
from gradient_trainer.errors import DivergedError
from gradient_trainer.options import TrainOptions
from gradient_trainer.registry import MODELS

from .batches import Batches, split_validation
from .callbacks import Hooks, Logs
from .devices import find_devices
from .learner import LOSS, Learner, build_model
from .pipeline import Examples, training_batches
from .training import prepare_runtime

LOWEST, HIGHEST = 1e-6, 10.0
STEPS = 100
FILE_NAME = "learning_rates.json"
_SMOOTHING = 0.9
_DIVERGED = 4.0  # the search ends where the loss is this many times its lowest
_FEWEST = 10


@dataclass(frozen=True)
class LearningRates:
    suggestion: float
    rates: list[float]
    losses: list[float]


class Finder:
    """A search for a learning rate, on one device: several would each see another batch size.

    `options`: the options of the training to find a rate for; `steps` is the number of rates (STEPS).
    """

    def __init__(self, options: TrainOptions, data: DataSet) -> None:
        devices = find_devices(1)
        self._recipe = options.scaled_recipe(1)
        prepare_runtime(options, devices.precision(options.precision))
        examples, _ = split_validation(len(data.x_train), options.validation_split)
        batches = Batches(examples, self._recipe.batch_size, options.seed)
        self._steps = options.steps or STEPS
        self._batches = training_batches(
            Examples(data.x_train, data.y_train, remote=False), batches, 0, self._steps, self._recipe.augmentations
        )
        build = functools.partial(build_model, options.model, MODELS.get(options.model), data.image_shape, data.classes)
        self._learner = Learner(build, devices)
        self._factor = (HIGHEST / LOWEST) ** (1 / max(1, self._steps - 1))
        schedule = keras.optimizers.schedules.ExponentialDecay(LOWEST, 1, self._factor)
        self._learner.compile(self._recipe, schedule, xla=options.xla)
        print(
            f"search    {self._steps} rates from {LOWEST:g} to {HIGHEST:g}, on one device: {devices.name}", flush=True
        )
        self._sum = self._average = 0.0
        self._losses: list[float] = []

    def run(self, output: Path) -> LearningRates:
        """Search, and write the file of rates and losses."""
        self._learner.fit(self._batches, Hooks(self._learner.model, self._after_steps, lambda: None))
        if len(self._losses) < _FEWEST:
            raise DivergedError(
                f"the loss was not finite, or rose, after {len(self._losses)} of the lowest rates; check model and data"
            )
        rates = [LOWEST * self._factor**number for number in range(len(self._losses))]
        slopes = np.gradient(self._losses)
        rates_found = LearningRates(float(f"{rates[int(np.argmin(slopes))]:.2g}"), rates, self._losses)
        (output / FILE_NAME).write_text(json.dumps(asdict(rates_found)) + "\n", encoding="utf-8")
        self._print(rates_found, output)
        return rates_found

    def _after_steps(self, done: int, logs: Logs) -> None:
        total = float(logs[LOSS]) * done
        loss, self._sum = total - self._sum, total
        self._average = _SMOOTHING * self._average + (1 - _SMOOTHING) * loss
        smoothed = self._average / (1 - _SMOOTHING**done)
        if not math.isfinite(smoothed) or (self._losses and smoothed > _DIVERGED * min(self._losses)):
            self._learner.model.stop_training = True
        else:
            self._losses.append(smoothed)

    def _print(self, result: LearningRates, output: Path) -> None:
        for rate, loss in list(zip(result.rates, result.losses, strict=True))[:: max(1, len(result.rates) // 15)]:
            print(f"rate {rate:.2e}  loss {loss:.4f}")
        print(f"\nsuggestion     --learning-rate {result.suggestion:g}, for {self._recipe.optimizer}")
        print(f"outputs        {output / FILE_NAME}", flush=True)
