"""A training program for image classifiers: `python -m gradient_trainer`, or `train()` from Python."""

from .api import find_learning_rate, train
from .errors import TrainerError, TrainingStopped
from .options import TrainOptions
from .outputs.result import TrainResult

__all__ = ["TrainOptions", "TrainResult", "TrainerError", "TrainingStopped", "find_learning_rate", "train"]
