"""One training, from its options to its result: the module that combines all the others."""

import functools
import math
import os
import time
from contextlib import closing
from pathlib import Path

import keras
import tensorflow as tf

from .batches import Batches, split_validation
from .checkpoints import Checkpoint, CheckpointFolder
from .datasets import DataSet
from .devices import find_devices
from .errors import DivergedError, OtherTrainingError, TrainingStopped
from .evaluation import evaluate
from .gcs_sync import GcsSync
from .learner import Learner
from .metrics_writer import MetricsWriter
from .options import TrainOptions
from .registry import MODELS
from .result import TrainResult
from .stop import StopRequest
from .throughput import Throughput, format_throughput


class Training:
    """A training in progress.

    Args:
        options: The user's options.
        data: The examples.
        output: The folder for all outputs.
        url: `gs://…` that outputs are copied to; None: they stay in the folder.
        stop: The signal to end early, if one arrived.

    Raises:
        DeviceUnreachable: The TPU that the environment names does not answer.
        OptionsError: A batch cannot be divided over the devices.
    """

    def __init__(self, options: TrainOptions, data: DataSet, output: Path, url: str | None, stop: StopRequest) -> None:
        self._options, self._data, self._output, self._stop = options, data, output, stop
        self._sync = GcsSync(output, url)
        self._prepare_runtime()
        self._devices = find_devices()
        self._batch_size, self._peak_rate = options.scaled(self._devices.replicas)
        training, self._validation = split_validation(len(data.x_train), options.validation_split)
        self._batches = Batches(training, self._batch_size, options.seed)
        self._epochs = options.epochs or data.epochs
        self._total_steps = self._epochs * self._batches.per_epoch
        build = functools.partial(MODELS.get(options.model), data.image_shape, data.classes)
        self._learner = Learner(build, self._devices.strategy, self._peak_rate, self._total_steps)
        self._sync.download("checkpoints")
        self._checkpoints = CheckpointFolder(output / "checkpoints")
        self._throughput = Throughput()
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
        with closing(MetricsWriter(self._output / "tensorboard", os.environ)) as self._metrics:
            while self._step < self._total_steps:
                self._train_to_next_report()
            validation = self._validate()
            self._save_model()
            trained = self._result(validation, began)
            if self._options.evaluate_in_subprocess:
                self._sync.upload()
                return trained
            return evaluate(self._learner, trained, self._data, self._metrics, self._sync, began)

    def _prepare_runtime(self) -> None:
        keras.utils.set_random_seed(self._options.seed)
        if self._options.deterministic:
            tf.config.experimental.enable_op_determinism()

    def _announce(self) -> None:
        options = self._options
        print(f"model     {options.model}: {self._learner.model.count_params():,} parameters, on {self._devices.name}")
        if self._devices.replicas > 1:
            how = "scaled by them" if options.scale_by_replicas else "as given"
            print(
                f"replicas  {self._devices.replicas}: {self._batch_size // self._devices.replicas} examples of a step "
                f"each; batch size {self._batch_size} and learning rate {self._peak_rate:g}, {how}"
            )
        print(
            f"training  {self._epochs} {'epoch' if self._epochs == 1 else 'epochs'} of {self._batches.per_epoch} "
            f"steps of {self._batch_size} examples, {len(self._validation):,} examples kept aside to validate; "
            f"seed {options.seed}"
        )
        print(f"output    {self._sync.location}", flush=True)

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
            print(f"checkpoint is damaged, set aside as {damaged}", flush=True)
        if found is None:
            return
        differing = [
            f"{name} {found.training.get(name)} there, {value} here"
            for name, value in self._identity().items()
            if found.training.get(name) != value
        ]
        if differing:
            raise OtherTrainingError(
                f"the checkpoints in {self._checkpoints.folder} belong to another training "
                f"({'; '.join(differing)}); choose another --output, or start from the beginning with --restart"
            )
        self._learner.load(found.arrays)
        self._step = self._saved_step = self._resumed_from = found.step
        print(f"resuming from step {found.step}", flush=True)

    def _train_to_next_report(self) -> None:
        """Train up to the next step that needs a report or a checkpoint."""
        options, per_epoch = self._options, self._batches.per_epoch
        self._throughput.begin()
        while True:
            self._stop_if_requested()
            batch = self._batches.at(self._step)
            self._learner.train(self._data.x_train[batch], self._data.y_train[batch])
            self._step += 1
            self._throughput.step()
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
        steps_per_second = self._throughput.end()
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss became {loss} at step {self._step}; try a lower --learning-rate "
                f"than {self._options.learning_rate}, and --restart"
            )
        examples_per_second = steps_per_second and steps_per_second * self._batch_size
        self._metrics.write(
            self._step,
            {
                "loss": loss,
                "accuracy": accuracy,
                "learning_rate": self._learner.learning_rate(self._step - 1),
                "steps_per_second": steps_per_second,
                "examples_per_second": examples_per_second,
            },
        )
        print(
            f"step {self._step}/{self._total_steps}  epoch {self._epoch()}/{self._epochs}  "
            f"loss {loss:.4f}  accuracy {accuracy:.4f}  {format_throughput(steps_per_second, examples_per_second)}",
            flush=True,
        )

    def _epoch(self) -> int:
        return max(1, math.ceil(self._step / self._batches.per_epoch))

    def _validate(self) -> tuple[float, float]:
        self._stop_if_requested()
        data = self._data
        loss, accuracy = self._learner.evaluate(data.x_train, data.y_train, self._validation, self._batch_size)
        self._metrics.write(self._step, {"val_loss": loss, "val_accuracy": accuracy})
        print(f"epoch {self._epoch()}/{self._epochs}  val_loss {loss:.4f}  val_accuracy {accuracy:.4f}", flush=True)
        return loss, accuracy

    def _save(self) -> None:
        if self._step == self._saved_step:
            return
        self._checkpoints.save(Checkpoint(self._step, self._learner.arrays(), self._identity()))
        self._saved_step = self._step
        self._sync.upload()

    def _stop_if_requested(self) -> None:
        if self._stop.signal is None:
            return
        if self._step:
            self._save()
            saved = f"checkpoint saved at step {self._step}; the same command resumes from there"
        else:
            saved = "no step was done yet, so there is nothing to save"
        print(f"stopped by {self._stop.signal.name}: {saved}", flush=True)
        raise TrainingStopped(self._step, self._stop.signal)

    def _result(self, validation: tuple[float, float], began: float) -> TrainResult:
        """Return the result of the training, without the test."""
        steps_per_second = self._throughput.overall
        return TrainResult(
            model=self._options.model,
            data=self._data.name,
            epochs=self._epochs,
            steps=self._step,
            resumed_from_step=self._resumed_from,
            test_loss=None,
            test_accuracy=None,
            test_examples=len(self._data.x_test),
            val_loss=validation[0],
            val_accuracy=validation[1],
            steps_per_second=steps_per_second,
            examples_per_second=steps_per_second and steps_per_second * self._batch_size,
            seconds=time.perf_counter() - began,
            device=self._devices.name,
            replicas=self._devices.replicas,
            batch_size=self._batch_size,
            learning_rate=self._peak_rate,
            output=self._sync.location,
            options=self._options.as_json(),
        )

    def _save_model(self) -> None:
        partial = self._output / "partial.keras"
        self._learner.model.save(partial)
        partial.replace(self._output / "model.keras")
