"""Data sets that jobs have copied to a bucket, while other jobs write in the storage that they lie in."""

import os
import stat
from types import SimpleNamespace

import pytest

from core.settings.cloud import TpuSettings
from worker.backends.base import LaunchError
from worker.backends.tpu.storage.job_storage import JobStorage

ZONE = "us-central1-b"


class Bucket:
    """Takes what is staged; what it is given to do meanwhile happens between the look and the copy."""

    def __init__(self, meanwhile):
        self.staged = {}
        self._meanwhile = meanwhile

    def prepare(self, _job_id):
        self._meanwhile()
        return SimpleNamespace(model_dir="gs://m", data_dir="gs://d", credentials=None)

    def probe(self, _account):
        return SimpleNamespace(statement="It was tried.")

    def stage(self, _job_id, name, source, _check):
        if stat.S_ISREG(os.fstat(source).st_mode):
            self.staged = {name: os.pread(source, 100, 0)}
            return ()
        with os.scandir(source) as entries:
            self.staged = {one.name: self._read(one.name, source) for one in entries}
        return ()

    def _read(self, name, folder):
        descriptor = os.open(name, os.O_RDONLY, dir_fd=folder)
        try:
            return os.pread(descriptor, 100, 0)
        finally:
            os.close(descriptor)

    def remove(self, _job_id):
        pass


@pytest.fixture
def storage(tmp_path):
    """The storage that every job writes in, with a data set; beside it a secret of the host's under the same names."""
    for folder, content in (("storage", b"data"), ("host", b"the host's own")):
        place = tmp_path / folder / "x" / "etc"
        place.mkdir(parents=True)
        (place / "hostname").write_bytes(content)
    return tmp_path / "storage"


def staged(storage, named, meanwhile):
    bucket = Bucket(meanwhile)
    (storage.parent / "workspace").mkdir(exist_ok=True)
    spec = SimpleNamespace(
        machine_type="TPU",
        job_id="j1",
        attempt=1,
        env={"TPU_STAGE": named},
        storage=storage,
        workspace=storage.parent / "workspace",
        check=lambda: None,
    )
    JobStorage(lambda _: bucket, spec, TpuSettings(), lambda *_: None, on_vm=False).prepare(ZONE)
    return bucket.staged


@pytest.mark.parametrize(
    ("named", "swapped"),
    [
        ("x/etc/hostname", "x"),
        ("x/etc/hostname", "x/etc"),
        ("x/etc/hostname", "x/etc/hostname"),
        ("x/etc", "x"),
        ("x/etc", "x/etc"),
    ],
)
def test_a_link_that_is_swapped_in_leads_to_no_file_of_the_host(storage, named, swapped):
    """The path is looked over, another job puts a link in its place, and seconds later it would be followed."""

    def swap():
        (storage / swapped).rename(storage / "moved")
        (storage / swapped).symlink_to(storage.parent / "host" / swapped)

    assert staged(storage, f"/storage/{named}", swap) == {"hostname": b"data"}


@pytest.mark.parametrize(
    "named",
    [
        "/storage/../host/x/etc/hostname",
        "/storage//etc/hostname",
        "/etc/hostname",
        "../host",
        "/storage/link",
        "missing",
    ],
)
def test_what_lies_outside_or_behind_a_link_is_not_staged(storage, named):
    (storage / "link").symlink_to("x")
    with pytest.raises(LaunchError, match="data_missing"):
        staged(storage, named, lambda: None)
