"""Passwords, which these clients put into URLs, and stamps get into no log, no trace and no file of the service."""

import socket
from urllib.parse import urlsplit

import pytest
from support.deployment import Deployment, wait_until
from support.live_service import make_zip

SECRET = "hunter2-is-no-password"
IN_QUERY = {
    "command": "true",
    "machineType": "CPU",
    "registryPassword": SECRET,
    "registryTargetPassword": SECRET,
    "access_token": SECRET,
    "envVars": f'{{"A": "{SECRET}"',  # not even where it cannot be read
}


@pytest.fixture
def service(tmp_path, collector):
    deployment = Deployment(
        tmp_path / "home",
        GRADIENT_LOG_LEVEL="debug",
        GRADIENT_LOG_FORMAT="json",
        GRADIENT_TRACING__ENABLED="true",
        GRADIENT_STATSD__PORT="0",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_BSP_SCHEDULE_DELAY="100",
    )
    deployment.start_up()
    yield deployment
    deployment.stop()


def test_what_is_in_a_url_is_in_no_log_and_no_trace(service, collector, tmp_path):
    upload = {"file": ("w.zip", make_zip(), "application/zip")}
    where = urlsplit(service.cli_json["url"])
    asked = [
        ("POST", "/jobs/createJob/", {"params": IN_QUERY, "files": upload}),
        ("POST", "/jobs/createJob", {"params": IN_QUERY}),
        ("POST", "/jobs/createJob", {"json": IN_QUERY}),
        ("POST", "/users/login", {"json": {"email": "a@b", "password": SECRET}}),
        ("POST", "/apiTokens/createPublic", {"params": {"access_token": SECRET}}),
        ("GET", "/jobs/getJobs/", {"params": {"state": SECRET}}),
        ("GET", f"/original/artifact/jx/out.txt?stamp={SECRET}", {}),
        ("GET", "/_s3/gradient.artifacts", {"headers": {"x-amz-security-token": SECRET}}),
    ]
    for method, path, options in asked:
        answer = service.request(method, path, **options)
        assert 400 <= answer.status_code < 500, (path, answer.text)
        assert path == "/jobs/getJobs/" or SECRET not in answer.text  # which says what is no state
    # uvicorn's own words about a request that is none.
    with socket.create_connection((where.hostname, where.port), 10) as link:
        link.sendall(f"GET /x?password={SECRET} HTTP/9.9 {SECRET}\r\nHost: x\r\n\r\n".encode())
        assert b" 400 " in link.recv(1000)
    wait_until(lambda: "/original/jobs/createJob" in repr(collector.spans), "the spans to come")
    service.stop()
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len([path for path in kept if path.suffix == ".log"]) == 1
    assert [str(path) for path in kept if SECRET.encode() in path.read_bytes()] == []
    assert '"path": "/original/jobs/createJob"' in service.logs[0].read_text()
    assert SECRET not in repr(collector.spans)
