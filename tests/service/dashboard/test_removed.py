"""Pages about a job whose outputs a policy removed."""

import pytest
from support.retention_jobs import RetentionJobs

from core.settings.limits import RetentionSettings
from core.storage.prune import prune


@pytest.fixture
def pruned(stores, tmp_path):
    stores.settings.retention = RetentionSettings(logs_days=30, artifacts_days=30)
    job = RetentionJobs(stores, tmp_path / "left").create_job(31, log=b"one\n", files=["model"])
    prune(stores)
    return job.id


def test_the_page_of_the_job_says_what_went_when_and_why(signed_in_browser, pruned):
    page = signed_in_browser.get(f"/ui/jobs/{pruned}").text
    for sentence in ("The log was removed: kept 30 days", "The artifacts were removed: kept 30 days"):
        assert sentence in page
    assert page.count("by the service&#39;s settings. <time datetime=") == 2
    assert "data-log=" not in page
    assert "/logs/raw" not in page
    assert "artifacts.zip" not in page
    assert "The log was removed: kept 30 days" in (log := signed_in_browser.get(f"/ui/jobs/{pruned}/log").text)
    assert "data-log=" not in log
    assert "/logs/raw" not in log
    assert "<b>retention</b>" in signed_in_browser.get(f"/ui/jobs/{pruned}/events").text


def test_the_page_of_its_files_says_the_same(signed_in_browser, pruned):
    page = signed_in_browser.get(f"/ui/jobs/{pruned}/artifacts").text
    assert "The artifacts were removed: kept 30 days" in page
    assert "Not complete" not in page
    assert "Download all" not in page
    gone = signed_in_browser.get(f"/ui/jobs/{pruned}/artifacts/view", params={"path": "model"})
    assert gone.status_code == 410
    assert "This was removed" in gone.text
