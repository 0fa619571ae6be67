"""One trial of the sweep that `sweep.py` measures: a softmax regression on scikit-learn's digits by SGD.

`python digits_trial.py EPOCHS --lr=0.1 --batch=16` logs the loss on a fifth of the digits after each epoch.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits


def main() -> None:
    given = dict(word.removeprefix("--").split("=") for word in sys.argv[2:])
    rate, batch = float(given["lr"]), int(given["batch"])
    images, labels = load_digits(return_X_y=True)
    images, wanted, generator = images / 16, np.eye(10)[labels], np.random.default_rng(0)
    split = len(images) * 4 // 5
    weights = np.zeros((images.shape[1], 10))
    with Path(os.environ.get("GRADIENT_METRICS_FILE", os.devnull)).open("a", encoding="utf-8") as metrics:
        for epoch in range(1, int(sys.argv[1]) + 1):
            order = generator.permutation(split)
            for some in np.array_split(order, split // batch):
                weights -= rate * images[some].T @ (_softmax(images[some] @ weights) - wanted[some]) / len(some)
            likelihoods = _softmax(images[split:] @ weights)[np.arange(len(images) - split), labels[split:]]
            loss = float(-np.log(np.maximum(likelihoods, 1e-9)).mean())
            print(json.dumps({"step": epoch, "loss": loss}), file=metrics, flush=True)


def _softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    scaled: np.ndarray = powers / powers.sum(axis=1, keepdims=True)
    return scaled


if __name__ == "__main__":
    main()
