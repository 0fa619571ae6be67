"""Names of queues: one for each name of a machine type or worker, whatever is in it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.notify.messages import machine_type_queue, worker_queue


def test_names_that_look_alike_have_queues_of_their_own():
    names = ["GPU", "GPU+", "GPU-", "gpu", "GPU ", "GPU%2B", "GPU_2B", "GPU~", "GPU/1", "ГПУ", "x" * 200, "x" * 201]
    assert len({machine_type_queue(name) for name in names}) == len(names)
    assert machine_type_queue("GPU+") == "gradient.pool.GPU_2B"
    assert worker_queue("GPU") != machine_type_queue("GPU")


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_names_never_share_a_queue(one, other):
    try:
        same = worker_queue(one) == worker_queue(other)
    except UnicodeEncodeError:  # half of a surrogate pair: no name that a database would keep
        return
    assert same == (one == other)


@pytest.mark.parametrize("name", ["w" * 255, "ш" * 255])
def test_a_queue_has_a_name_that_every_broker_takes(name):
    queue = worker_queue(name)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", queue)
    assert len(queue) < 256
