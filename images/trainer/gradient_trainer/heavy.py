"""Loads the parts that need TensorFlow, whose import takes seconds, only when they are used."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import TrainOptions
from .quiet import quiet_tensorflow
from .result import TrainResult
from .stopping import StopRequest

if TYPE_CHECKING:
    from .datasets import DataSet


def run_training(
    options: TrainOptions, data: "DataSet", output: Path, url: str | None, stop: StopRequest, began: float
) -> TrainResult:
    """Run a training.

    Args:
        options: The user's options.
        data: The examples.
        output: The folder that outputs are written to.
        url: `gs://…` that outputs are copied to; None: they stay in the folder.
        stop: Tells whether to end early.
        began: Time of the user's call, from time.perf_counter().

    Raises:
        TrainerError: The training cannot start or continue.
        TrainingStopped: A signal ended it, after its checkpoint was written.
    """
    training, destination = _loaded("training", "destination")
    result: TrainResult = training.Training(options, data, output, destination.Destination(output, url), stop).run(
        began
    )
    return result


def run_evaluation(trained: TrainResult, data: "DataSet", output: Path, url: str | None, began: float) -> TrainResult:
    """Test a model that another process trained.

    Args:
        trained: The result of that training.
        data: The examples.
        output: The folder that holds the model.
        url: `gs://…` that outputs are copied to.
        began: Time of the user's call.

    Raises:
        TrainerError: The model cannot be tested.
    """
    evaluation, destination = _loaded("evaluation", "destination")
    result: TrainResult = evaluation.evaluate(trained, data, output, destination.Destination(output, url), began)
    return result


def _loaded(*names: str) -> list[Any]:
    with quiet_tensorflow():
        return [importlib.import_module(f"{__package__}.{name}") for name in names]
