import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from core.settings.group import SettingsGroup

_DISK_PLACE = r"^[a-z0-9-]+/[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"
_BUCKET_NAME = r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$"
_BUCKET_URL = r"(s3|gs|az)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[^\r\n]{0,500})?"
_PACKAGES_URL = r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9._+=@-]+)+/?"


class TpuSettings(SettingsGroup):
    """Cloud TPUs; without a project there are none."""

    project: str | None = Field(
        default=None, description="Google Cloud project of the TPUs; default: none, only simulated TPUs are available"
    )
    zones: list[str] = Field(default=[], description="zones in which to request TPUs, in this order, as a JSON list")
    provisioning: Literal["queued", "node"] = Field(
        default="queued",
        description="how TPUs are provisioned: queued (a queued resource for each job) or node (a node created "
        "directly)",
    )
    placement: Literal["grpc", "vm"] | None = Field(
        default=None,
        description="where a TPU job's program runs: grpc (on the worker's host) or vm (on the TPU VM itself); "
        "default: vm, but grpc for v2 and v3",
    )
    pool: dict[str, list[str]] = Field(
        default={},
        description="existing nodes that jobs use in turn, ZONE/NAME, by machine type, as a JSON object of lists",
    )
    spot: bool = Field(
        default=False,
        description=(
            "request spot capacity unless the job chooses otherwise: cheaper, but it may be taken away at any time"
        ),
    )
    reservations: dict[str, str] = Field(
        default={},
        description="reservation that jobs use, ZONE/NAME, by machine type, as a JSON object; needs the provisioning "
        "mode queued",
    )
    data_disks: list[Annotated[str, StringConstraints(pattern=_DISK_PLACE)]] = Field(
        default=[], description="existing persistent disks that jobs on TPU VMs may attach, ZONE/NAME, as a JSON list"
    )
    runtimes: dict[str, str] = Field(
        default={}, description="runtime version by machine type, if the default does not fit, as a JSON object"
    )
    network: str | None = Field(
        default=None, description="VPC network of new nodes; default: the project's default network"
    )
    subnetwork: str | None = Field(default=None, description="subnetwork of new nodes, if the network has several")
    tags: list[str] = Field(
        default=[], description="network tags of new nodes, which firewall rules can name, as a JSON list"
    )
    external_ips: bool = Field(default=False, description="give new nodes public IP addresses")
    service_account: str | None = Field(
        default=None, description="service account of new nodes; default: Google's default"
    )
    tensorflow: str = Field(
        default="2.20.0",
        description="version of tensorflow-tpu that new nodes serve at port 8470; jobs need the same version",
    )
    packages: str | None = Field(
        default=None,
        description=(
            "folder of wheels in Cloud Storage, gs://BUCKET/FOLDER, from which new nodes install TensorFlow "
            "without Internet access; default: they install it from PyPI"
        ),
    )
    runner: Literal["docker", "process"] = Field(
        default="docker",
        description="how programs of TPU jobs run on the worker's host: docker, or process, without isolation",
    )
    provision_timeout_seconds: float = Field(
        default=6 * 3600.0, gt=0, description="total seconds that a job waits for a TPU"
    )
    poll_seconds: float = Field(
        default=5.0,
        gt=0,
        description="seconds between looks at a TPU that a job waits for: its bill is exact to this",
    )
    simulator_address: str | None = Field(
        default=None, description="HOST:PORT of `gradient-server tpu-simulator`, used instead of Google's API"
    )

    @field_validator("packages")
    @classmethod
    def _is_folder(cls, packages: str | None) -> str | None:
        if packages is not None and re.fullmatch(_PACKAGES_URL, packages) is None:
            raise ValueError(
                "must be gs://BUCKET/FOLDER: the bucket's name in lower case, then at least one folder of letters, "
                "digits and ._+=@-"
            )
        return packages

    @property
    def backend(self) -> str | None:
        """Name of the backend of TPU jobs; None: there are no TPUs."""
        if self.simulator_address is not None:
            return "tpu-simulator"
        return "tpu" if self.project is not None else None

    def provisioning_for(self, machine_type: str) -> str:
        return "pool" if machine_type in self.pool else self.provisioning

    def capacity_for(self, machine_type: str) -> str:
        if machine_type in self.reservations:
            return "reserved"
        return "spot" if self.spot else "standard"

    def on_vm(self, *, by_default: bool) -> bool:
        return by_default if self.placement is None else self.placement == "vm"


class GcsSettings(SettingsGroup):
    endpoint: str | None = Field(
        default=None, description="URL of a Cloud Storage simulator, used instead of Google's API", pattern="^https?://"
    )
    ca: Path | None = Field(default=None, description="certificate authority (PEM) of the Cloud Storage simulator")


class StoreSettings(SettingsGroup):
    url: str | None = Field(
        default=None,
        description="bucket for artifacts and uploaded data sets: s3://BUCKET/PREFIX, gs://… or az://CONTAINER/PREFIX; "
        "default: folders under GRADIENT_HOME",
    )
    signed_urls: bool = Field(
        default=False,
        description="redirect browsers to signed URLs of the bucket instead of sending files through the service",
    )

    @field_validator("url")
    @classmethod
    def _is_bucket(cls, url: str | None) -> str | None:
        if url is not None and re.fullmatch(_BUCKET_URL, url) is None:
            raise ValueError(
                "must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX, the bucket's name in lower "
                "case"
            )
        return url


class BucketSettings(SettingsGroup):
    name: str | None = Field(
        default=None,
        description="bucket for the files of TPU jobs; default: PROJECT-gradient-REGION, created when a job first "
        "needs it",
        pattern=_BUCKET_NAME,
    )
