"""The trainer's exceptions.

TrainerError
├── OptionsError            the options cannot be carried out; exit code 2
│   ├── UnknownNameError    no such model or data set
│   ├── DataSetError        a data set is missing or cannot be read
│   ├── OtherTrainingError  the output folder holds checkpoints of a different training
│   └── DamagedCheckpointsError  every checkpoint in the output folder is damaged
├── DeviceUnreachable       no TPU answers where one should be; exit code 75, "try again later"
├── BucketError             outputs cannot be copied to Cloud Storage; exit code 1
└── DivergedError           the loss is no longer a number; exit code 1
TrainingStopped             a signal ended the training; a SystemExit with 128 + its number
"""

import signal


class TrainerError(Exception):
    """A training cannot start or go on; the message has the remedy."""

    exit_code = 1


class OptionsError(TrainerError):
    """The options cannot be carried out."""

    exit_code = 2


class UnknownNameError(OptionsError):
    """No model or data set has this name."""


class DataSetError(OptionsError):
    """A data set was not found in any of the searched folders, or is damaged."""


class OtherTrainingError(OptionsError):
    """The checkpoints in the output folder belong to a training with other options."""


class DamagedCheckpointsError(OptionsError):
    """Every checkpoint in the output folder is damaged."""


class DeviceUnreachable(TrainerError):
    """The TPU that the environment names does not answer, or is not a TPU."""

    exit_code = 75


class BucketError(TrainerError):
    """Cloud Storage does not accept outputs, or does not return earlier ones."""


class DivergedError(TrainerError):
    """The loss became infinite or not a number."""


class TrainingStopped(SystemExit):
    """A signal ended the training after its checkpoint was written.

    It is a SystemExit, so that a program that calls `train` and catches nothing ends with the
    exit code the shell expects of a stopped program, and without a traceback.
    """

    def __init__(self, step: int, number: signal.Signals) -> None:
        super().__init__(128 + number)
        self.step = step
        self.signal = number
