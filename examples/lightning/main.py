"""Train a small network with Lightning on scikit-learn's handwritten digits; checkpoints become artifacts."""

import os

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from metrics import MetricsLines
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

OUTPUT = os.environ.get("GRADIENT_ARTIFACTS_DIR", ".")


class Classifier(lightning.LightningModule):
    """A network of two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: list[torch.Tensor], _index: int) -> torch.Tensor:
        """Return the loss of a batch."""
        images, targets = batch
        return nn.functional.cross_entropy(self.layers(images), targets)

    def validation_step(self, batch: list[torch.Tensor], _index: int) -> None:
        """Log the accuracy of a batch."""
        images, targets = batch
        self.log("accuracy", (self.layers(images).argmax(1) == targets).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adam(self.parameters(), lr=0.003)


def main() -> None:
    """Train, and print the accuracy at the end."""
    lightning.seed_everything(1)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32) / 16
    train, test = random_split(TensorDataset(images, torch.tensor(digits.target)), [0.8, 0.2])
    trainer = lightning.Trainer(
        max_epochs=10,
        enable_progress_bar=False,
        logger=CSVLogger(OUTPUT),
        callbacks=[ModelCheckpoint(OUTPUT, filename="best", monitor="accuracy", mode="max"), MetricsLines()],
    )
    trainer.fit(Classifier(), DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=len(test)))
    print(f"accuracy {trainer.callback_metrics['accuracy'].item():.4f}")


if __name__ == "__main__":
    main()
