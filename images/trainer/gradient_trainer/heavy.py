"""What needs TensorFlow, which is imported here and not before: that takes seconds."""

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
    """Carry out a training.

    Args:
        options: What was asked for.
        data: The examples.
        output: The folder that outputs are made in.
        url: Where in Cloud Storage they go; None: they stay in the folder.
        stop: Says whether to end early.
        began: When the user's call came, as time.perf_counter() tells it.

    Raises:
        TrainerError: It cannot start or go on.
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
        trained: What that came to.
        data: The examples.
        output: The folder that holds the model.
        url: Where in Cloud Storage outputs go.
        began: When the user's call came.

    Raises:
        TrainerError: It cannot be tested.
    """
    evaluation, destination = _loaded("evaluation", "destination")
    result: TrainResult = evaluation.evaluate(trained, data, output, destination.Destination(output, url), began)
    return result


def _loaded(*names: str) -> list[Any]:
    with quiet_tensorflow():
        return [importlib.import_module(f"{__package__}.{name}") for name in names]
