"""The doctor's findings about the folder of wheels for TPU nodes."""

import pytest
from support.google.production import PROJECT

from core.settings import Settings
from gradient_server.checks import tpus
from gradient_server.checks.finding import Status

pytestmark = pytest.mark.integration

FOLDER = "gs://mirror/tpu"
ACCOUNT = f"tpu@{PROJECT}.iam.gserviceaccount.com"


@pytest.fixture
def storage(google):
    viewer = {"role": "roles/storage.objectViewer", "members": [f"serviceAccount:{ACCOUNT}"]}
    google.storage.buckets.create("mirror", {}).policy["bindings"] = [viewer]
    for name in ("pip-26.3", "tensorflow_tpu-2.20.0", "libtpu-0.0.14"):
        google.storage.buckets.put("mirror", f"tpu/{name}-py3-none-any.whl", b"", {}, {})
    return google.storage


@pytest.fixture
def find(storage, tmp_path):
    """Returns what is said about the folder; there is nothing without `storage`."""
    assert storage.objects()

    def find(**options):
        tpu = {"project": PROJECT, "zones": ["us-central1-b"], "packages": FOLDER, "service_account": ACCOUNT}
        found = tpus.check(Settings(home=tmp_path, tpu=tpu | options))
        return [(one.status, f"{one.message} {one.fix or ''}") for one in found if one.check == "tpu-packages"]

    return find


def test_the_nodes_account_lists_the_folder(find, storage):
    [(status, words)] = find()
    assert (status, words.startswith(f"{ACCOUNT} lists the wheels of pip, tensorflow-tpu")) == (Status.OK, True)
    assert any(":generateAccessToken" in one for one in storage.requests)


def test_whether_the_nodes_account_may_read_is_not_always_known(find, storage):
    storage.faults.fail(403, 9, path=":generateAccessToken")
    [(status, words)] = find()
    assert (status, f"Grant {ACCOUNT} roles/storage.objectViewer on gs://mirror" in words) == (Status.WARNING, True)
    assert find(service_account=None)[0][0] is Status.WARNING


def test_a_missing_wheel_is_named(find, storage):
    storage.buckets.delete("mirror", "tpu/libtpu-0.0.14-py3-none-any.whl", {})
    storage.buckets.put("mirror", "tpu/libtpu-0.0.14.tar.gz", b"", {}, {})
    [(status, words)] = find()
    assert (status, f"{FOLDER} has no wheel of libtpu: " in words) == (Status.PROBLEM, True)


def test_a_folder_that_may_not_be_listed(find, storage):
    storage.faults.fail(403, path="/b/mirror/o")
    [(status, words)] = find()
    assert (status, "listing it is not allowed" in words) == (Status.PROBLEM, True)
    assert find(packages="gs://missing/tpu")[0][0] is Status.PROBLEM


@pytest.mark.parametrize("options", [{"packages": None}, {"placement": "vm"}])
def test_nodes_that_install_nothing_from_it_need_no_folder(find, options):
    assert find(**options) == []
