"""Queries GPUs with the program `nvidia-smi`, where NVIDIA's library cannot be loaded."""

import re
import shutil
import subprocess
from xml.etree import ElementTree as ET

from core.formatting import MIB
from worker.backends.docker.cards import Card, NoDriver, Seen, Use

_SECONDS = 20
_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:MiB|%|W|C)?\s*\Z")
_POWER = ("gpu_power_readings", "power_readings")
_DRAW = ("instant_power_draw", "average_power_draw", "power_draw")


def look() -> tuple[Seen, ...]:
    """Query every GPU, in the driver's order.

    Raises:
        NoDriver: The program is missing, fails, or prints something unreadable.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        raise NoDriver("nvidia-smi is not installed")
    try:
        told = subprocess.run(  # noqa: S603 - found on our own PATH, and nothing of a job's is given to it
            [program, "-q", "-x"], capture_output=True, timeout=_SECONDS, check=True
        ).stdout
        return read(told)
    except (OSError, subprocess.SubprocessError, ET.ParseError, ValueError) as error:
        raise NoDriver(f"nvidia-smi: {error}") from error


def read(told: bytes) -> tuple[Seen, ...]:
    """Parse the GPUs in the output of `nvidia-smi -q -x`.

    Raises:
        ParseError: It is not XML.
        ValueError: It is incomplete; for example, a GPU has no memory.
    """
    log = ET.fromstring(told)  # noqa: S314 - the administrator's own program says it
    driver, cuda = log.findtext("driver_version") or "", _text(log, "cuda_version")
    return tuple(_seen(gpu, str(index), driver, cuda) for index, gpu in enumerate(log.findall("gpu")))


def _seen(gpu: ET.Element, index: str, driver: str, cuda: str | None) -> Seen:
    total, used = (_number(gpu, f"fb_memory_usage/{name}") for name in ("total", "used"))
    if total is None or used is None:
        raise ValueError(f"card {index} does not tell its memory")
    card = Card(
        index=index,
        uuid=gpu.findtext("uuid") or "",
        name=gpu.findtext("product_name") or "",
        memory=int(total) * MIB,
        serial=_text(gpu, "serial"),
        driver=driver,
        cuda=cuda,
    )
    watts = (_number(gpu, f"{readings}/{draw}") for readings in _POWER for draw in _DRAW)
    use = Use(
        memory=int(used) * MIB,
        percent=_number(gpu, "utilization/gpu_util"),
        watts=next((one for one in watts if one is not None), None),
        celsius=_number(gpu, "temperature/gpu_temp"),
        pids=tuple(sorted({int(pid.text or 0) for pid in gpu.iterfind("processes/process_info/pid")})),
    )
    return Seen(card, use)


def _text(element: ET.Element, path: str) -> str | None:
    text = (element.findtext(path) or "").strip()
    return (
        text
        if text.strip("[]") not in {"", "N/A", "Not Supported", "Requested functionality has been deprecated"}
        else None
    )


def _number(element: ET.Element, path: str) -> float | None:
    found = _NUMBER.match(element.findtext(path) or "")
    return float(found[1]) if found else None
