import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.runner.statsd import Sample, parse


def test_what_the_client_sends_is_read():
    data = b"loss:0.25|g|#container_name:j1\nsteps:3|c|@0.5|#env:x,container_name:j1\nms:12|ms|#container_name:j1\n"
    samples = [Sample("loss", "g", 0.25, "j1"), Sample("steps", "c", 6.0, "j1"), Sample("ms", "ms", 12.0, "j1")]
    assert parse(data) == (samples, 0)


@pytest.mark.parametrize(
    "line",
    ["", "loss", "loss:", "loss:1", "loss:x|g", "loss:nan|g", "loss:inf|g", "loss:1|x", "loss:1|c|@0", "loss:1|c|@2",
     ":1|g", "a\x1bb:1|g", "n" * 201 + ":1|g", "loss:1e308|c|@1e-9"],
)  # fmt: skip
def test_what_is_malformed_is_counted(line):
    assert parse(line.encode()) == ([], 1 if line else 0)


@given(st.binary(max_size=300) | st.from_regex(rb"[a-z]{1,3}:[-+0-9.e]{1,4}\|[a-z]{1,2}(\|[@#][a-z0-9:,]{0,20})*"))
def test_nothing_that_is_sent_does_harm(data):
    samples, _ = parse(data)
    assert all(math.isfinite(sample.value) and sample.name.isprintable() for sample in samples)
