"""Functions that tests call in a process with Keras (`call_with_keras`); each returns plain values."""

import importlib
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from gradient_trainer.recipes import Recipe
from gradient_trainer.registry import MODELS


def describe_model(name: str, image_shape: tuple[int, int, int], classes: int) -> dict[str, Any]:
    """Return parameters, output shape and multiply-adds of a model."""
    cost = importlib.import_module("gradient_trainer.measurement.cost")
    model = MODELS.get(name)(image_shape, classes)
    return {
        "trainable": sum(int(np.prod(weight.shape)) for weight in model.trainable_variables),
        "convolutions": sum("conv" in type(layer).__name__.lower() for layer, _ in cost._outputs(model)),
        "output": model.output_shape,
        "multiply_adds": cost.multiply_adds(model),
    }


def rates(recipe: Recipe, per_epoch: int, total: int, steps: list[int]) -> list[float]:
    """Return the learning rates of some steps."""
    optimization = importlib.import_module("gradient_trainer.training.optimization")
    schedule = optimization.make_schedule(recipe, per_epoch, total)
    return [float(schedule(step)) for step in steps]


def optimized(name: str, changing: list[float], gradients: list[float]) -> list[float]:
    """Return a weight that begins at 1 after each step, of this learning rate and gradient."""
    keras, tf = importlib.import_module("keras"), importlib.import_module("tensorflow")
    optimization = importlib.import_module("gradient_trainer.training.optimization")
    weight = keras.Variable(1.0)
    optimizer = optimization.make_optimizer(Recipe(optimizer=name), 0.1)
    optimizer.build([weight])
    found = []
    for rate, gradient in zip(changing, gradients, strict=True):
        optimizer.learning_rate = rate
        optimizer.apply([tf.constant(gradient)])
        found.append(float(weight))
    return found


def one_cycled(recipe: Recipe, total: int, gradients: list[float]) -> dict[str, Any]:
    """Return a weight that begins at 1 after each step of a training of this length, and the momentum of the steps."""
    keras, tf = importlib.import_module("keras"), importlib.import_module("tensorflow")
    optimization = importlib.import_module("gradient_trainer.training.optimization")
    weight = keras.Variable(1.0)
    rate = optimization.make_schedule(recipe, 1, total)
    optimizer = optimization.make_optimizer(recipe, rate)
    optimizer.build([weight])
    apply = tf.function(lambda gradient: optimizer.apply([gradient]))  # as in a training, which traces one step
    weights = []
    for gradient in gradients:
        apply(tf.constant(gradient))
        weights.append(float(weight))
    momentum = optimization.make_momentum(recipe, rate)
    momenta = momentum and [float(momentum(step)) for step in range(len(gradients))]
    return {"weights": weights, "momenta": momenta}


def replicas_in_use(count: int) -> int:
    """Return how many replicas a training has that asks for so many devices."""
    return int(importlib.import_module("gradient_trainer.training.devices").find_devices(count).replicas)


def trained_with_masters(name: str, rate: float, gradients: list[float]) -> dict[str, Any]:
    """Return weights, their masters and their types after a step of each gradient of a half-precision weight of 1."""
    keras, tf = importlib.import_module("keras"), importlib.import_module("tensorflow")
    optimization = importlib.import_module("gradient_trainer.training.optimization")
    keras.config.set_dtype_policy(optimization.half_weights())
    layers = [keras.Input((1,)), keras.layers.Dense(1, use_bias=False), keras.layers.BatchNormalization()]
    model = keras.Sequential(layers)
    weight, *others = model.trainable_variables
    weight.assign([[1.0]])
    optimizer = optimization.make_optimizer(Recipe(optimizer=name), rate)
    optimizer.build([weight])
    weights, masters = [], []
    for gradient in gradients:
        scaled = tf.cast(optimizer.scale_loss(gradient), tf.float16)
        optimizer.apply([tf.reshape(scaled, (1, 1))], [weight])
        (master,) = optimizer.inner_optimizer.masters
        weights.append(float(weight.numpy()[0, 0]))
        masters.append(float(master.numpy()[0, 0]))
    types = [each.dtype for each in (weight, master, optimizer.inner_optimizer.momentums[0], *others)]
    return {"types": types, "weights": weights, "masters": masters}


def augmented(names: list[str], images: npt.NDArray[np.uint8], seed: int, step: int) -> npt.NDArray[np.uint8]:
    """Return changed images."""
    tf = importlib.import_module("tensorflow")
    augmentation = importlib.import_module("gradient_trainer.training.pipeline")
    seeds = tf.constant([seed, step * augmentation.SEEDS], tf.int64)
    changed: npt.NDArray[np.uint8] = augmentation.augment(tf.constant(images), names, seeds).numpy()
    return changed


def train_on_replicas(replicas: int, recipe: Recipe, steps_per_execution: int = 1) -> tuple[list[float], float, float]:
    """Train a linear model for three steps, and return its weights, its loss and its accuracy on seven examples.

    More than two replicas are those of a simulated TPU.
    """
    keras, tf = importlib.import_module("keras"), importlib.import_module("tensorflow")
    learner_module = importlib.import_module("gradient_trainer.training.learner")
    devices_module = importlib.import_module("gradient_trainer.training.devices")
    callbacks = importlib.import_module("gradient_trainer.training.callbacks")
    pipeline = importlib.import_module("gradient_trainer.training.pipeline")
    cpus = [tf.config.LogicalDeviceConfiguration()] * replicas
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], cpus)
    names = [f"CPU:{number}" for number in range(replicas)]
    kind = devices_module.SimulatedTpuStrategy if replicas > 2 else tf.distribute.MirroredStrategy
    strategy = kind(names) if replicas > 1 else None
    devices = devices_module.Devices("test", replicas=replicas, strategy=strategy)

    def build() -> Any:
        images = keras.Input((2, 2, 1))
        return keras.Model(images, keras.layers.Dense(3, kernel_initializer="ones")(keras.layers.Flatten()(images)))

    learner = learner_module.Learner(build, devices)
    learner.compile(recipe, recipe.learning_rate, steps_per_execution=steps_per_execution)
    random = np.random.default_rng(0)
    images = random.integers(0, 4, (12, 2, 2, 1), dtype=np.uint8)
    labels = random.integers(0, 3, 12).astype(np.int32)
    examples = pipeline.Examples(images, labels, remote=False)
    batches = importlib.import_module("gradient_trainer.training.batches").Batches(np.arange(12), 4, 1)
    hooks = callbacks.Hooks(learner.model, lambda *_: None, lambda: None)
    learner.fit(pipeline.training_batches(examples, batches, 0, 3, ()), hooks)
    loss, accuracy = learner.evaluate(pipeline.evaluation_batches(examples, np.arange(7), 4))
    return learner.model.get_weights()[0].ravel().tolist(), loss, accuracy


def input_wait(input_seconds: float, step_seconds: float, pace: float | None) -> dict[str, float | None]:
    """Measure the wait of a training whose input and whose steps last so long, and compute nothing meanwhile.

    Returns:
        What was measured, and `input_seconds`: what a batch of its input really took, which a busy machine prolongs.
    """
    keras, tf = importlib.import_module("keras"), importlib.import_module("tensorflow")
    module = importlib.import_module("gradient_trainer.training.input_wait")
    learner_module = importlib.import_module("gradient_trainer.training.learner")
    devices_module = importlib.import_module("gradient_trainer.training.devices")
    pipeline = importlib.import_module("gradient_trainer.training.pipeline")

    parallel, inputs = pipeline._PARALLEL["num_parallel_calls"], []

    def pause(seconds: float, times: list[float]) -> Any:
        def wait() -> Any:
            begin = time.perf_counter()
            time.sleep(seconds)
            times.append(time.perf_counter() - begin)
            return np.int64(0)

        return tf.control_dependencies([tf.numpy_function(wait, [], tf.int64, stateful=True)])

    class SlowLayer(keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            with pause(step_seconds, []):
                return tf.identity(inputs)

    class SlowExamples(pipeline.Examples):
        def read(self, numbers: Any) -> Any:
            with pause(input_seconds * parallel, inputs):
                return super().read(tf.identity(numbers))

    def build() -> Any:
        images = keras.Input((2, 2, 1))
        return keras.Model(images, keras.layers.Dense(3)(keras.layers.Flatten()(SlowLayer()(images))))

    learner = learner_module.Learner(build, devices_module.Devices("test", replicas=1, strategy=None))
    learner.compile(Recipe(optimizer="sgd"), 0.1)
    images, labels = np.zeros((64, 2, 2, 1), np.uint8), np.zeros(64, np.int32)
    batches = importlib.import_module("gradient_trainer.training.batches").Batches(np.arange(64), 4, 1)
    measured = SimpleNamespace(spread=lambda _: pace and {"median": pace})
    found: dict[str, float | None] = module.measure_input_wait(
        learner, SlowExamples(images, labels, remote=False), batches, measured, 1, (), 100.0
    )
    return found | {"input_seconds": np.mean(inputs).item() / parallel if inputs else None}


def upload_with_outage(folder: Path, bucket: Path, upload: str, repeated_seconds: float) -> str:
    """Upload a file, then another one while the bucket, a folder, is away; return the error that it ends with.

    The bucket is back when the upload waits to be repeated, for these seconds if it is the `last`, or at the next
    `checkpoint`.
    """
    module = importlib.import_module("gradient_trainer.outputs.gcs_sync")
    sync = module.GcsSync(folder, str(bucket))
    (folder / "first").write_bytes(b"1")
    sync.upload()
    away = bucket.rename(bucket.with_name("away"))
    bucket.touch()

    def restore(_seconds: float) -> None:
        bucket.unlink()
        away.rename(bucket)

    module.time.sleep, module._LAST_SECONDS = restore, repeated_seconds
    (folder / "second").write_bytes(b"2")
    try:
        sync.upload(last=upload == "last")
    except module.BucketError as error:
        return str(error)
    if upload == "checkpoint":
        restore(0)
        sync.upload()
    return ""


def write_tfrecord(path: str, encoded: list[bytes], labels: list[int], keys: tuple[str, str]) -> None:
    """Write images and labels as TFRecord."""
    tf = importlib.import_module("tensorflow")
    with tf.io.TFRecordWriter(path) as writer:
        for content, label in zip(encoded, labels, strict=True):
            features = {
                keys[0]: tf.train.Feature(bytes_list=tf.train.BytesList(value=[content])),
                keys[1]: tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


def read_folder(path: str, cache: str) -> tuple[npt.NDArray[np.uint8], list[int], int]:
    """Read a folder of the user's, and return its training images, their labels, and the number of classes."""
    pathlib = importlib.import_module("pathlib")
    files = importlib.import_module("gradient_trainer.datasets._files")
    data = files.load_files(pathlib.Path(path), None, pathlib.Path(cache))
    return np.array(data.x_train), data.y_train.tolist(), data.classes
