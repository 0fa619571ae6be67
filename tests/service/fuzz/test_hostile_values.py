"""Values that no client of ours sends, in every path, query and header, of the API and of the pages."""

import re
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.routing import Route
from support.fuzz_target import fuzz_settings

from service.dashboard import PAGE_MODULES
from service.main import ROUTE_MODULES
from service.routes.server import health

ROUTES = sorted(
    (method, route.path)
    for module in (*PAGE_MODULES, *ROUTE_MODULES, health)
    for route in module.router.routes
    if isinstance(route, Route)  # and no WebSocket
    for method in sorted(route.methods)
)
HOSTILE = (
    *("", "\0", "a\0b", "%00", "%", "%2e%2e/%2e%2e", "../../etc/passwd", "..\\", "/", "//", ".", "\r\nX: y", "\u202e"),
    *("0", "-1", "1" * 19, "9" * 18, "9" * 300, "9" * 5000, "1e999", "NaN", "null", "true", "½", "٣", "1_0"),
    *("\ud800", "é" * 300, "a" * 5000, "http://[", "[", "//evil.example", "javascript:0", "' OR 1=1 --", "*", '"*"'),
)
BYTES = ("%ff", "%c0%af", "%ed%a0%80", "%f4%90%80%80", "%zz", "+", "%2F")
QUERIES = (
    "after",
    "attempt",
    "dryRun",
    "ended",
    "folder",
    "inline",
    "limit",
    "line",
    "machineType",
    "maxPoints",
    "name",
)
QUERIES += (
    "before",
    "columns",
    "clone",
    "ids",
    "mine",
    "modified",
    "next",
    "part",
    "path",
    "prefix",
    "project",
    "projectId",
)
QUERIES += ("q", "query", "recursive", "sha256", "since", "sort", "state", "tag", "tail", "ticket", "to")
HEADERS = ("Accept", "Content-Type", "Cookie", "Host", "Idempotency-Key", "If-None-Match", "If-Range", "Last-Event-ID")
HEADERS += ("Origin", "Range", "Sec-Fetch-Site", "X-Request-Id", "Authorization", "Expect", "Accept-Encoding")
HEADER_VALUES = (
    *("bytes=0-", "bytes=-0", "bytes=5-1", f"bytes={'9' * 19}-", "bytes=0-0,1-1", "http://[", "http://[::1", "null"),
    *("[", "[::1", "*", '"', "\xff", "é" * 300, "x" * 5000, "9" * 5000, "application/json", "multipart/form-data"),
    *("multipart/form-data; boundary=x", "text/html", "text/event-stream;q=0", "gradient_session=a.b.c", "same-origin"),
)
BODIES = (b"", b"{", b"[" * 100_000, b'{"name": "\\ud800"}', b'{"\\ud800": 1}', b"\xff", b'{"name": "a\\u0000b"}')
BODIES += (b'{"machineType": "CPU", "command": "true", "workspace": "http://["}', b"--x\r\n\r\n", b"key=%00&next=%ff")
BODIES += (b'{"machineType": "CPU", "command": "true", "timeLimit": ' + b"9" * 4000 + b"}", b"key=\xff", b"null", b"1")


def values(there):
    return st.one_of(
        st.sampled_from(there),
        st.sampled_from(there),
        st.sampled_from(HOSTILE).map(lambda text: quote(text, safe="", errors="surrogatepass")),
        st.sampled_from(BYTES),
        st.text(max_size=20).map(lambda text: quote(text, safe="")),
    )


@pytest.mark.parametrize(("method", "path"), ROUTES, ids=lambda value: value)
def test_nothing_makes_the_service_fail(fuzz_target, method, path):
    there = [*fuzz_target.jobs.values(), fuzz_target.project, fuzz_target.archive, "notes.txt", "model", "CPU", "3"]
    names = [part[1:-1].split(":")[0] for part in path.split("/") if part.startswith("{")]

    @fuzz_settings(3)
    @given(
        parts=st.fixed_dictionaries({name: values(there) for name in names}),
        query=st.dictionaries(st.sampled_from(QUERIES), values(there), max_size=3),
        headers=st.dictionaries(st.sampled_from(HEADERS), st.sampled_from(HEADER_VALUES), max_size=2),
        body=st.sampled_from(BODIES),
    )
    def attempt(parts, query, headers, body):
        where = re.sub(r":\w+}", "}", path).format(**parts)
        if headers.get("Accept", "").startswith("text/event-stream"):
            del headers["Accept"]  # it would be followed until the job ends
        text = "&".join(f"{name}={value}" for name, value in query.items())
        sent = {"Accept": "text/html"} if path.startswith("/ui") else {}
        sent |= {"x-api-key": fuzz_target.api_key, "Sec-Fetch-Site": "same-origin", **headers}
        with fuzz_target.client() as client:
            answer = client.request(
                method,
                f"http://testserver{where}?{text}",
                headers=sent,
                data=None if method == "GET" else body,
                allow_redirects=False,
            )
        assert answer.status_code < 500, (method, where, text, headers, body[:80], answer.text)
        if answer.status_code >= 400 and not path.startswith("/ui"):
            assert answer.json()["error"]["status"] == answer.status_code

    attempt()


def test_a_nul_in_any_path_or_query_is_refused_by_name(client):
    """PostgreSQL refuses it in any text, and SQLite would find all jobs, or what is before it."""
    for method, path in ROUTES:
        filled = re.sub(r"{\w+(:\w+)?}", "1", path)
        places = {"zebra": f"{filled}?q=x&zebra=a%00b"}
        for name in re.findall(r"{(\w+)(?::file)?}", path):
            places[name] = re.sub(r"{\w+(:\w+)?}", "1", re.sub(rf"{{{name}(:\w+)?}}", "a%00b", path))
        for name, address in places.items():
            answer = client.request(method, address)
            assert answer.status_code == 400, (method, address, answer.text[:300])
            assert f"{name}: the value contains a NUL character; remove it." in answer.text, address


@pytest.mark.parametrize("text", ["%ED%A0%80", "%ff", "a%C3"])
def test_a_path_or_query_that_is_not_utf_8_is_refused(client, text):
    """Half of a surrogate pair, a byte of another code, half a character: none is looked up as other text."""
    for method, path in ROUTES:
        filled = re.sub(r"{\w+(:\w+)?}", "1", path)
        for where, address in (("query", f"{filled}?q={text}"), ("path", re.sub(r"{\w+(:\w+)?}", text, path))):
            if "%" in address:
                answer = client.request(method, address)
                assert answer.status_code == 400, (method, address, answer.text[:300])
                assert f"The {where} of the address is not UTF-8" in answer.text, address
