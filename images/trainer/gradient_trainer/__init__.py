"""A TensorFlow training program: `python -m gradient_trainer`, or `train()` from Python."""

from .api import train
from .errors import TrainerError, TrainingStopped
from .options import TrainOptions
from .result import TrainResult

__all__ = ["TrainOptions", "TrainResult", "TrainerError", "TrainingStopped", "train"]
