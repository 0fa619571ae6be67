"""Train a small network with Hugging Face's Trainer on scikit-learn's handwritten digits, without any download."""

import os
from pathlib import Path

import numpy as np
import torch
from metrics import MetricsLines
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import Dataset
from transformers import EvalPrediction, Trainer, TrainingArguments

OUTPUT = Path(os.environ.get("GRADIENT_ARTIFACTS_DIR", "."))


class Digits(Dataset):
    """Images of digits with their labels."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self._images, self._labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"images": self._images[index], "labels": self._labels[index]}


class Classifier(nn.Module):
    """A network of two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and the logits, as the Trainer wants them."""
        logits = self.layers(images)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def measure(prediction: EvalPrediction) -> dict[str, float]:
    """Return the accuracy."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main() -> None:
    """Train, save the weights, and print the accuracy at the end."""
    digits = load_digits()
    train, test, train_labels, test_labels = train_test_split(
        digits.images, digits.target, test_size=0.2, random_state=1
    )
    arguments = TrainingArguments(
        output_dir=str(OUTPUT / "checkpoints"),
        num_train_epochs=10,
        learning_rate=0.003,
        per_device_train_batch_size=32,
        eval_strategy="epoch",
        save_strategy="no",
        logging_steps=20,
        disable_tqdm=True,
        report_to="none",
        seed=1,
    )
    trainer = Trainer(
        model=Classifier(),
        args=arguments,
        train_dataset=Digits(train, train_labels),
        eval_dataset=Digits(test, test_labels),
        compute_metrics=measure,
        callbacks=[MetricsLines()],
    )
    trainer.train()
    torch.save(trainer.model.state_dict(), OUTPUT / "model.pt")
    print(f"accuracy {trainer.evaluate()['eval_accuracy']:.4f}")


if __name__ == "__main__":
    main()
