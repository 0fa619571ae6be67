"""Schemas of a job's hardware and resource usage."""

from pydantic import Field

from service.wire_base import View


class CardView(View):
    """A card that a job has for itself."""

    index: str = Field(description="its number on its host; the job numbers its cards from 0")
    uuid: str | None
    serial: str | None
    name: str | None
    memory: int | None = Field(description="bytes")


class JobTpu(View):
    """The TPU that a job has for itself."""

    zone: str
    name: str
    type: str = Field(description="the cloud's name of the kind, such as v2-8")
    grpc_url: str | None = Field(description="its address; null where the job runs on the TPU's own VM")


class UsageView(View):
    """The most that an attempt used so far, and its means; null where it is not measured."""

    sampled_seconds: float = Field(description="running time that the means are of")
    peak_memory_bytes: int | None
    peak_cpu_percent: float | None = Field(description="100 is one CPU")
    mean_cpu_percent: float | None
    peak_gpu_memory_bytes: int | None = Field(description="of the card that used most")
    peak_gpu_percent: float | None = Field(description="of the busiest card; 100 is all of it")
    mean_gpu_percent: float | None = Field(description="of all its cards")
