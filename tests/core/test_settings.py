import pytest
from pydantic import ValidationError

from core.settings import Settings
from core.settings.api import ApiSettings
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
    with pytest.raises(ValidationError, match=rf"'{given}' is not a URL such as https://jobs\.example\.org"):
        ApiSettings(public_url=given)


def test_an_empty_variable_means_the_default(monkeypatch):
    for name in ("GRADIENT_HOME", "GRADIENT_API__PORT", "GRADIENT_DATABASE__URL"):
        monkeypatch.setenv(name, "")
    settings, default = Settings(), Settings.model_construct()
    assert (settings.home, settings.api, settings.database) == (default.home, default.api, default.database)
