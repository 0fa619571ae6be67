import pytest
from pydantic import ValidationError

from core.settings import Settings
from core.settings.api import ApiSettings
from core.settings.limits import LimitSettings
from core.settings.network import TensorBoardSettings


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("https://Jobs.Example.org:443/", "https://jobs.example.org"),
        ("http://jobs.example.org:80", "http://jobs.example.org"),
        ("https://jobs.example.org:8443", "https://jobs.example.org:8443"),
        ("http://[::1]:8780/", "http://[::1]:8780"),
    ],
)
def test_public_urls_are_as_a_browser_sends_them(given, used):
    assert ApiSettings(public_url=given).public_url == used
    assert TensorBoardSettings(url=given).url == used


@pytest.mark.parametrize("given", ["jobs.example.org", "ftp://jobs.example.org", "https://"])
def test_what_is_no_public_url_is_refused_with_an_example(given):
    with pytest.raises(ValidationError, match=r"It is not a URL such as https://jobs\.example\.org"):
        ApiSettings(public_url=given)


@pytest.mark.parametrize("given", ["https://jobs.example.org/ui", "http://h:1/a/b/", "https://h/?q=1", "https://h/#x"])
def test_a_public_url_with_a_path_is_refused_in_a_sentence(given):
    with pytest.raises(ValidationError, match=r"It has a path, but the dashboard needs a separate host name or port"):
        ApiSettings(public_url=given)


def test_an_empty_variable_means_the_default(monkeypatch):
    for name in ("GRADIENT_HOME", "GRADIENT_API__PORT", "GRADIENT_DATABASE__URL"):
        monkeypatch.setenv(name, "")
    settings, default = Settings(), Settings.model_construct()
    assert (settings.home, settings.api, settings.database) == (default.home, default.api, default.database)


def test_processes_of_the_api_share_its_limits_and_together_allow_no_less():
    limits = {"requests_per_minute": 100, "streams": 0, "searches": 1, "queued_per_key": 50}
    api = {"processes": 3, "max_connections": 1000, "max_connections_per_client": 2}
    share = Settings(api=api, limits=limits).of_one_process()
    assert (share.limits.requests_per_minute, share.limits.streams, share.limits.searches) == (34, 0, 1)
    assert share.limits.queued_per_key == 50, "not counted by each process"
    assert (share.api.max_connections, share.api.max_connections_per_client) == (334, 1)
    alone = Settings(api=api | {"processes": 1}, limits=limits)
    assert alone.of_one_process() == alone


def test_every_limit_that_the_api_counts_is_shared():
    fields = LimitSettings.model_fields.items()
    counted = {name for name, field in fields if "counted by the API" in str(field.description)}
    assert counted == set(LimitSettings.shared)
