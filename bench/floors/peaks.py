"""Operations and bytes a second of the CPUs that this process may use, as the best of several tries.

Prints GFLOPS of single precision in a product of matrices, and GB/s of a copy, read and written.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

SIDE, MEGABYTES, TRIES = 1024, 64, 60


def main() -> None:
    """Measure both."""
    cpus = len(os.sched_getaffinity(0))
    left, right = (np.random.default_rng(seed).random((SIDE, SIDE), np.float32) for seed in (1, 2))
    product = np.empty_like(left)
    flops = 2 * SIDE**3 / best(lambda: np.matmul(left, right, out=product))
    sources, targets = ([np.ones(MEGABYTES << 18, np.float32) for _ in range(cpus)] for _ in range(2))
    with ThreadPoolExecutor(cpus) as pool:
        moved = 2 * sum(array.nbytes for array in sources) / best(lambda: list(pool.map(np.copyto, targets, sources)))
    print(flops / 1e9, moved / 1e9)


def best(work: Callable[[], object]) -> float:
    """Return the shortest time in seconds."""
    times = []
    for _ in range(TRIES):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


if __name__ == "__main__":
    main()
