"""Files whose names were chosen to break something: each is listed, fetched by every way there is, and harmless."""

import io
import json
import re
import zipfile
from urllib.parse import quote, urlencode

import pytest
from fastapi.routing import iter_route_contexts
from support.browser import Browser

from core.settings import Settings
from service.auth.session_cookie import cookie_name

NAMES = [
    "line\nbreak.txt",
    "ends\n",
    "\n",
    "folder\n/in it\r\n.txt",
    "a\r\nSet-Cookie: x=y\r\n\r\n<script>.html",
    "tab\tvertical\x0b\x1b[31m.txt",
    "\u2028separator\u2029.txt",
    "%0A.txt",
    "%2e%2e%2fup.txt",
    "semi;colon&amp?query=#hash.txt",
    "plus +space  .txt",
    "\"quotes' `ticks`.txt",
    "<img src=x onerror=alert(1)>.svg",
    "ünï \u202ecod\u200be 文.txt",
    "trailing dot.",
    "-rf",
    "*?[a].txt",
    "~",
]
HOSTILE = {
    "evil.html": b"<script>window.broken = document.cookie || 1; fetch('/jobs')</script>",
    "evil.svg": b"<svg xmlns='http://www.w3.org/2000/svg'><script>window.broken = 1</script></svg>",
    "evil.xml": b"<?xml version='1.0'?><html xmlns='http://www.w3.org/1999/xhtml'><script>window.broken=1</script></html>",
    "evil.txt": b"<script>window.broken = 1</script>",
    "evil.png": b"<script>window.broken = 1</script>",
}
NOT_OF_JOBS = {"/ui/projects/{name:path}", "/ui/static/{version}/{name:path}"}
"""Routes with a path in them that serve no files of jobs."""
SAFE = {
    "x-content-type-options": "nosniff",
    "content-security-policy": "sandbox; default-src 'none'",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "private, no-cache",
}


@pytest.fixture
def leave(client, worker, stores, tmp_path):
    """Leaves files of an ended job; its id."""

    def left(files):
        job_id = client.post("/jobs/createJob", json={"command": "true", "machineType": "CPU"}).json()["id"]
        running = worker.start()
        for name, content in files.items():
            path = tmp_path / "left" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        stores.artifacts.close(job_id, 1, tmp_path / "left")
        worker.end(running, exit_code=0)
        return job_id

    return left


def test_a_file_of_any_name_is_fetched_by_every_way_there_is(leave, client, anonymous_client):
    contents = [f"content of {number}".encode() for number in range(len(NAMES))]
    job_id = leave(dict(zip(NAMES, contents, strict=True)))
    listed = [file["path"] for file in client.get(f"/jobs/{job_id}/artifacts").json()["files"]]
    assert len(listed) == len(NAMES)
    links = client.get("/jobs/artifactsList", params={"jobId": job_id, "links": "true"}).json()
    given = client.get("/jobs/artifactsGet", params={"jobId": job_id}).json()
    token = {"x-amz-security-token": given["Credentials"]["SessionToken"]}
    for path in listed:
        answer = client.get(f"/jobs/{job_id}/artifacts/file/{quote(path)}")
        assert answer.status_code == 200, path
        assert answer.content in contents
        assert "set-cookie" not in answer.headers
        by_s3 = anonymous_client.get(f"/_s3/{given['bucket']}/{job_id}/{quote(path)}", headers=token)
        assert (by_s3.status_code, by_s3.content) == (200, answer.content), path
        [link] = [one["url"] for one in links if one["file"] == path]
        assert anonymous_client.get(link).content == answer.content, path
        page = client.get(f"/ui/jobs/{job_id}/artifacts/view?{urlencode({'path': path})}")
        assert page.status_code == 200, path
        for address in re.findall(r'href="(/jobs/[^"]*/artifacts/file/[^"]*)"', page.text):
            assert client.get(address.replace("&amp;", "&")).content == answer.content, path
    packed = zipfile.ZipFile(io.BytesIO(client.get(f"/jobs/{job_id}/artifacts.zip").content))
    assert sorted(packed.read(one) for one in packed.infolist() if not one.is_dir()) == sorted(contents)


def test_every_route_that_serves_files_of_jobs_keeps_browsers_from_running_them(app, leave, client):
    """Found by their parameters: a new route that takes a file's path is asked, too."""
    job_id = leave(HOSTILE)
    stamps = {
        one["file"]: one["url"].partition("stamp=")[2]
        for one in client.get("/jobs/artifactsList", params={"jobId": job_id, "links": "true"}).json()
    }
    given = client.get("/jobs/artifactsGet", params={"jobId": job_id}).json()
    headers = {"x-amz-security-token": given["Credentials"]["SessionToken"]}
    project_id = client.get(f"/jobs/{job_id}").json()["projectId"]
    for name, content in HOSTILE.items():
        assert client.put(f"/projects/{project_id}/storage/{job_id}/{name}", content=content).status_code == 200
    found = {
        route.path for route in iter_route_contexts(app.routes) if ":file}" in route.path or ":path}" in route.path
    }
    assert found > NOT_OF_JOBS
    paths = found - NOT_OF_JOBS
    assert len(paths) == 4
    for path in paths:
        for name in HOSTILE:
            values = {"job_id": job_id, "path": name, "bucket": given["bucket"], "key": f"{job_id}/{name}"}
            if "{project_id}" in path:
                values |= {"project_id": project_id, "path": f"{job_id}/{name}"}
            address = re.sub(r"\{(\w+)(:\w+)?\}", lambda found, values=values: values[found[1]], path)
            for inline in ("", "1"):
                answer = client.get(address, headers=headers, params={"stamp": stamps[name], "inline": inline or "0"})
                assert answer.status_code == 200, (address, answer.text)
                assert SAFE.items() <= dict(answer.headers).items(), address
                if answer.headers["content-type"] == "application/octet-stream":
                    assert answer.headers["content-disposition"].startswith("attachment"), address
                else:
                    assert answer.headers["content-type"].startswith(("text/plain", "image/png")), address
    for path in (f"/jobs/{job_id}/artifacts.zip", f"/jobs/{job_id}/logs/raw"):
        answer = client.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert "script-src" not in answer.headers["content-security-policy"], path


@pytest.fixture
def browser(chromium):
    browser = Browser(chromium)
    yield browser
    browser.close()


def test_hostile_files_in_a_signed_in_browser_run_nothing_and_see_no_cookie(leave, live_server, stores, browser):
    job_id = leave(HOSTILE)
    token = stores.sessions.open(live_server.api_key.split("_")[1])
    name = cookie_name(Settings())
    cookie = {"name": name, "value": token, "url": live_server.url, "httpOnly": True, "sameSite": "Strict"}
    browser("Network.setCookie", **cookie)
    for name in HOSTILE:
        for query in ("", "?inline=1"):
            address = f"/jobs/{job_id}/artifacts/file/{name}{query}"
            browser("Page.navigate", url=f"{live_server.url}/ui/jobs/{job_id}/artifacts")
            browser.wait_for("location.pathname.endsWith('/artifacts') && document.readyState === 'complete'")
            assert token not in browser.evaluate("document.cookie")
            # As a page, and as whatever a page can load it as.
            loaded = browser.evaluate(
                f"""(async () => {{
                  for (const kind of ["iframe", "script", "img", "object", "embed"]) {{
                    const one = document.createElement(kind);
                    one[kind === "object" ? "data" : "src"] = {json.dumps(address)};
                    document.body.append(one);
                  }}
                  const answer = await fetch({json.dumps(address)});
                  await answer.arrayBuffer();
                  return answer.status;
                }})()"""
            )
            assert loaded == 200, "signed in"
            assert browser.evaluate("window.broken") is None, address
            browser("Page.navigate", url=live_server.url + address)
            assert browser.evaluate("window.broken") is None, address
