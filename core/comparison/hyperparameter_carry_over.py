"""Hyper-parameters carried over from one machine type to another."""

from dataclasses import dataclass

from core.catalogue.machine_types import MachineType
from core.comparison.measurement import RunFigures

_FEW_STEPS = 10  # steps of an epoch below which a larger batch trains worse, whatever its rate


@dataclass(frozen=True, slots=True)
class CarryOver:
    """The hyper-parameters for a machine type that train as those of the measured run did."""

    machine_type: str
    replicas: int
    batch_size: int
    learning_rate: float
    weight_decay: float | None  # weight decay; None: the run has not reported its own
    reasons: tuple[str, ...]


def missing_hyperparameters(run: RunFigures) -> list[str]:
    """Return the metrics without which nothing can be carried over."""
    return [name for name in ("batch_size", "peak_learning_rate", "replicas") if getattr(run, name) is None]


def carry_over(run: RunFigures, target: MachineType) -> CarryOver | None:
    """Carry hyper-parameters over so that each replica sees as many examples as before.

    A batch of 1/k acts like a learning rate of k times as much, so both change by the same factor. The effective weight
    decay of a step is learning rate x decay; there are as many more steps as it is smaller, so the decay stays. Returns
    none if the run has not reported batch size, learning rate and replicas.
    """
    if run.batch_size is None or run.peak_learning_rate is None or run.replicas is None:
        return None
    replicas = max(1, round(run.replicas))
    batch_of_replica = max(1, round(run.batch_size / replicas))
    batch = batch_of_replica * target.replicas
    factor = batch / run.batch_size
    rate = run.peak_learning_rate * factor
    reasons = [
        f"batch size {run.batch_size:g} over {replicas} is {batch_of_replica} each; times {target.replicas}: {batch}",
        f"learning rate {run.peak_learning_rate:g} x {factor:g}, like the batch size: {rate:g}",
    ]
    if run.weight_decay is not None:
        kept = "unchanged: learning rate x decay, per example, stays the same"
        reasons.append(f"weight decay {run.weight_decay:g} {kept}")
    if factor > 1 and run.steps_per_epoch and (left := run.steps_per_epoch / factor) < _FEW_STEPS:
        few = f"warning: only about {max(1, round(left))} steps per epoch are left, too few for such a large batch"
        reasons.append(f"{few}: train for more epochs, or on fewer replicas")
    return CarryOver(
        machine_type=target.name,
        replicas=target.replicas,
        batch_size=batch,
        learning_rate=rate,
        weight_decay=run.weight_decay,
        reasons=tuple(reasons),
    )
