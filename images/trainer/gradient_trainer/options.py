import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import OptionsError
from .recipes import AUGMENTATIONS, NO_AUGMENTATION, OPTIMIZERS, RECIPES, SCHEDULES, Recipe, check_span

REMOTE_STEPS_PER_EXECUTION = 25  # a step on another machine would wait for the network longer than a TPU computes
MAX_SEED = 2**32 - 1
MASTERS = "float16_masters"
"""Weights in half precision, each with a master in single precision."""
PRECISIONS = ("float32", "mixed_float16", "mixed_bfloat16", "float16", MASTERS, "auto")
BACKENDS = {"tensorflow": "tensorflow", "jax": "jax", "torch": "torch"}
"""Keras' backends, and the package that each needs."""
XLA = ("auto", "on", "off")
DECODE = ("once", "always")


def _flag(group: str, metavar: str, meaning: str, choices: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"group": group, "metavar": metavar, "help": meaning, "choices": choices}


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """All options of a training; each field is a flag of the command line.

    A hyper-parameter that is None has the value of the model's recipe (`recipes.py`).
    """

    model: str = field(
        default="mnist-cnn", metadata=_flag("what", "NAME", "the model: a name listed below, or a .py file of your own")
    )
    data: str = field(
        default="auto",
        metadata=_flag(
            "what", "NAME", "the data set: a name listed below, a folder, a .zip, or a .py file of your own"
        ),
    )
    image_size: int | None = field(
        default=None, metadata=_flag("what", "N", "resize and crop the images of a folder to N x N pixels")
    )
    epochs: int | None = field(
        default=None, metadata=_flag("how", "N", "passes over the training examples (what suits model and data set)")
    )
    steps: int | None = field(default=None, metadata=_flag("how", "N", "steps, in place of --epochs"))
    batch_size: int | None = field(default=None, metadata=_flag("how", "N", "examples in one step (128; see --list)"))
    optimizer: str | None = field(
        default=None,
        metadata=_flag("how", "NAME", f"{', '.join(OPTIMIZERS)}: Adam, or SGD with momentum 0.9 (adam)", OPTIMIZERS),
    )
    learning_rate: float | None = field(
        default=None, metadata=_flag("how", "RATE", "the peak of the schedule (0.001; see --list)")
    )
    schedule: str | None = field(
        default=None, metadata=_flag("how", "NAME", f"{', '.join(SCHEDULES)} (cosine)", SCHEDULES)
    )
    warm_up: str | None = field(
        default=None, metadata=_flag("how", "SPAN", "how long the rate rises: 500 (steps), 5e (epochs) or 10%% (10%%)")
    )
    milestones: str | None = field(
        default=None, metadata=_flag("how", "SPANS", "where a piecewise rate falls: 40000,60000 (steps) or 30e,60e")
    )
    milestone_factor: float | None = field(
        default=None, metadata=_flag("how", "FACTOR", "factor of the rate at each milestone (0.1)")
    )
    weight_decay: float | None = field(
        default=None, metadata=_flag("how", "DECAY", "weight decay, counted once for all devices (0; see --list)")
    )
    augment: str | None = field(
        default=None, metadata=_flag("how", "NAMES", f"any of {','.join(AUGMENTATIONS)}, or none (none)")
    )
    precision: str = field(
        default="float32", metadata=_flag("how", "NAME", f"{', '.join(PRECISIONS)}: what suits the device", PRECISIONS)
    )
    backend: str = field(default="tensorflow", metadata=_flag("how", "NAME", f"{', '.join(BACKENDS)}", tuple(BACKENDS)))
    xla: str = field(
        default="auto",
        metadata=_flag("how", "WHEN", "compile with XLA: auto (on accelerators and with JAX), on or off", XLA),
    )
    decode: str = field(
        default="once",
        metadata=_flag(
            "how",
            "WHEN",
            "decode the images of files once, into --cache-dir, or always: slower, without a cache",
            DECODE,
        ),
    )
    steps_per_execution: int | None = field(
        default=None,
        metadata=_flag(
            "how",
            "N",
            f"steps between two returns to Python: more is faster for short steps (1; {REMOTE_STEPS_PER_EXECUTION} on "
            "the TPU of $TPU_GRPC_URL)",
        ),
    )
    validation_split: float = field(
        default=0.05,
        metadata=_flag("how", "SHARE", "share of the training examples used for validation after each epoch"),
    )
    validation_batch_size: int | None = field(
        default=None, metadata=_flag("how", "N", "examples in one step of validation and test (the batch size)")
    )
    target_accuracy: float | None = field(
        default=None,
        metadata=_flag("how", "SHARE", "measure time and steps until the validation accuracy is this high"),
    )
    peak_tflops: float | None = field(
        default=None, metadata=_flag("how", "N", "the device's peak, of which the training's share is reported")
    )
    peak_bandwidth: float | None = field(
        default=None, metadata=_flag("how", "GB/S", "the same for the device's memory bandwidth")
    )
    seed: int = field(default=1, metadata=_flag("how", "N", "fixes weights, dropout and the order of the examples"))
    deterministic: bool = field(
        default=True,
        metadata=_flag("how", "", "the same seed gives the same numbers, bit for bit; switched off it may be faster"),
    )
    devices: int | None = field(
        default=None, metadata=_flag("how", "N", "use only so many of the GPUs, or of a TPU's cores (all)")
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
    cache_dir: str | Path | None = field(
        default=None,
        metadata=_flag(
            "where", "DIR", "for decoded images ($GRADIENT_STORAGE_DIR/cache, else ~/.cache/gradient_trainer)"
        ),
    )
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
        for name in (
            "batch_size", "log_steps", "checkpoint_steps", "steps_per_execution",
            "epochs", "steps", "validation_batch_size", "image_size", "devices",
        ):  # fmt: skip
            value = getattr(self, name)
            self._require(name, "must be 1 or more", valid=value is None or value >= 1)
        for name in ("learning_rate", "milestone_factor", "connect_timeout", "peak_tflops", "peak_bandwidth"):
            value = getattr(self, name)
            self._require(name, "must be above 0, such as 0.001", valid=value is None or 0 < value < math.inf)
        decay = self.weight_decay or 0.0
        self._require("weight_decay", "must be 0 or more, such as 0.0005", valid=0 <= decay < math.inf)
        self._require("validation_split", "must lie between 0 and 1, such as 0.05", valid=0 < self.validation_split < 1)
        target = self.target_accuracy
        self._require(
            "target_accuracy", "must lie between 0 and 1, such as 0.94", valid=target is None or 0 < target < 1
        )
        self._require("seed", f"must lie between 0 and {MAX_SEED}", valid=0 <= self.seed <= MAX_SEED)
        self._check_names()

    def _require(self, name: str, rule: str, *, valid: bool) -> None:
        if not valid:
            raise OptionsError(f"--{name.replace('_', '-')} {rule}; it is {getattr(self, name)}")

    def _check_names(self) -> None:
        for option in fields(self):
            allowed, value = option.metadata["choices"], getattr(self, option.name)
            if allowed:
                self._require(
                    option.name, f"must be one of {', '.join(allowed)}", valid=value is None or value in allowed
                )
        if self.augment not in (None, NO_AUGMENTATION):
            rule = f"must be none, or any of {','.join(AUGMENTATIONS)}"
            self._require("augment", rule, valid=set((self.augment or "").split(",")) <= set(AUGMENTATIONS))
        if self.warm_up is not None:
            check_span("--warm-up", self.warm_up)
        for span in (self.milestones or "").split(",") if self.milestones is not None else ():
            check_span("--milestones", span)

    def check_combinations(self, environ: Mapping[str, str] = os.environ) -> None:
        """Refuse options that exclude each other or what this machine has, before any data is read."""
        tpu = bool(environ.get("TPU_GRPC_URL")) or environ.get("TPU_NAME") == "local"
        recipe = self.recipe()
        piecewise = recipe.schedule == "piecewise"
        refused = {
            "--epochs and --steps both say how long to train; choose one": bool(self.epochs and self.steps),
            f"--precision {self.precision} is impossible on a TPU, which has no float16; choose mixed_bfloat16": (
                tpu and self.precision in ("mixed_float16", "float16", MASTERS)
            ),
            f"--backend {self.backend} cannot use the TPU of $TPU_GRPC_URL, which only TensorFlow speaks to": (
                bool(environ.get("TPU_GRPC_URL")) and self.backend != "tensorflow"
            ),
            "--decode always cannot be combined with the TPU of $TPU_GRPC_URL, whose host prepares the input": (
                bool(environ.get("TPU_GRPC_URL")) and self.decode == "always"
            ),
            "--milestones belongs to --schedule piecewise": bool(self.milestones) and not piecewise,
            "--schedule piecewise needs --milestones, such as 40000,60000": piecewise and not recipe.milestones,
            "--xla on cannot be combined with TensorFlow's determinism; add --no-deterministic": (
                self.xla == "on" and self.deterministic and self.backend == "tensorflow"
            ),
            f"--backend {self.backend} is not installed; pip install {BACKENDS[self.backend]}": (
                find_spec(BACKENDS[self.backend]) is None
            ),
        }
        for message, applies in refused.items():
            if applies:
                raise OptionsError(message)

    def as_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}

    def recipe(self) -> Recipe:
        """Return the model's recipe with the hyper-parameters that were given as options."""
        recipe = RECIPES.get(self.model, Recipe())
        given = {field.name: getattr(self, field.name, None) for field in fields(Recipe)}
        return replace(recipe, **{name: value for name, value in given.items() if value is not None})

    def scaled_recipe(self, replicas: int) -> Recipe:
        recipe = self.recipe()
        if self.scale_by_replicas:
            rate = recipe.learning_rate * replicas
            recipe = replace(recipe, batch_size=recipe.batch_size * replicas, learning_rate=rate)
        sizes = {"--batch-size": recipe.batch_size, "--validation-batch-size": self.validation_batch_size or replicas}
        for flag, size in sizes.items():
            if size % replicas:
                raise OptionsError(
                    f"{flag} {size} cannot be divided over {replicas} devices; choose a multiple of {replicas}"
                )
        return recipe

    def output_url(self, environ: Mapping[str, str] = os.environ) -> str | None:
        """Return the `gs://…` for every output; None if outputs stay on this machine."""
        chosen = str(self.output or environ.get("TPU_MODEL_DIR") or "")
        return chosen if chosen.startswith("gs://") else None

    def output_folder(self, environ: Mapping[str, str] = os.environ, default: Path = Path("/artifacts")) -> Path:
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
            *([Path(storage) / "datasets", Path(storage)] if storage else []),
            Path("/storage/datasets"),
            Path("~/.keras/datasets").expanduser(),
        ]
        return list(dict.fromkeys(folder.absolute() for folder in folders if folder is not None))

    def cache_folder(self, environ: Mapping[str, str] = os.environ) -> Path:
        """Return the folder of decoded images; it may not exist yet."""
        storage = environ.get("GRADIENT_STORAGE_DIR")
        home = Path("~/.cache").expanduser()
        shared = Path(storage) / "cache" if storage and os.access(storage, os.W_OK) else home
        return Path(self.cache_dir).absolute() if self.cache_dir else shared / "gradient_trainer"

    def data_path(self) -> Path | None:
        """Return the folder or .zip that `--data` names, here or in a folder of data sets; None: it names neither."""
        for path in (Path(self.data), *(folder / self.data for folder in self.data_folders())):
            if path.is_dir() or (path.suffix == ".zip" and path.is_file()):
                return path.absolute()
        return None
