import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from core.formatting import GIB
from core.settings.group import SettingsGroup

_DISK_PLACE = r"^[a-z0-9-]+/[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"
_BUCKET_NAME = r"^[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]$"
_BUCKET_URL = r"(s3|gs|az)://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[^\r\n]{0,500})?"
_PACKAGES_URL = r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[A-Za-z0-9._+=@-]+)+/?"


class TpuTimes(SettingsGroup):
    """Seconds for which TPUs and Google are waited for."""

    poll_seconds: float = Field(default=5.0, gt=0)
    """Between looks at a TPU that a job waits for: a bill that is exact to this, by 12 requests a minute and job."""
    watch_seconds: float = Field(default=5.0, gt=0)  # between looks at a TPU in use; likewise
    timeout_seconds: float = Field(default=30.0, gt=0)
    """For one response of the TPU API; also the longest that a stop can be kept waiting."""
    api_retry_seconds: float = Field(default=600.0, ge=0)
    """For an API that does not answer, or refuses to tell of a TPU that it has: an outage costs no place in a queue."""
    grant_seconds: float = Field(default=150.0, ge=0)
    """For a permission that is refused: Google may take two minutes to apply a grant. Nothing is billed meanwhile."""
    unhealthy_seconds: float = Field(default=120.0, ge=0)
    """For a TPU that is unhealthy, in repair or silent, and billed: long enough for a restart."""
    probe_seconds: float = Field(default=300.0, ge=0)
    """From READY to an open port or a VM's first report, the installation of TensorFlow included."""
    vm_poll_seconds: float = Field(default=2.0, gt=0)
    """Between looks at the reports of a TPU VM: the log is late by this."""
    vm_start_seconds: float = Field(default=1800.0, gt=0)
    """From a VM's first report to the start of its job, the pull of an image of many gigabytes included."""
    vm_collect_seconds: float = Field(default=3600.0, gt=0)
    """For the artifacts of a VM after its job's end: 100 GB at 30 MB/s."""
    vm_abandoned_seconds: float = Field(default=2700.0, gt=0)
    """Without any worker, until a VM saves its outputs and deletes itself: its token of an hour must still work."""
    orphan_grace_seconds: float = Field(default=600.0, ge=0)
    """Age at which a TPU without a record is deleted: younger ones may be about to be recorded."""


class TpuSettings(SettingsGroup):
    """Cloud TPUs; without a project there are none."""

    project: str | None = Field(
        default=None, description="Google Cloud project of the TPUs; default: none, only simulated TPUs are available"
    )
    zones: list[str] = Field(default=[], description="zones in which to request TPUs, in this order, as a JSON list")
    provisioning: Literal["queued", "node", "pool"] = Field(
        default="queued",
        description="how TPUs are provisioned: queued (a queued resource for each job), node (a node created "
        "directly) or pool (existing nodes)",
    )
    provisioning_by_type: dict[str, Literal["queued", "node", "pool"]] = Field(
        default={}, description="exceptions from GRADIENT_TPU__PROVISIONING by machine type, as a JSON object"
    )
    placement: Literal["grpc", "vm"] | None = Field(
        default=None,
        description="where a TPU job's program runs: grpc (on the worker's host) or vm (on the TPU VM itself); "
        "default: vm, but grpc for v2 and v3",
    )
    placement_by_type: dict[str, Literal["grpc", "vm"]] = Field(
        default={}, description="exceptions from GRADIENT_TPU__PLACEMENT by machine type, as a JSON object"
    )
    pool: dict[str, list[str]] = Field(
        default={},
        description="existing nodes for the provisioning mode pool, ZONE/NAME, by machine type, as a JSON object of "
        "lists",
    )
    spot: bool = Field(
        default=False,
        description="request spot capacity, unless a job chooses: cheaper, but it may be taken away at any time",
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
        default={}, description="runtime version by machine type, where the default does not fit, as a JSON object"
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
        description="folder of wheels in Cloud Storage, gs://BUCKET/FOLDER, from which new nodes install TensorFlow "
        "without the Internet; default: they install it from PyPI",
    )
    runner: Literal["docker", "process"] = "docker"  # on the worker's host; process, without isolation: the simulator
    provision_timeout_seconds: float = Field(
        default=6 * 3600.0, gt=0, description="seconds that a job waits for a TPU in total"
    )
    times: TpuTimes = TpuTimes()
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
        return self.provisioning_by_type.get(machine_type, self.provisioning)

    def capacity_for(self, machine_type: str) -> str:
        if machine_type in self.reservations:
            return "reserved"
        return "spot" if self.spot else "standard"

    def on_vm(self, machine_type: str, *, by_default: bool) -> bool:
        placement = self.placement_by_type.get(machine_type, self.placement)
        return by_default if placement is None else placement == "vm"


class GcsSettings(SettingsGroup):
    project: str | None = Field(
        default=None,
        description="Google Cloud project in which buckets are created; default: GRADIENT_TPU__PROJECT, else that of "
        "the credentials",
    )
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
    keep: bool = False  # a job's prefix in the bucket after its outputs are stored, to look into it
    token_seconds: int = Field(default=3600, ge=60, le=43_200)
    """For which a job's access token for its own prefix is valid: Google's default."""
    token_port: int = Field(
        default=8473, ge=0, le=65535
    )  # where jobs beside their TPU ask the worker for fresh tokens; 0: they keep the first
    max_dataset_bytes: int = Field(
        default=100 * GIB, ge=0, description="bytes of the largest data set that is copied to the bucket for a job"
    )
