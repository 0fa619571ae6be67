"""Train a small network in Keras on scikit-learn's handwritten digits."""

import os
from pathlib import Path

import keras
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gradient_jobs

BATCH_SIZE = 32
OUTPUT = Path(os.environ.get("GRADIENT_ARTIFACTS_DIR", "."))


def main() -> None:
    """Train, print the accuracy, and save the model."""
    print(f"Keras {keras.__version__} on {keras.backend.backend()}")
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(digits.images / 16, digits.target, random_state=1)
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    watched = gradient_jobs.watch(model, batch_size=BATCH_SIZE)
    log = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: gradient_jobs.log(epoch=epoch + 1, **logs))
    model.fit(train_x, train_y, batch_size=BATCH_SIZE, epochs=20, verbose=2, callbacks=[watched, log])
    _, accuracy = model.evaluate(test_x, test_y, verbose=0)
    gradient_jobs.log(test_accuracy=accuracy)
    model.save(OUTPUT / "model.keras")
    print(f"accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
