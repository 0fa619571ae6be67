"""Style sheet and scripts: cached for ever under their version, and nothing from elsewhere in them."""

import re
from importlib.resources import files

import pytest

from service.dashboard.assets import asset_url

STATIC = files("service.dashboard").joinpath("static")


@pytest.mark.parametrize("name", sorted(entry.name for entry in STATIC.iterdir()))
def test_a_file_is_cached_for_ever_under_its_version(anonymous_browser, name):
    answer = anonymous_browser.get(asset_url(name))
    assert answer.content == STATIC.joinpath(name).read_bytes()
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-type"].split(";")[0] in {"text/css", "text/javascript", "image/svg+xml"}
    again = anonymous_browser.get(asset_url(name), headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert anonymous_browser.get(f"/ui/static/older/{name}").headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("name", ["nope.js", "..%2F__init__.py", "%2e%2e/rendering.py"])
def test_nothing_else_is_served(anonymous_browser, name):
    assert anonymous_browser.get(f"/ui/static/x/{name}").status_code == 404


@pytest.mark.parametrize("entry", [e for e in STATIC.iterdir() if e.name.endswith(".js")], ids=lambda e: e.name)
def test_scripts_never_make_markup_from_text(entry):
    text = entry.read_text()
    assert not re.search(r"innerHTML\s*=|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
