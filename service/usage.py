"""Public form of the hardware and the resource usage of a job's attempt."""

from typing import TypedDict

from core.jobs.models import Attempt
from service.wire_usage import CardView, JobTpu, UsageView


class Machine(TypedDict):
    """The fields of a job with its GPUs, its TPU and its usage."""

    gpu_name: str | None
    gpu_mem: int | None
    gpu_driver: str | None
    gpu_cuda: str | None
    gpu_count: int | None
    gpus: list[CardView]
    tpu: JobTpu | None
    usage: UsageView | None


def machine_of(attempt: Attempt | None) -> Machine:
    """Build the fields from the job's current attempt; None: no attempt yet."""
    cards = (attempt.cards if attempt else None) or []
    first = cards[0] if cards else {}
    return {
        "gpu_name": first.get("name"),
        "gpu_mem": first.get("memory"),
        "gpu_driver": first.get("driver"),
        "gpu_cuda": first.get("cuda"),
        "gpu_count": len(cards) or None,
        "gpus": [
            CardView(
                index=str(card.get("index")),
                uuid=card.get("uuid"),
                serial=card.get("serial"),
                name=card.get("name"),
                memory=card.get("memory"),
            )
            for card in cards
        ],
        "tpu": _tpu(attempt),
        "usage": _usage(attempt),
    }


def _tpu(attempt: Attempt | None) -> JobTpu | None:
    found = attempt.tpu if attempt else None
    if found is None:
        return None
    return JobTpu(zone=found["zone"], name=found["name"], type=found["type"], grpc_url=found["url"])


def _usage(attempt: Attempt | None) -> UsageView | None:
    if attempt is None or attempt.sampled_seconds is None:
        return None
    return UsageView(
        sampled_seconds=round(attempt.sampled_seconds, 3),
        peak_memory_bytes=attempt.peak_memory_bytes,
        peak_cpu_percent=_rounded(attempt.peak_cpu_percent),
        mean_cpu_percent=_rounded(attempt.mean_cpu_percent),
        peak_gpu_memory_bytes=attempt.peak_gpu_memory_bytes,
        peak_gpu_percent=_rounded(attempt.peak_gpu_percent),
        mean_gpu_percent=_rounded(attempt.mean_gpu_percent),
    )


def _rounded(percent: float | None) -> float | None:
    return None if percent is None else round(percent, 1)
