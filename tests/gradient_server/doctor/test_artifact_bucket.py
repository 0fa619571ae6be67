import sys

import pytest

from core.settings import Settings
from core.settings.cloud import ArtifactSettings
from gradient_server.checks import artifact_bucket
from gradient_server.checks.finding import Status


@pytest.fixture
def found(gcs, tmp_path):
    def found(name):
        kept_in = ArtifactSettings(url=f"gs://{name}/prefix")
        (finding,) = artifact_bucket.check(Settings(home=tmp_path, gcs=gcs.settings, artifacts=kept_in))
        return finding

    return found


def test_a_bucket_that_can_be_used_is_well(gcs, found):
    assert found(gcs.new_bucket()).status is Status.OK


def test_a_bucket_that_is_not_there_is_a_problem(found):
    finding = found("nobody-made-this")
    assert (finding.status, "GRADIENT_ARTIFACTS__URL" in finding.fix) == (Status.PROBLEM, True)
    assert "does not exist" in finding.message


def test_an_account_that_may_not_write_is_a_problem(gcs, found, monkeypatch):
    monkeypatch.setattr(
        "gradient_server.simulator.gcs.api.has_access", lambda *asked: asked[2].permission.endswith("get")
    )
    finding = found(gcs.new_bucket())
    assert (finding.status, "roles/storage.objectUser" in finding.fix) == (Status.PROBLEM, True)
    assert "storage.objects.create, storage.objects.delete, storage.objects.list" in finding.message


def test_a_bucket_without_googles_libraries_is_a_problem(gcs, found, monkeypatch):
    name = gcs.new_bucket()
    monkeypatch.setitem(sys.modules, "core.storage.gcs.client", None)  # as if one of its own imports failed
    finding = found(name)
    assert (finding.status, "pip install" in finding.fix) == (Status.PROBLEM, True)
