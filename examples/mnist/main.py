"""Train a small convolutional network on handwritten digits."""

import argparse

from gradient_trainer import TrainerError, train


def main() -> None:
    """Train with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="auto", help="mnist, digits, or auto: mnist where it is found")
    parser.add_argument("--epochs", type=int, help="passes over the training images (what suits the data set)")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    try:
        train(model="mnist-cnn", **vars(chosen))
    except TrainerError as error:
        parser.exit(error.exit_code, f"error: {error}\n")


if __name__ == "__main__":
    main()
