import pytest

from core.settings import Settings
from core.settings.cloud import StoreSettings
from gradient_server.checks import bucket
from gradient_server.checks.finding import Status


@pytest.fixture
def found(gcs, tmp_path):
    def found(url):
        settings = Settings(home=tmp_path, gcs=gcs.settings, store=StoreSettings(url=url))
        (finding,) = bucket.check(settings)
        return finding

    return found


def test_a_bucket_that_can_be_used_is_well_and_left_as_it_was(gcs, s3, found):
    name = gcs.new_bucket()
    for url in (f"gs://{name}/prefix", s3.url):
        assert found(url).status is Status.OK
    assert (gcs.read_objects(name), s3.read_objects("")) == ({}, {})


@pytest.mark.parametrize("cloud", ["gs", "s3"])
@pytest.mark.usefixtures("s3")
def test_a_bucket_that_is_not_there_is_a_problem(found, cloud):
    finding = found(f"{cloud}://nobody-made-this")
    assert (finding.status, "GRADIENT_STORE__URL" in finding.fix) == (Status.PROBLEM, True)
    assert "writing failed" in finding.message
    assert "404" in finding.message


def test_an_account_that_may_not_list_is_a_problem(gcs, found, monkeypatch):
    monkeypatch.setattr("gradient_server.simulator.gcs.api.has_access", lambda *asked: not asked[2].endswith("list"))
    finding = found(f"gs://{gcs.new_bucket()}")
    assert finding.status is Status.PROBLEM
    assert "listing failed" in finding.message


def test_wrong_keys_are_a_problem(s3, found, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOTHER")
    finding = found(s3.url)
    assert finding.status is Status.PROBLEM
    assert "InvalidAccessKeyId" in finding.message
    assert "credentials" in finding.fix


def test_a_bucket_that_overwrites_what_it_should_keep_is_a_problem(gcs, found, monkeypatch):
    monkeypatch.setattr("gradient_server.simulator.gcs.xml_objects.conditions", lambda _headers: {})
    name = gcs.new_bucket()
    finding = found(f"gs://{name}")
    assert (finding.status, "manifest" in finding.message) == (Status.PROBLEM, True)
    assert gcs.read_objects(name) == {}
