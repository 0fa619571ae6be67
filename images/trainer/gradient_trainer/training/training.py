"""One training, from its options to its result: the module that combines all the others."""

import functools
import math
import os
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import keras
import tensorflow as tf

from gradient_trainer.datasets import DataSet
from gradient_trainer.errors import BucketError, DivergedError, OtherTrainingError, TrainingStopped
from gradient_trainer.measurement.cost import measure_cost
from gradient_trainer.measurement.pace import Pace, format_pace, peak_shares
from gradient_trainer.measurement.summary import Summary, peak_host_memory
from gradient_trainer.options import MASTERS, REMOTE_STEPS_PER_EXECUTION, TrainOptions
from gradient_trainer.outputs.checkpoints import Checkpoint, CheckpointFolder
from gradient_trainer.outputs.gcs_sync import GcsSync
from gradient_trainer.outputs.metrics_writer import MetricsWriter
from gradient_trainer.outputs.result import TrainResult
from gradient_trainer.recipes import span_steps
from gradient_trainer.registry import MODELS

from .batches import Batches, split_validation
from .callbacks import Hooks, Logs
from .devices import find_devices
from .evaluation import evaluate_test, finish
from .input_wait import measure_input_wait
from .learner import ACCURACY, LOSS, Learner, build_model
from .optimization import half_weights, make_schedule
from .pipeline import Examples, evaluation_batches, training_batches
from .stop import StopRequest

_FEW_STEPS = 10


@dataclass(frozen=True)
class Averages:
    """Sums of a metric's values since the start of an epoch, from which averages over its parts follow."""

    steps: int = 0
    loss: float = 0.0
    accuracy: float = 0.0


class Training:
    """A training in progress. `url`: `gs://…` that outputs are copied to; None: they stay in the folder."""

    def __init__(self, options: TrainOptions, data: DataSet, output: Path, url: str | None, stop: StopRequest) -> None:
        self._options, self._data, self._output, self._stop = options, data, output, stop
        self._sync = GcsSync(output, url)
        self._devices = find_devices(options.devices)
        self._recipe = options.scaled_recipe(self._devices.replicas)
        self._precision = self._devices.precision(options.precision)
        prepare_runtime(options, self._precision)
        training, self._validation = split_validation(len(data.x_train), options.validation_split)
        self._batches = Batches(training, self._recipe.batch_size, options.seed)
        self._total_steps = self._count_steps()
        self._schedule = make_schedule(self._recipe, self._batches.per_epoch, self._total_steps)
        self._examples = Examples(data.x_train, data.y_train, remote=self._devices.remote)
        self._steps_per_execution = options.steps_per_execution or (
            REMOTE_STEPS_PER_EXECUTION if self._devices.remote else 1
        )
        self._learner = self._make_learner()
        self._sync.download("checkpoints")
        self._checkpoints = CheckpointFolder(output / "checkpoints")
        self._pace = Pace()
        self._step = self._saved_step = self._resumed_from = self._fit_from = self._fit_to = self._validated_step = 0
        self._reported = Averages()
        self._target: dict[str, float | None] | None = None

    def _count_steps(self) -> int:
        per_epoch, options = self._batches.per_epoch, self._options
        if options.steps:
            return options.steps
        if options.epochs is None and self._recipe.length:
            return span_steps(self._recipe.length, per_epoch, 0)
        return (options.epochs or self._data.epochs) * per_epoch

    def _make_learner(self) -> Learner:
        options, data = self._options, self._data
        build = functools.partial(build_model, options.model, MODELS.get(options.model), data.image_shape, data.classes)
        learner = Learner(build, self._devices)
        learner.compile(self._recipe, self._schedule, xla=options.xla, steps_per_execution=self._steps_per_execution)
        return learner

    def run(self, began: float) -> TrainResult:
        """Train, evaluate, and write every output."""
        self._announce()
        self._resume()
        self._training_began = time.perf_counter()
        with closing(MetricsWriter(self._output / "tensorboard", os.environ)) as self._metrics:
            # An earlier run may have ended between the checkpoint of an epoch and its validation.
            epoch_ended = self._step % self._batches.per_epoch == 0 and self._step != self._validated_step
            due = epoch_ended or self._step >= self._total_steps
            validation = self._validate() if due else (math.nan, math.nan)
            while self._step < self._total_steps:
                self._stop_if_requested()
                per_epoch = self._batches.per_epoch
                last = min(self._total_steps, (self._step // per_epoch + 1) * per_epoch)
                self._fit_from, self._fit_to, self._reported = self._step, last, Averages()
                batches = training_batches(self._examples, self._batches, self._step, last, self._recipe.augmentations)
                self._pace.begin()
                self._learner.fit(batches, Hooks(self._learner.model, self._after_steps, self._stop_if_requested))
                validation = self._validate()
            partial = self._output / "partial.keras"
            self._learner.model.save(partial)
            partial.replace(self._output / "model.keras")
            # Before the measurements, which go on training.
            here = not self._options.evaluate_in_subprocess
            tested = evaluate_test(self._learner, self._data, self._evaluation_batch_size) if here else None
            trained = self._result(validation, began)
            self._write_measurements(trained)
            if tested is None:
                self._sync.upload()
                return trained
            return finish(trained, tested, self._metrics, self._sync, began)

    def _announce(self) -> None:
        options, recipe, batches = self._options, self._recipe, self._batches
        parameters = f"{self._learner.model.count_params():,} parameters"
        print(f"model     {options.model}: {parameters}, {self._precision}, on {self._devices.name}")
        replicas = self._devices.replicas
        if replicas > 1:
            how = "scaled by them" if options.scale_by_replicas else "as given"
            print(
                f"replicas  {replicas}: {recipe.batch_size // replicas} examples of a step "
                f"each; batch size {recipe.batch_size} and learning rate {recipe.learning_rate:g}, {how}"
            )
        warm_up = f", warm-up {recipe.warm_up}" if self._schedule.steps else ""
        piecewise = recipe.schedule == "piecewise"
        falls = f", x {recipe.milestone_factor:g} at {recipe.milestones}" if piecewise else ""
        print(
            f"optimizer {recipe.optimizer}, {recipe.schedule} learning rate {recipe.learning_rate:g}{warm_up}{falls}"
            f"; weight decay {recipe.weight_decay:g}; augmentation {recipe.augment}"
        )
        whole = self._total_steps % batches.per_epoch == 0
        length = (
            f"{self._epochs} {'epoch' if self._epochs == 1 else 'epochs'} of"
            if whole
            else f"{self._total_steps} steps, epochs of"
        )
        print(
            f"training  {length} {batches.per_epoch} "
            f"steps of {recipe.batch_size} examples, {len(self._validation):,} examples kept aside to validate; "
            f"seed {options.seed}"
        )
        if batches.per_epoch < _FEW_STEPS:
            print(f"warning   {batches.per_epoch} steps an epoch are few: take smaller batches, or more epochs")
        print(f"output    {self._sync.location}", flush=True)

    def _identity(self) -> dict[str, str | int | float]:
        options = self._options
        return {
            "model": options.model,
            "data": self._data.name,
            "training examples": len(self._data.x_train),
            "batch-size": self._recipe.batch_size,
            "validation-split": options.validation_split,
            "seed": options.seed,
        }

    def _resume(self) -> None:
        if self._options.restart:
            self._checkpoints.clear()
        checkpoint = self._checkpoints.newest()
        for damaged in self._checkpoints.set_aside:
            print(f"checkpoint is damaged, set aside as {damaged}", flush=True)
        if checkpoint is None:
            return
        differing = [
            f"{name} {checkpoint.training.get(name)} there, {value} here"
            for name, value in self._identity().items()
            if checkpoint.training.get(name) != value
        ]
        if differing:
            raise OtherTrainingError(
                f"the checkpoints in {self._checkpoints.folder} belong to another training "
                f"({'; '.join(differing)}); choose another --output, or start from the beginning with --restart"
            )
        self._learner.load(checkpoint.arrays)
        self._step = self._saved_step = self._resumed_from = checkpoint.step
        self._validated_step = checkpoint.validated_step
        if checkpoint.target and checkpoint.target["accuracy"] == self._options.target_accuracy:
            self._target = checkpoint.target
        print(f"resuming from step {checkpoint.step}", flush=True)

    def _after_steps(self, done: int, logs: Logs) -> None:
        """Count the steps of an execution; report and save where due."""
        if self._pace.warming_up:
            float(logs[LOSS])  # waits for the device
        # Keras counts the last execution of an epoch as a whole one.
        before, self._step = self._step, min(self._fit_from + done, self._fit_to)
        self._pace.step(self._step - before)
        epoch_ended = self._step % self._batches.per_epoch == 0 or self._step == self._total_steps
        to_save = epoch_ended or self._passed(before, self._options.checkpoint_steps)
        if to_save or before == 0 or self._passed(before, self._options.log_steps):
            self._report(logs)
            if to_save:
                self._save()
            self._pace.begin()
        self._stop_if_requested()

    def _passed(self, before: int, every: int) -> bool:
        return self._step // every > before // every

    def _report(self, logs: Logs) -> None:
        # Reading the values waits for steps that an accelerator still works on, so it comes before the time is taken.
        steps = self._step - self._fit_from
        now = Averages(steps, float(logs[LOSS]) * steps, float(logs[ACCURACY]) * steps)
        steps_per_second = self._pace.end()
        count = now.steps - self._reported.steps
        loss, accuracy = (now.loss - self._reported.loss) / count, (now.accuracy - self._reported.accuracy) / count
        self._reported = now
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss became {loss} at step {self._step}; try a lower --learning-rate "
                f"than {self._recipe.learning_rate}, and --restart"
            )
        examples_per_second = steps_per_second and steps_per_second * self._recipe.batch_size
        self._metrics.write(
            self._step,
            {
                "loss": loss,
                "accuracy": accuracy,
                "learning_rate": float(self._schedule(self._step - 1)),
                "steps_per_second": steps_per_second,
                "examples_per_second": examples_per_second,
            },
        )
        print(
            f"step {self._step}/{self._total_steps}  epoch {self._epoch()}/{self._epochs}  "
            f"loss {loss:.4f}  accuracy {accuracy:.4f}  {format_pace(steps_per_second, examples_per_second)}",
            flush=True,
        )

    @property
    def _epochs(self) -> int:
        return math.ceil(self._total_steps / self._batches.per_epoch)

    @property
    def _evaluation_batch_size(self) -> int:
        return self._options.validation_batch_size or self._recipe.batch_size

    def _epoch(self) -> int:
        return max(1, math.ceil(self._step / self._batches.per_epoch))

    def _validate(self) -> tuple[float, float]:
        self._stop_if_requested()
        batches = evaluation_batches(self._examples, self._validation, self._evaluation_batch_size)
        loss, accuracy = self._learner.evaluate(batches, self._stop_if_requested)
        values: dict[str, float | None] = {"val_loss": loss, "val_accuracy": accuracy}
        target = self._options.target_accuracy
        if target is not None and self._target is None and accuracy >= target:
            # The time before a resumption is not known.
            seconds = None if self._resumed_from else time.perf_counter() - self._training_began
            self._target = {"accuracy": target, "step": self._step, "seconds": seconds}
            values |= {"target_step": self._step, "target_seconds": seconds}
        self._validated_step = self._step
        self._metrics.write(self._step, values)
        print(f"epoch {self._epoch()}/{self._epochs}  val_loss {loss:.4f}  val_accuracy {accuracy:.4f}", flush=True)
        return loss, accuracy

    def _save(self, *, last: bool = False) -> None:
        if self._step != self._saved_step:
            arrays, identity = self._learner.arrays(), self._identity()
            self._checkpoints.save(Checkpoint(self._step, arrays, identity, self._validated_step, self._target))
            self._saved_step = self._step
        elif not last:
            return
        self._sync.upload(last=last)  # the last time also what could not be copied before

    def _stop_if_requested(self) -> None:
        if self._stop.signal is None:
            return
        if self._step:
            saved = f"checkpoint saved at step {self._step}; the same command resumes from there"
            try:
                self._save(last=True)
            except BucketError as error:
                saved = f"the checkpoint of step {self._step} is lost: {error}"
        else:
            saved = "no step was done yet, so there is nothing to save"
        print(f"stopped by {self._stop.signal.name}: {saved}", flush=True)
        raise TrainingStopped(self._step, self._stop.signal)

    def _result(self, validation: tuple[float, float], began: float) -> TrainResult:
        """Return the result of the training, without the test; the measurements go on training."""
        steps_per_second = self._pace.overall
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
            examples_per_second=steps_per_second and steps_per_second * self._recipe.batch_size,
            seconds=time.perf_counter() - began,
            device=self._devices.name,
            replicas=self._devices.replicas,
            batch_size=self._recipe.batch_size,
            learning_rate=self._recipe.learning_rate,
            precision=self._precision,
            output=self._sync.location,
            options=self._options.as_json(),
            summary=asdict(self._summarize(validation, began)),
        )

    def _summarize(self, validation: tuple[float, float], began: float) -> Summary:
        options, recipe, pace = self._options, self._recipe, self._pace
        trained_seconds = time.perf_counter() - self._training_began
        # Before the measurements below, which need memory, too.
        memory = {"host_bytes": peak_host_memory(), "device_bytes": self._devices.peak_memory()}
        parts = self._learner, self._examples, self._batches, pace, self._steps_per_execution
        waiting = measure_input_wait(*parts, recipe.augmentations, trained_seconds)
        batch = next(iter(training_batches(self._examples, self._batches, 0, 1, ())))
        cost = measure_cost(self._learner.model, tuple(part.numpy() for part in batch), recipe.batch_size)
        return Summary(
            training=self._describe_training(),
            device={
                "name": self._devices.name,
                "kind": self._devices.kind,
                "replicas": self._devices.replicas,
                "backend": keras.backend.backend(),
                "steps_per_execution": self._steps_per_execution,
            },
            hyperparameters=asdict(recipe) | {"precision": self._precision},
            seconds={
                "before_training": self._training_began - began,
                "first_step": pace.first_step_seconds,
                "warm_up": pace.warm_up_seconds,
                "cpu_per_step": pace.cpu_seconds_per_step,
                "training": trained_seconds,
            },
            steps_per_second=pace.spread(1),
            examples_per_second=pace.spread(recipe.batch_size),
            target=self._target
            or (options.target_accuracy and {"accuracy": options.target_accuracy, "step": None, "seconds": None})
            or None,
            memory=memory,
            input=waiting,
            step_cost=cost,
            share_of_peak=peak_shares(pace.overall, cost, options.peak_tflops, options.peak_bandwidth),
            accuracy={"val_loss": validation[0], "val_accuracy": validation[1]},
        )

    def _describe_training(self) -> dict[str, str | int]:
        return {
            "model": self._options.model,
            "data": self._data.name,
            "origin": self._data.origin,
            "seed": self._options.seed,
            "steps": self._step,
            "epochs": self._epochs,
            "resumed_from_step": self._resumed_from,
        }

    def _write_measurements(self, trained: TrainResult) -> None:
        summary, cost = trained.summary, trained.summary["step_cost"] or {}
        values = {
            "startup_seconds": summary["seconds"]["before_training"],
            "compile_seconds": summary["seconds"]["first_step"],
            "peak_host_bytes": summary["memory"]["host_bytes"],
            "peak_device_bytes": summary["memory"]["device_bytes"],
            "input_wait_share": summary["input"]["wait_share"],
            "input_wait_share_error": summary["input"]["wait_share_error"],
            "flops_per_step": cost.get("flops"),
            "bytes_per_step": cost.get("bytes"),
            "peak_flops_share": summary["share_of_peak"]["flops"],
            "peak_bandwidth_share": summary["share_of_peak"]["bandwidth"],
            "replicas": self._devices.replicas,
            "compute_bits": 16 if "16" in self._precision else 32,
            "batch_size": self._recipe.batch_size,
            "peak_learning_rate": self._recipe.learning_rate,
            "steps_per_epoch": self._batches.per_epoch,
            "weight_decay": self._recipe.weight_decay,
        }
        self._metrics.write(self._step, values)


def prepare_runtime(options: TrainOptions, precision: str) -> None:
    """Set what holds for the whole process: seed, determinism, precision."""
    keras.utils.set_random_seed(options.seed)
    if options.deterministic and options.backend == "tensorflow":
        tf.config.experimental.enable_op_determinism()
    keras.config.set_dtype_policy(half_weights() if precision == MASTERS else precision)
