"""Steps of programs that are not ours, with the real frameworks; PyTorch's are those of examples/pytorch."""

import json
import subprocess
import sys

import pytest

import gradient_jobs

JAX = """
import jax, jax.numpy as jnp, gradient_jobs
step = gradient_jobs.watch(jax.jit(lambda w, x: w - jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w)))
w = jnp.ones((64, 128), jnp.{type})
for _ in range(400):
    w = step(w, jnp.ones((32, 64), jnp.{type}))
print(step(w, jnp.ones((16, 64), jnp.{type})).shape)
"""
KERAS = """
import keras, numpy, gradient_jobs
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(10)])
model.compile("sgd", "mse", steps_per_execution=4)
x, y = numpy.ones((320, 64)), numpy.ones((320, 10))
model.fit(x, y, batch_size=16, epochs=3, verbose=0, callbacks=[gradient_jobs.watch(model, batch_size=16)])
"""


def run(program, folder, **variables):
    file = folder / "metrics.jsonl"
    env = {
        "GRADIENT_METRICS_FILE": str(file),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ":".join(sys.path[1:]),
    } | variables
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr, [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(("number", "bits"), [("float32", 32), ("bfloat16", 16), ("float64", 64)])
def test_a_step_of_jax_is_analysed_by_xla(tmp_path, number, bits):
    output, [work, *reports] = run(JAX.replace("{type}", number), tmp_path, JAX_PLATFORMS="cpu", JAX_ENABLE_X64="1")
    products = 2 * 2 * 32 * 64 * 128  # x @ w, and the gradient's product
    assert products <= work["flops_per_step"] <= 1.2 * products
    assert (work["compute_bits"], work["replicas"], work["bytes_per_step"] > 64 * 128) == (bits, 1, True)
    assert 0 < reports[0]["startup_seconds"] < 60
    assert reports[-1]["step"] == 401, "the step with another batch size counts as well"
    assert all(report["steps_per_second"] > 0 for report in reports)
    assert "(64, 128)" in output


def test_a_callback_of_keras_counts_each_step_of_a_group(tmp_path):
    _, [work, *reports] = run(KERAS, tmp_path, KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")
    assert work["flops_per_step"] == 3 * 2 * 16 * 64 * 10
    assert (work["compute_bits"], reports[-1]["step"]) == (32, 60)


OWN_CALL = """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(10)

    def call(self, x):
        return self.dense(x)

model = Own()
"""
ABSENT = "import sys; sys.modules['gradient_trainer'] = None\n"


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (KERAS.replace("model.compile", OWN_CALL + "model.compile"), "its own call()"),
        (ABSENT + KERAS, "gradient_trainer is not installed; the image `trainer`"),
    ],
)
def test_what_keras_cannot_count_is_said_with_the_next_step_and_nothing_is_recorded(tmp_path, program, cause):
    errors, [first, *_] = run(program, tmp_path, KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")
    assert first["replicas"] == 1
    assert "flops_per_step" not in first
    assert "the work of a step is not counted" in errors
    assert cause in errors
    assert "gradient_jobs.log(step=1, flops_per_step=" in errors


def test_what_is_not_trained_is_refused():
    with pytest.raises(
        TypeError, match=r"torch\.nn\.Module, a keras\.Model or a function compiled by jax\.jit, not int"
    ):
        gradient_jobs.watch(3)
