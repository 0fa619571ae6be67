"""Settings of Cloud TPUs and Cloud Storage."""

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from core.formatting import GIB
from core.settings.group import SettingsGroup
from core.settings.retention import MAX_DAYS

_BUCKET_NAME = r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$"
_BUCKET_URL = r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[^\r\n]{0,500})?"


class TpuSettings(SettingsGroup):
    """Cloud TPUs; without a project there are none."""

    project: str | None = Field(default=None, description="Google Cloud project; none: no TPUs but simulated ones")
    zones: list[str] = Field(default=[], description="zones that TPUs are sought in, in this order, as a JSON list")
    provisioning: Literal["queued", "node", "pool"] = Field(
        default="queued",
        description="how a TPU is had: queued (a queued resource made for the job), node (a node made at once) or "
        "pool (nodes that are there)",
    )
    provisioning_by_type: dict[str, Literal["queued", "node", "pool"]] = Field(
        default={}, description="the same by machine type, where it differs, as a JSON object"
    )
    placement: Literal["grpc", "vm"] = Field(
        default="grpc",
        description="where a TPU's job runs: grpc (beside it, on the worker's host) or vm (on the TPU VM itself)",
    )
    placement_by_type: dict[str, Literal["grpc", "vm"]] = Field(
        default={}, description="the same by machine type, where it differs, as a JSON object"
    )
    vm_poll_seconds: float = Field(
        default=2.0, gt=0, description="seconds between the steps in which a job on a TPU VM is told of"
    )
    pool: dict[str, list[str]] = Field(
        default={}, description="nodes that are there, ZONE/NAME, by machine type, as a JSON object of lists"
    )
    spot: bool = Field(default=False, description="ask for spot capacity: cheaper, and may be taken away at any time")
    runtimes: dict[str, str] = Field(
        default={}, description="runtime version by machine type, where the usual one will not do, as a JSON object"
    )
    network: str | None = Field(default=None, description="VPC network of new nodes; default: the project's default")
    subnetwork: str | None = Field(default=None, description="subnetwork of new nodes, where the network has several")
    external_ips: bool = Field(default=False, description="give new nodes addresses on the Internet")
    service_account: str | None = Field(default=None, description="account that new nodes act as; default: Google's")
    tensorflow: str = Field(
        default="2.20.0", description="version of tensorflow-tpu that new nodes serve at port 8470; jobs need the same"
    )
    runner: Literal["docker", "process"] = Field(
        default="docker", description="what runs a job beside its TPU: docker, or process (not isolated at all)"
    )
    provision_timeout_seconds: float = Field(
        default=6 * 3600.0, gt=0, description="seconds that a job waits for a TPU, all in all"
    )
    timeout_seconds: float = Field(default=30.0, gt=0, description="seconds that one answer of the TPU API may take")
    api_retry_seconds: float = Field(
        default=600.0, ge=0, description="seconds that a job's start bears a TPU API that does not answer"
    )
    poll_seconds: float = Field(default=5.0, gt=0, description="seconds between looks at a TPU that is awaited")
    watch_seconds: float = Field(default=15.0, gt=0, description="seconds between looks at a TPU that is in use")
    unhealthy_seconds: float = Field(
        default=120.0, ge=0, description="seconds that a TPU may be unhealthy before it is given up"
    )
    probe_seconds: float = Field(
        default=300.0, ge=0, description="seconds that a TPU that is ready may take to open its port"
    )
    orphan_grace_seconds: float = Field(
        default=600.0, ge=0, description="age in seconds at which a TPU of ours that no job owns is deleted"
    )
    simulator_address: str | None = Field(
        default=None, description="HOST:PORT of `gradient-server tpu-simulator`, used instead of Google's API"
    )

    @property
    def backend(self) -> str | None:
        """Name of the backend of TPU jobs; None: there are no TPUs."""
        if self.simulator_address is not None:
            return "tpu-simulator"
        return "tpu" if self.project is not None else None

    def provisioning_for(self, machine_type: str) -> str:
        """Return the provisioning mode of this machine type."""
        return self.provisioning_by_type.get(machine_type, self.provisioning)

    def on_vm(self, machine_type: str) -> bool:
        """Return whether a job of this machine type runs on the TPU VM itself."""
        return self.placement_by_type.get(machine_type, self.placement) == "vm"


class GcsSettings(SettingsGroup):
    """Google Cloud Storage."""

    project: str | None = Field(default=None, description="project that buckets are made in; default: the credentials'")
    concurrency: int = Field(default=8, ge=1, le=64, description="files sent or fetched at once")
    endpoint: str | None = Field(
        default=None, description="URL of a simulator of Cloud Storage, used instead of Google's", pattern="^https?://"
    )
    ca: Path | None = Field(default=None, description="certificate authority (PEM) of that simulator")


class ArtifactSettings(SettingsGroup):
    """Storage of artifacts."""

    url: str | None = Field(
        default=None,
        description="bucket that artifacts are kept in, gs://BUCKET/PREFIX; default: a folder under GRADIENT_HOME",
    )
    signed_urls: bool = Field(
        default=False, description="send browsers to the bucket for a file, by a signed URL, not through the service"
    )
    signed_url_ttl_seconds: float = Field(
        default=300.0, ge=1, le=7 * 86_400, description="seconds that such a signed URL works"
    )

    @field_validator("url")
    @classmethod
    def _is_bucket(cls, url: str | None) -> str | None:
        if url is not None and re.fullmatch(_BUCKET_URL, url) is None:
            raise ValueError("must be gs://BUCKET or gs://BUCKET/PREFIX, the bucket's name in lower case")
        return url


class BucketSettings(SettingsGroup):
    """The bucket for the files of TPU jobs."""

    name: str | None = Field(
        default=None,
        description="bucket for TPU jobs; default: PROJECT-gradient-REGION, made when a job first needs it",
        pattern=_BUCKET_NAME,
    )
    keep: bool = Field(default=False, description="leave a job's prefix in the bucket after its outputs are kept")
    keep_days: int = Field(
        default=30, ge=1, le=MAX_DAYS, description="days after which a bucket of our own drops what was left in it"
    )
    token_seconds: int = Field(
        default=3600, ge=60, le=43_200, description="seconds that a job's own access to its prefix lasts, at most"
    )
    max_dataset_bytes: int = Field(
        default=100 * GIB, ge=0, description="most bytes of a job's data set that are copied to the bucket"
    )
