"""Bodies that do not come: nothing is held for them in the database, which others want to write to."""

import socket

import pytest
from support.live_service import make_job_body, wait_until


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PATCH", "/jobs/{job}/tags"),
        ("POST", "/projects"),
        ("PUT", "/secrets/a"),
        ("PUT", "/registries/example.org"),
        ("POST", "/keys"),
        ("PUT", "/entityTags/updateTags"),
        ("POST", "/original/projects"),
    ],
)
def test_who_sends_half_a_body_stops_no_other(client, live_server, method, path):
    job = client.post("/jobs", json=make_job_body()).json()["id"]
    head = (
        f"{method} {path.format(job=job)} HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {live_server.api_key}\r\n"
        "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    with socket.create_connection(("127.0.0.1", live_server.port)) as half:
        half.sendall(head.encode())
        wait_until(lambda: live_server.server.server_state.tasks)
        for _ in range(5):
            assert client.post("/jobs", json=make_job_body(), timeout=10).status_code == 201
        half.settimeout(0.1)
        with pytest.raises(TimeoutError):  # it still waits for the rest
            half.recv(1)
