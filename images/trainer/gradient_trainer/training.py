"""One training, from its options to its result. The only module that puts all the others together."""

import math
import os
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from .batches import Batches, hold_out
from .checkpoints import Checkpoint, CheckpointFolder
from .datasets import DataSet
from .errors import DivergedError, OtherTrainingError, TrainingStopped
from .learner import Learner
from .metrics import MetricsFile
from .options import TrainOptions
from .pace import WARM_UP_STEPS, Pace
from .records import Records
from .registry import MODELS
from .result import TrainResult
from .stopping import StopRequest
from .terminal import say


class Training:
    """A training in progress.

    Args:
        options: What was asked for.
        data: The examples.
        output: The folder for everything that is written.
        stop: Says whether to end early.
    """

    def __init__(self, options: TrainOptions, data: DataSet, output: Path, stop: StopRequest) -> None:
        self._options, self._data, self._output, self._stop = options, data, output, stop
        self._prepare_runtime()
        kept, self._held_out = hold_out(len(data.x_train), options.validation_split)
        self._batches = Batches(kept, options.batch_size, options.seed)
        self._epochs = options.epochs or data.epochs
        self._total_steps = self._epochs * self._batches.per_epoch
        model = MODELS.get(options.model)(data.image_shape, data.classes)
        self._learner = Learner(model, options.learning_rate, self._total_steps)
        self._checkpoints = CheckpointFolder(output / "checkpoints")
        self._pace = Pace()
        self._step = self._saved_step = self._resumed_from = 0

    def run(self, began: float) -> TrainResult:
        """Train, evaluate, and write every output.

        Args:
            began: When the user's call came, as time.perf_counter() tells it.

        Raises:
            TrainingStopped: A signal came; the checkpoint is written.
            OtherTrainingError: The output folder belongs to another training.
            DivergedError: The loss is no longer a number.
        """
        self._announce()
        self._resume()
        self._records = Records(MetricsFile.from_environment(os.environ), self._output / "tensorboard")
        try:
            while self._step < self._total_steps:
                self._train_stretch()
            validation = self._validate()
            return self._finish(validation, began)
        finally:
            self._records.close()

    def _prepare_runtime(self) -> None:
        keras.utils.set_random_seed(self._options.seed)
        if self._options.deterministic:
            tf.config.experimental.enable_op_determinism()

    def _announce(self) -> None:
        options = self._options
        say(f"model     {options.model}: {self._learner.model.count_params():,} parameters, on {_device()}")
        say(
            f"training  {self._epochs} {'epoch' if self._epochs == 1 else 'epochs'} of {self._batches.per_epoch} "
            f"steps of {options.batch_size} examples, {len(self._held_out):,} examples kept aside to validate; "
            f"seed {options.seed}"
        )
        say(f"output    {self._output}")

    def _identity(self) -> dict[str, str | int | float]:
        options = self._options
        return {
            "model": options.model,
            "data": self._data.name,
            "training examples": len(self._data.x_train),
            "batch-size": options.batch_size,
            "validation-split": options.validation_split,
            "seed": options.seed,
        }

    def _resume(self) -> None:
        if self._options.restart:
            self._checkpoints.clear()
        found = self._checkpoints.newest()
        for damaged in self._checkpoints.set_aside:
            say(f"checkpoint is damaged, set aside as {damaged}")
        if found is None:
            return
        mine = self._identity()
        differing = [
            f"{name} {found.training.get(name)} there, {value} here"
            for name, value in mine.items()
            if found.training.get(name) != value
        ]
        if differing:
            raise OtherTrainingError(
                f"the checkpoints in {self._checkpoints.folder} belong to another training "
                f"({'; '.join(differing)}); choose another --output, or begin anew with --restart"
            )
        self._learner.load(found.arrays)
        self._step = self._saved_step = self._resumed_from = found.step
        say(f"resuming from step {found.step}")

    def _train_stretch(self) -> None:
        """Train up to the next step at which something is to be reported or saved."""
        options, per_epoch = self._options, self._batches.per_epoch
        self._pace.begin()
        while True:
            self._leave_if_asked()
            batch = self._batches.at(self._step)
            self._learner.train(self._data.x_train[batch], self._data.y_train[batch])
            self._step += 1
            self._pace.step()
            epoch_ended = self._step % per_epoch == 0
            to_save = epoch_ended or self._step % options.checkpoint_steps == 0
            if to_save or self._step % options.log_steps == 0 or self._step == 1:
                break
        self._report()
        if to_save:
            self._save()
        if epoch_ended and self._step < self._total_steps:
            self._validate()

    def _report(self) -> None:
        # Reading the averages waits for steps that an accelerator still works on, so it is done
        # before the time is taken.
        loss, accuracy = self._learner.averages()
        steps_per_second = self._pace.end()
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss became {loss} at step {self._step}; try a lower --learning-rate "
                f"than {self._options.learning_rate}, and --restart"
            )
        examples_per_second = steps_per_second and steps_per_second * self._options.batch_size
        self._records.write(
            self._step,
            {
                "loss": loss,
                "accuracy": accuracy,
                "learning_rate": self._learner.learning_rate(self._step - 1),
                "steps_per_second": steps_per_second,
                "examples_per_second": examples_per_second,
            },
        )
        say(
            f"step {self._step}/{self._total_steps}  epoch {self._epoch()}/{self._epochs}  "
            f"loss {loss:.4f}  accuracy {accuracy:.4f}  {_pace_words(steps_per_second, examples_per_second)}"
        )

    def _epoch(self) -> int:
        return max(1, math.ceil(self._step / self._batches.per_epoch))

    def _validate(self) -> tuple[float, float]:
        self._leave_if_asked()
        data = self._data
        loss, accuracy = self._learner.evaluate(data.x_train, data.y_train, self._held_out, self._options.batch_size)
        self._records.write(self._step, {"val_loss": loss, "val_accuracy": accuracy})
        say(f"epoch {self._epoch()}/{self._epochs}  val_loss {loss:.4f}  val_accuracy {accuracy:.4f}")
        return loss, accuracy

    def _save(self) -> None:
        if self._step == self._saved_step:
            return
        self._checkpoints.save(Checkpoint(self._step, self._learner.arrays(), self._identity()))
        self._saved_step = self._step

    def _leave_if_asked(self) -> None:
        if self._stop.signal is None:
            return
        if self._step:
            self._save()
            saved = f"checkpoint saved at step {self._step}; the same command resumes from there"
        else:
            saved = "no step was done yet, so there is nothing to save"
        say(f"stopped by {self._stop.signal.name}: {saved}")
        raise TrainingStopped(self._step, self._stop.signal)

    def _finish(self, validation: tuple[float, float], began: float) -> TrainResult:
        data, options = self._data, self._options
        everyone = np.arange(len(data.x_test))
        loss, accuracy = self._learner.evaluate(data.x_test, data.y_test, everyone, options.batch_size)
        self._records.write(self._step, {"test_loss": loss, "test_accuracy": accuracy})
        steps_per_second = self._pace.overall
        self._save_model()
        result = TrainResult(
            model=options.model,
            data=data.name,
            epochs=self._epochs,
            steps=self._step,
            resumed_from_step=self._resumed_from,
            test_loss=loss,
            test_accuracy=accuracy,
            test_examples=len(everyone),
            val_loss=validation[0],
            val_accuracy=validation[1],
            steps_per_second=steps_per_second,
            examples_per_second=steps_per_second and steps_per_second * options.batch_size,
            seconds=time.perf_counter() - began,
            device=_device(),
            output=self._output,
            options=options.as_json(),
        )
        _write_whole(self._output / "result.json", result.as_json() + "\n")
        _summarize(result)
        return result

    def _save_model(self) -> None:
        partial = self._output / "partial.keras"
        self._learner.model.save(partial)
        partial.replace(self._output / "model.keras")


def _device() -> str:
    accelerators = [device for kind in ("GPU", "TPU") for device in tf.config.list_physical_devices(kind)]
    if not accelerators:
        # Not every system can tell on which of its cores this process may run.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return f"{cores} CPU cores"
    details = tf.config.experimental.get_device_details(accelerators[0])
    return str(details.get("device_name", accelerators[0].name))


def _pace_words(steps_per_second: float | None, examples_per_second: float | None) -> str:
    if steps_per_second is None or examples_per_second is None:
        return "(warming up)"
    return f"{steps_per_second:.1f} steps/s  {examples_per_second:,.0f} examples/s"


def _write_whole(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _summarize(result: TrainResult) -> None:
    say("")
    say(f"test accuracy  {result.test_accuracy:.2%} of {result.test_examples:,} images")
    say(f"test loss      {result.test_loss:.4f}")
    if result.steps_per_second is None:
        say(f"pace           not measured: no step after the first {WARM_UP_STEPS} of this run")
    else:
        pace = _pace_words(result.steps_per_second, result.examples_per_second)
        say(f"pace           {pace}, without the first {WARM_UP_STEPS} steps, checkpoints and evaluation")
    say(f"time           {result.seconds:.1f} s")
    say(f"outputs        {result.output}: model.keras, result.json, checkpoints/, tensorboard/")
    say(f"RESULT {result.as_json()}")
