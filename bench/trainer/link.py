"""Pace of the trainer on a TPU behind a slow network, against one message to it for each step.

The TPU is the simulator's: TensorFlow's server on this machine's CPU, behind a proxy that delays every byte.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from statistics import median

from bench import bounds
from bench.measure import Goal, MissingRequirement, Result, Series, Size
from gradient_server.simulator.tpu.device_server import DeviceServer

_MODEL = str(Path(__file__).with_name("dense_model.py"))
_DELAY_SECONDS = 0.005
_REPLICAS, _BATCH = 2, 8
_STEPS, _QUICK_STEPS = 1000, 50
_START_SECONDS = 400
_READ_BYTES = 1 << 20


def run(size: Size) -> Result:
    """Measure both in turn, with a new server for each training."""
    if find_spec("tensorflow") is None:
        raise MissingRequirement("TensorFlow is not installed; the extra `trainer` has it")
    steps = size.pick(_STEPS, _QUICK_STEPS)
    usual = Series("gradient_trainer, as it is", "steps/s")
    single = Series("gradient_trainer, a message for each step", "steps/s")
    for _ in range(size.rounds):
        for series, flags in ((usual, []), (single, ["--steps-per-execution", "1"])):
            series.begin_round()
            series.add(_train(steps, flags))
    ratios = [usual_pace / other for usual_pace, other in zip(usual.samples, single.samples, strict=True)]
    return Result(
        [usual, single],
        [
            Goal(
                f"pace of the trainer with {_DELAY_SECONDS * 1000:g} ms to its TPU, times a message for each step",
                median(ratios),
                bounds.TRAINER_LINK,
                at_most=False,
                spread=(min(ratios), max(ratios)),
            )
        ],
    )


def _train(steps: int, flags: list[str]) -> float:
    """Return the steps per second of a training."""
    device = DeviceServer(replicas=_REPLICAS).start(_START_SECONDS)
    try:
        with slow_proxy(device.port) as port, tempfile.TemporaryDirectory() as output:
            env = os.environ | {"TPU_NAME": "bench", "TPU_GRPC_URL": f"grpc://127.0.0.1:{port}"}
            options = f"--model {_MODEL} --data digits --batch-size {_BATCH} --steps {steps} --output".split()
            command = [sys.executable, "-m", "gradient_trainer", *options, output, *flags]
            subprocess.run(command, env=env | {"KERAS_BACKEND": "tensorflow"}, capture_output=True, check=True)
            return float(json.loads((Path(output) / "result.json").read_text())["steps_per_second"])
    finally:
        device.stop()


@contextmanager
def slow_proxy(target: int) -> Iterator[int]:
    """Yield a port of this machine that leads to another, each byte later by the delay."""
    ready: SimpleQueue[tuple[int, Callable[[], object]]] = SimpleQueue()
    thread = threading.Thread(target=asyncio.run, args=[_serve(target, ready)], name="proxy")
    thread.start()
    port, stop = ready.get()
    try:
        yield port
    finally:
        stop()
        thread.join()


async def _serve(target: int, ready: SimpleQueue[tuple[int, Callable[[], object]]]) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        with suppress(asyncio.CancelledError):
            await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer), return_exceptions=True)

    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    server = await asyncio.start_server(connect, "127.0.0.1", 0)
    ready.put((server.sockets[0].getsockname()[1], lambda: loop.call_soon_threadsafe(stopped.set)))
    await stopped.wait()
    server.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    loop = asyncio.get_running_loop()
    while data := await reader.read(_READ_BYTES):
        # In order, since the delay of all is the same.
        loop.call_later(_DELAY_SECONDS, writer.write, data)
    loop.call_later(_DELAY_SECONDS, writer.close)
