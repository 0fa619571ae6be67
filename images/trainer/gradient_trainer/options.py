import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .errors import OptionsError

MAX_SEED = 2**32 - 1


def _flag(group: str, metavar: str, meaning: str) -> dict[str, str]:
    return {"group": group, "metavar": metavar, "help": meaning}


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """All options of a training; each field is a flag of the command line.

    Raises:
        OptionsError: A value is outside its range.
    """

    model: str = field(
        default="mnist-cnn", metadata=_flag("what", "NAME", "the model: a name listed below, or a .py file of your own")
    )
    data: str = field(
        default="auto", metadata=_flag("what", "NAME", "the data set: a name listed below, or a .py file of your own")
    )
    epochs: int | None = field(
        default=None, metadata=_flag("how", "N", "passes over the training examples (what suits the data set)")
    )
    batch_size: int = field(default=128, metadata=_flag("how", "N", "examples in one step"))
    learning_rate: float = field(
        default=0.001,
        metadata=_flag(
            "how", "RATE", "the peak: reached over the first tenth of the steps, then down a cosine to zero"
        ),
    )
    validation_split: float = field(
        default=0.05,
        metadata=_flag("how", "SHARE", "share of the training examples used for validation after each epoch"),
    )
    seed: int = field(default=1, metadata=_flag("how", "N", "fixes weights, dropout and the order of the examples"))
    deterministic: bool = field(
        default=True,
        metadata=_flag("how", "", "the same seed gives the same numbers, bit for bit; switched off it may be faster"),
    )
    scale_by_replicas: bool = field(
        default=False,
        metadata=_flag("how", "", "multiply batch size and learning rate by the number of devices in use"),
    )
    evaluate_in_subprocess: bool = field(
        default=False,
        metadata=_flag("how", "", "train in a subprocess, and test the model in a second one: memory is free between"),
    )
    connect_timeout: float = field(
        default=60.0, metadata=_flag("how", "SECONDS", "how long the TPU of $TPU_GRPC_URL may take to answer")
    )
    data_dir: str | Path | None = field(default=None, metadata=_flag("where", "DIR", "look for data sets here first"))
    output: str | Path | None = field(
        default=None,
        metadata=_flag(
            "where",
            "DIR",
            "where outputs go, also gs://… ($TPU_MODEL_DIR if that is; else $GRADIENT_ARTIFACTS_DIR, ./artifacts)",
        ),
    )
    restart: bool = field(
        default=False,
        metadata=_flag("where", "", "start from the beginning, even if the output folder has checkpoints"),
    )
    log_steps: int = field(default=50, metadata=_flag("where", "N", "print and record progress every N steps"))
    checkpoint_steps: int = field(
        default=200, metadata=_flag("where", "N", "save a checkpoint every N steps, in addition to each epoch's")
    )

    def __post_init__(self) -> None:
        counts = ("batch_size", "log_steps", "checkpoint_steps") + (("epochs",) if self.epochs is not None else ())
        for name in counts:
            self._require(name, "must be 1 or more", valid=getattr(self, name) >= 1)
        self._require("learning_rate", "must be above 0, such as 0.001", valid=0 < self.learning_rate < math.inf)
        self._require("connect_timeout", "must be above 0", valid=0 < self.connect_timeout < math.inf)
        self._require("validation_split", "must lie between 0 and 1, such as 0.05", valid=0 < self.validation_split < 1)
        self._require("seed", f"must lie between 0 and {MAX_SEED}", valid=0 <= self.seed <= MAX_SEED)

    def _require(self, name: str, rule: str, *, valid: bool) -> None:
        if not valid:
            raise OptionsError(f"--{name.replace('_', '-')} {rule}; it is {getattr(self, name)}")

    def as_json(self) -> dict[str, Any]:
        """Return the options as plain JSON values, by field name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def scaled(self, replicas: int) -> tuple[int, float]:
        """Return batch size and peak learning rate for this number of replicas.

        Raises:
            OptionsError: The batch size is not divisible by the number of replicas.
        """
        factor = replicas if self.scale_by_replicas else 1
        batch_size = self.batch_size * factor
        if batch_size % replicas:
            raise OptionsError(
                f"--batch-size {batch_size} cannot be divided over {replicas} devices; choose a multiple of {replicas}"
            )
        return batch_size, self.learning_rate * factor

    def output_url(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """Return the `gs://…` for every output; None if outputs stay on this machine."""
        chosen = str(self.output or environ.get("TPU_MODEL_DIR") or "")
        return chosen if chosen.startswith("gs://") else None

    def output_folder(self, environ: Mapping[str, str] = os.environ, default: Path = Path("/artifacts")) -> Path:
        """Create and return the folder for every output.

        Raises:
            OptionsError: The folder cannot be created or written to.
        """
        chosen = self.output or environ.get("GRADIENT_ARTIFACTS_DIR")
        folder = Path(chosen) if chosen else default if default.is_dir() else Path("artifacts")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionsError(f"--output {folder} cannot be made: {error.strerror}; choose another folder") from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise OptionsError(f"--output {folder} cannot be written to; choose another folder")
        return folder.absolute()

    def data_folders(self, environ: Mapping[str, str] = os.environ) -> list[Path]:
        """Return the folders that are searched for data sets, in order."""
        storage = environ.get("GRADIENT_STORAGE_DIR")
        folders = [
            Path(self.data_dir) if self.data_dir else None,
            Path(storage) / "datasets" if storage else None,
            Path("/storage/datasets"),
            Path("~/.keras/datasets").expanduser(),
        ]
        return list(dict.fromkeys(folder.absolute() for folder in folders if folder is not None))
