"""One training, from its options to its result: the module that combines all the others."""

import functools
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
from .destination import Destination
from .devices import find_devices
from .errors import DivergedError, OtherTrainingError, TrainingStopped
from .learner import Learner
from .metrics import MetricsFile
from .options import TrainOptions
from .pace import Pace
from .records import Records
from .registry import MODELS
from .report import pace_words, summarize, write_result
from .result import TrainResult
from .stopping import StopRequest
from .terminal import say


class Training:
    """A training in progress.

    Args:
        options: The user's options.
        data: The examples.
        output: The folder for all outputs.
        destination: The place that outputs are copied to.
        stop: Tells whether to end early.

    Raises:
        DeviceUnreachable: The TPU that the environment names does not answer.
        OptionsError: A batch cannot be divided over the devices.
    """

    def __init__(
        self, options: TrainOptions, data: DataSet, output: Path, destination: Destination, stop: StopRequest
    ) -> None:
        self._options, self._data, self._output, self._stop = options, data, output, stop
        self._destination = destination
        self._prepare_runtime()
        self._devices = find_devices()
        self._batch_size, self._peak_rate = options.scaled(self._devices.replicas)
        kept, self._held_out = hold_out(len(data.x_train), options.validation_split)
        self._batches = Batches(kept, self._batch_size, options.seed)
        self._epochs = options.epochs or data.epochs
        self._total_steps = self._epochs * self._batches.per_epoch
        build = functools.partial(MODELS.get(options.model), data.image_shape, data.classes)
        self._learner = Learner(build, self._devices.strategy, self._peak_rate, self._total_steps)
        destination.fetch("checkpoints")
        self._checkpoints = CheckpointFolder(output / "checkpoints")
        self._pace = Pace()
        self._step = self._saved_step = self._resumed_from = 0

    def run(self, began: float) -> TrainResult:
        """Train, evaluate, and write every output.

        Args:
            began: Time of the user's call, from time.perf_counter().

        Raises:
            TrainingStopped: A signal arrived; the checkpoint is written.
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
        say(f"model     {options.model}: {self._learner.model.count_params():,} parameters, on {self._devices.name}")
        if self._devices.replicas > 1:
            how = "scaled by them" if options.scale_by_replicas else "as given"
            say(
                f"replicas  {self._devices.replicas}: {self._batch_size // self._devices.replicas} examples of a step "
                f"each; batch size {self._batch_size} and learning rate {self._peak_rate:g}, {how}"
            )
        say(
            f"training  {self._epochs} {'epoch' if self._epochs == 1 else 'epochs'} of {self._batches.per_epoch} "
            f"steps of {self._batch_size} examples, {len(self._held_out):,} examples kept aside to validate; "
            f"seed {options.seed}"
        )
        self._destination.announce()

    def _identity(self) -> dict[str, str | int | float]:
        options = self._options
        return {
            "model": options.model,
            "data": self._data.name,
            "training examples": len(self._data.x_train),
            "batch-size": self._batch_size,
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
        """Train up to the next step that needs a report or a checkpoint."""
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
        # Reading the averages waits for steps that an accelerator still works on, so it comes before the time is taken.
        loss, accuracy = self._learner.averages()
        steps_per_second = self._pace.end()
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss became {loss} at step {self._step}; try a lower --learning-rate "
                f"than {self._options.learning_rate}, and --restart"
            )
        examples_per_second = steps_per_second and steps_per_second * self._batch_size
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
            f"loss {loss:.4f}  accuracy {accuracy:.4f}  {pace_words(steps_per_second, examples_per_second)}"
        )

    def _epoch(self) -> int:
        return max(1, math.ceil(self._step / self._batches.per_epoch))

    def _validate(self) -> tuple[float, float]:
        self._leave_if_asked()
        data = self._data
        loss, accuracy = self._learner.evaluate(data.x_train, data.y_train, self._held_out, self._batch_size)
        self._records.write(self._step, {"val_loss": loss, "val_accuracy": accuracy})
        say(f"epoch {self._epoch()}/{self._epochs}  val_loss {loss:.4f}  val_accuracy {accuracy:.4f}")
        return loss, accuracy

    def _save(self) -> None:
        if self._step == self._saved_step:
            return
        self._checkpoints.save(Checkpoint(self._step, self._learner.arrays(), self._identity()))
        self._saved_step = self._step
        self._destination.publish()

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
        loss, accuracy = (None, None) if options.evaluate_apart else self._test()
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
            test_examples=len(data.x_test),
            val_loss=validation[0],
            val_accuracy=validation[1],
            steps_per_second=steps_per_second,
            examples_per_second=steps_per_second and steps_per_second * self._batch_size,
            seconds=time.perf_counter() - began,
            device=self._devices.name,
            replicas=self._devices.replicas,
            batch_size=self._batch_size,
            learning_rate=self._peak_rate,
            output=self._destination.shown,
            options=options.as_json(),
        )
        if not options.evaluate_apart:
            write_result(result, self._output)
        self._destination.publish()
        if not options.evaluate_apart:
            summarize(result)
        return result

    def _test(self) -> tuple[float, float]:
        data = self._data
        everyone = np.arange(len(data.x_test))
        loss, accuracy = self._learner.evaluate(data.x_test, data.y_test, everyone, self._batch_size)
        self._records.write(self._step, {"test_loss": loss, "test_accuracy": accuracy})
        return loss, accuracy

    def _save_model(self) -> None:
        partial = self._output / "partial.keras"
        self._learner.model.save(partial)
        partial.replace(self._output / "model.keras")
