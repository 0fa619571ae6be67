"""Latency of a job in a container: submission → first line, last line → end, against the same container by hand."""

import time

from bench import bounds
from bench.containers.engine import engine
from bench.measure import Result, Series, Size, ratio_goal
from bench.service import Service, follow, run_server, submit_alone

_REST_SECONDS = 0.25  # the worker still cleans up after a job when its end is visible
_COMMAND = "echo first; sleep 0.3; echo last"


def run(size: Size) -> Result:
    """Run one job, then one container by the SDK, then one by `docker run`, in turn, on an idle service."""
    ours = Series("submit → first line read", "ms"), Series("last line read → end seen", "ms")
    sdk = Series("SDK: create → first line read", "ms"), Series("SDK: last line read → removed", "ms")
    hand = Series("docker run: → first line read", "ms"), Series("docker run: last line read → end", "ms")
    docker_engine = engine()
    with run_server("up", **docker_engine.environment) as service, docker_engine.client() as client:
        _measure_job(service)
        for _ in range(size.rounds):
            for measured in (*ours, *sdk, *hand):
                measured.begin_round()
            for _ in range(size.pick(10, 2)):
                time.sleep(_REST_SECONDS)
                _record(ours, _measure_job(service))
                _record(sdk, docker_engine.run_by_sdk(client, _COMMAND))
                _record(hand, docker_engine.run_by_hand(_COMMAND))
    goal = ratio_goal(
        "container: submit → first line, p50, times create and start by the SDK",
        ours[0],
        sdk[0],
        bounds.CONTAINER_FIRST_LINE,
    )
    return Result([*ours, *sdk, *hand], [goal])


def _record(series: tuple[Series, Series], seconds: tuple[float, float]) -> None:
    for measured, value in zip(series, seconds, strict=True):
        measured.add(value * 1000)


def _measure_job(service: Service) -> tuple[float, float]:
    """Return the seconds from the submission to the first line read, and from the last line read to the end."""
    began = time.perf_counter()
    job_id = submit_alone(service, _COMMAND)
    first = last = None
    for name, data in follow(service, job_id):
        now = time.perf_counter()
        if name == "line":
            first, last = first or now, now
        elif name == "end" and (first is None or last is None or data["exitCode"] != 0):
            raise RuntimeError(f"the job ended as {data}")
        elif name == "end":
            return first - began, now - last
    raise RuntimeError("the log ended before the job")
