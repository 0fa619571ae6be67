"""Style sheet and scripts: cached for ever under their version, and nothing from elsewhere in them."""

import gzip
import hashlib
import re
from pathlib import Path

import pytest

import service.dashboard
from service.dashboard.assets import asset_url

STATIC = Path(service.dashboard.__file__).parent / "static"
SERVED = sorted(str(path.relative_to(STATIC)) for path in STATIC.rglob("*.*") if path.suffix != ".LICENSE")
SCRIPTS = sorted(STATIC.rglob("*.js"))
MAX_SCRIPT_BYTES = 80_000
VENDORED = {
    "lucide-0.460.0.svg": "72fcbf64408b8ec7b4e3b998dbf49241dab18300c4c7812fcbb45d2ed3e15da6",
    "lucide-0.460.0.LICENSE": "1e7290b35280a048667bbf0ebabac1c7fd52a75300e8b2946ac165715997f2bc",
    "uplot-1.6.32.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uplot-1.6.32.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot-1.6.32.LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "xterm-6.0.0.js": "14903579ff54664cd72f8e8699e6961a6272c21863ec1c3b118cdc8af5d4a972",
    "xterm-6.0.0.css": "854a7c0fb70e8b1a083c16797ab827299fb18744f5ad34f227b48337e33293c6",
    "xterm-6.0.0.LICENSE": "b569f629d00f2626a8100df2a1798210535621e42164dfd426a6fe5aac7b0ccd",
    "xterm-addon-fit-0.11.0.js": "ba3ea256ce0620a0992a197d6c9baea64823fc93d8da07a9e366ca9943c18527",
}
"""The files of the npm packages uplot 1.6.32, lucide-static 0.460.0 (of its icons those used), @xterm/xterm 6.0.0 and
@xterm/addon-fit 0.11.0, with their sha256."""


@pytest.mark.parametrize("name", SERVED)
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


def test_all_scripts_together_are_small():
    ordinary = [script for script in SCRIPTS if not re.match("xterm|terminal", script.name)]  # those of one page
    assert sum(len(gzip.compress(script.read_bytes(), 9)) for script in ordinary) <= MAX_SCRIPT_BYTES


def test_what_others_wrote_is_unchanged():
    vendored = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (STATIC / "vendor").iterdir()}
    assert vendored == VENDORED
    assert (
        (STATIC / "vendor/uplot-1.6.32.js").read_text().startswith("/*! https://github.com/leeoniya/uPlot (v1.6.32) */")
    )
    assert "The MIT License" in (STATIC / "vendor/uplot-1.6.32.LICENSE").read_text()


def test_a_license_is_not_served(anonymous_browser):
    assert anonymous_browser.get(asset_url("vendor/uplot-1.6.32.LICENSE")).status_code == 404


@pytest.mark.parametrize("entry", [e for e in SCRIPTS if e.parent.name != "vendor"], ids=lambda e: e.name)
def test_scripts_never_make_markup_from_text(entry):
    text = entry.read_text()
    assert not re.search(r"innerHTML\s*=|outerHTML\s*=|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
