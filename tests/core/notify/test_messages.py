"""Names of queues: one for each name of a machine type or worker, whatever is in it."""

import re

import pytest

from core.notify.messages import machine_type_queue, worker_queue


def test_names_that_look_alike_have_queues_of_their_own():
    names = ["GPU", "GPU+", "GPU-", "gpu", "GPU ", "GPU%2B", "GPU_2B", "GPU~", "GPU/1", "ГПУ", "x" * 200, "x" * 201]
    assert len({machine_type_queue(name) for name in names}) == len(names)
    assert machine_type_queue("GPU+") == "gradient.pool.GPU_2B"
    assert worker_queue("GPU") != machine_type_queue("GPU")


@pytest.mark.parametrize("name", ["w" * 255, "ш" * 255])
def test_a_queue_has_a_name_that_every_broker_takes(name):
    queue = worker_queue(name)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", queue)
    assert len(queue) < 256
