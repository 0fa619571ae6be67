"""Selects the examples of each step: a pure function of the seed and the step's number.

Because nothing else decides the order, a training that resumes at step N continues with exactly the examples that an
uninterrupted one would have seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gradient_trainer.errors import OptionsError

Indices = npt.NDArray[np.intp]


def split_validation(examples: int, share: float) -> tuple[Indices, Indices]:
    """Divide example numbers into those to train on and those to validate on.

    The division does not depend on a training's seed, so that seeds can be compared.
    """
    shuffled = np.random.default_rng(0).permutation(examples)
    count = max(1, round(examples * share))
    return np.sort(shuffled[count:]), np.sort(shuffled[:count])


@dataclass
class Batches:
    """Batches of one fixed size, reshuffled in each epoch; an epoch's incomplete last batch is left out."""

    examples: Indices
    batch_size: int
    seed: int

    def __post_init__(self) -> None:
        if len(self.examples) < self.batch_size:
            raise OptionsError(
                f"--batch-size {self.batch_size} is more than the {len(self.examples)} training examples; "
                "choose a smaller one"
            )
        self._order: tuple[int, Indices] = (-1, self.examples)

    @property
    def per_epoch(self) -> int:
        return len(self.examples) // self.batch_size

    def at(self, step: int) -> Indices:
        """Return the example numbers of a step, counted from 0 over all epochs."""
        epoch, position = divmod(step, self.per_epoch)
        if self._order[0] != epoch:
            self._order = (epoch, np.random.default_rng([self.seed, epoch]).permutation(self.examples))
        start = position * self.batch_size
        return self._order[1][start : start + self.batch_size]


def padded(examples: Indices, batch_size: int) -> Iterator[tuple[Indices, npt.NDArray[np.float32]]]:
    """Yield all examples in batches of one size, with weights that are 0 for the padding of the last batch."""
    for start in range(0, len(examples), batch_size):
        batch = examples[start : start + batch_size]
        weights = np.zeros(batch_size, np.float32)
        weights[: len(batch)] = 1
        yield np.resize(batch, batch_size), weights
