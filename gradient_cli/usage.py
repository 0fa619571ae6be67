"""Descriptions of a job's hardware and resource usage."""

from __future__ import annotations

from gradient_cli.output import size

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def cards(job: Mapping[str, Any]) -> str:
    """Describe the GPUs: `2 x NVIDIA A100-SXM4-40GB, 42.9 GB each, driver 550.54 (CUDA 12.4), cards 0 and 3 there`."""
    number = job.get("gpuCount")
    if not number:
        return ""
    name, memory, driver, cuda = (job.get(f"gpu{what}") for what in ("Name", "Mem", "Driver", "Cuda"))
    places = " and ".join(str(card.get("index")) for card in job.get("gpus") or [])
    said = [
        f"{number} x {name}" if name else f"{number} of unknown model",
        f"{size(memory)}{' each' * (number > 1)}" if memory else "",
        f"driver {driver}" + (f" (CUDA {cuda})" if cuda else "") if driver else "",
        f"card{'s' * (number > 1)} {places} there" if places else "",
    ]
    return ", ".join(part for part in said if part)


def tpu(job: Mapping[str, Any]) -> str:
    """Describe the TPU: `us-central1-b/gj-jabc-1, v2-8, grpc://10.0.0.2:8470`."""
    found = job.get("tpu")
    if not found:
        return ""
    said = [f"{found.get('zone')}/{found.get('name')}", found.get("type"), found.get("grpcUrl")]
    return ", ".join(part for part in said if part)


def used(job: Mapping[str, Any]) -> str:
    """Describe the peak usage: `memory 1.2 GB; CPU 180%, 95% on average; card 100%, 71% on average, …`."""
    usage = job.get("usage") or {}
    memory, card_memory = usage.get("peakMemoryBytes"), usage.get("peakGpuMemoryBytes")
    card = [_share(usage, "Gpu"), f"{size(card_memory)} of its memory" if card_memory is not None else ""]
    said = {
        "memory": size(memory) if memory is not None else "",
        "CPU": _share(usage, "Cpu"),
        "card": ", ".join(part for part in card if part),
    }
    return "; ".join(f"{what} {words}" for what, words in said.items() if words)


def _share(usage: Mapping[str, Any], what: str) -> str:
    peak, mean = usage.get(f"peak{what}Percent"), usage.get(f"mean{what}Percent")
    if peak is None:
        return ""
    return f"{peak:.0f}%" + (f", {mean:.0f}% on average" if mean is not None else "")
