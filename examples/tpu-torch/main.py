# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy", "torch==2.13.0"]
# ///
"""Fit a line with PyTorch/XLA on every chip of a TPU, or of a slice of several hosts; with plain PyTorch on a CPU."""

import os
from pathlib import Path
from typing import Any

import torch

try:
    import torch_xla
    from torch_xla import runtime
    from torch_xla.core import xla_model
except ModuleNotFoundError:  # one that cannot be loaded is an error
    torch_xla = None

OUTPUT = Path(os.environ.get("GRADIENT_ARTIFACTS_DIR", "."))
STEPS, EXAMPLES = 100, 1024


def fit(device: torch.device, rank: int, xla: Any = None) -> None:  # noqa: ANN401 - a module that may be missing
    """Train on one device; with `xla`, torch_xla's module for models, on the mean gradient of all devices."""
    inputs = torch.randn(EXAMPLES, 1, generator=torch.Generator().manual_seed(rank)).to(device)
    model = torch.nn.Linear(1, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), 3 * inputs + 2)
        loss.backward()
        if xla is None:
            optimizer.step()
        else:
            xla.optimizer_step(optimizer)
        if number % 25 == 0 and rank == 0:
            print(f"step {number} loss {loss.item():.6f}", flush=True)
    if rank == 0:
        weights = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
        torch.save(weights, OUTPUT / "weights.pt")
        print(f"y = {weights['weight'].item():.2f} x + {weights['bias'].item():.2f}")


def fit_on_chip(_index: int) -> None:
    """Train on one chip: PyTorch/XLA starts a process for each, on every host of a slice."""
    rank = runtime.global_ordinal()
    print(f"chip {rank} of {runtime.world_size()}", flush=True)
    torch.manual_seed(0)
    fit(torch_xla.device(), rank, xla_model)


def main() -> None:
    """Use the TPU, if PyTorch/XLA is there."""
    if torch_xla is not None:
        torch_xla.launch(fit_on_chip)
        return
    print("no torch_xla: plain PyTorch on the CPU")
    torch.manual_seed(0)
    fit(torch.device("cpu"), int(os.environ.get("TPU_WORKER_ID", "0")))


if __name__ == "__main__":
    main()
