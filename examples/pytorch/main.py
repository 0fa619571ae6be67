"""Train a convolutional network in PyTorch on scikit-learn's handwritten digits."""

import argparse
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import gradient_jobs


def main() -> None:
    """Train, print the accuracy after each epoch, and save the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--output", type=Path, default=os.environ.get("GRADIENT_ARTIFACTS_DIR", "."))
    options = parser.parse_args()

    torch.manual_seed(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(f"PyTorch {torch.__version__} on {device}")
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    data = TensorDataset(images, torch.tensor(digits.target))
    train, test = random_split(data, [0.8, 0.2])

    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 4 * 4, 10)),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.learning_rate)
    loss_of = nn.CrossEntropyLoss()
    gradient_jobs.watch(model)

    for epoch in range(options.epochs):
        model.train()
        for inputs, targets in gradient_jobs.watch_input(DataLoader(train, batch_size=32, shuffle=True)):
            optimizer.zero_grad()
            loss = loss_of(model(inputs.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
        gradient_jobs.log(loss=loss.item())
        model.eval()
        with torch.no_grad():
            inputs, targets = next(iter(DataLoader(test, batch_size=len(test))))
            accuracy = (model(inputs.to(device)).argmax(1).cpu() == targets).float().mean().item()
        gradient_jobs.log(val_accuracy=accuracy)
        print(f"epoch {epoch + 1} accuracy {accuracy:.4f}", flush=True)

    torch.save(model.state_dict(), options.output / "model.pt")


if __name__ == "__main__":
    main()
