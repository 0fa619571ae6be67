"""Tokens of jobs beside their TPU, which are renewed for as long as the job runs."""

import socket
import sys
import threading
import time

import pytest
from support.deployment import wait_until
from support.free_port import free_port

from worker.backends.tpu.vm.on_vm.metadata_server import LocalServer, MetadataRequest

pytestmark = pytest.mark.integration

ASK = """
import os, time, google.auth.exceptions, google.auth.compute_engine, google.auth.transport.requests as requests
assert "GOOGLE_AUTH_TOKEN_FOR_TESTING" not in os.environ
credentials = google.auth.compute_engine.Credentials()
while True:
    try:
        credentials.refresh(requests.Request())
        print(credentials.token, flush=True)
    except google.auth.exceptions.TransportError:
        pass
    time.sleep(0.2)
"""


@pytest.fixture
def port():
    return free_port()


def tokens(place, spec):
    return set(place.output(spec).decode().split())


def test_a_job_finds_a_fresh_token_for_as_long_as_it_runs(make_google_harness, google, port):
    """Google's own client asks for it as on a machine of Google's; another worker goes on after the first."""
    place = make_google_harness(token_seconds=60, token_port=port)
    place.backend.tokens.renew_seconds = 0.5
    spec = place.spec(f"exec '{sys.executable}' -c '{ASK}'")
    handle = place.launch(spec)
    wait_until(
        lambda: place.backend.ended(handle) or len(tokens(place, spec)) >= 3, "three tokens, one after the other"
    )
    for token in tokens(place, spec):
        (rule,) = google.storage.tokens.caller(f"Bearer {token}").boundary
        assert f"/objects/jobs/{place.job_id}/')" in rule["availabilityCondition"]["expression"]
    place.backend.tokens.listener.shutdown()
    place.backend.tokens.listener.server_close()
    heir, before = place.new_instance(), tokens(place, spec)
    heir.tokens.renew_seconds = 0.5
    code = wait_until(
        lambda: heir.ended(handle) or (tokens(place, spec) - before and "more"), "the next worker's tokens"
    )
    assert code == "more"
    heir.tokens.listener.shutdown()
    heir.tokens.listener.server_close()
    heir.destroy(handle)
    heir.tokens.pool.shutdown()  # a renewal may be under way
    assert list(heir.tokens.token_folder.iterdir()) == []


def test_a_job_that_is_launched_again_keeps_its_key(make_google_harness, port):
    """Its worker died before it stored the handle; the process runs with the first key."""
    place = make_google_harness(token_port=port)
    spec = place.spec(f"exec '{sys.executable}' -c '{ASK}'")
    first = place.launch(spec)
    wait_until(lambda: place.backend.ended(first) or tokens(place, spec), "its first token")
    place.backend.tokens.listener.shutdown()
    place.backend.tokens.listener.server_close()
    heir, before = place.new_instance(), tokens(place, spec)
    again = heir.launch(spec, lambda: None, lambda *_: None)
    heir.tokens.renew_seconds = 0.5
    more = wait_until(
        lambda: heir.ended(again) or (tokens(place, spec) - before and "more"), "the next worker's tokens"
    )
    assert more == "more"
    heir.tokens.listener.shutdown()
    heir.tokens.listener.server_close()
    (place.root / "kept").write_text("")
    heir.destroy(again | {"token_key": str(place.root / "kept")})  # as somebody may have changed it
    assert (place.root / "kept").exists()
    heir.tokens.pool.shutdown()  # a renewal may be under way
    assert (list(heir.tokens.token_folder.iterdir()), list(heir.tokens.keys.iterdir())) == ([], [])


def test_a_renewal_that_outlasts_its_job_leaves_no_token(make_google_harness, port, monkeypatch):
    place = make_google_harness(token_port=port)
    handle = place.launch(place.spec("sleep 60"))
    server = place.backend.tokens
    open_bucket, asked, ended = server.open_bucket, threading.Event(), threading.Event()

    def open_slowly(region):
        asked.set()
        assert ended.wait(30)
        return open_bucket(region)

    monkeypatch.setattr(server, "open_bucket", open_slowly)
    server.renew_seconds = 0.0
    assert place.backend.ended(handle) is None
    assert asked.wait(30)
    place.backend.destroy(handle)
    ended.set()
    server.pool.shutdown()
    assert (list(server.token_folder.iterdir()), list(server.keys.iterdir()), server.renewed_at) == ([], [], {})


def test_a_job_keeps_its_first_token_where_none_can_be_served(make_google_harness, port):
    with socket.create_server(("127.0.0.1", port)):
        place = make_google_harness(token_port=port, timeout_seconds=1.0)
        spec = place.spec('echo "${GOOGLE_AUTH_TOKEN_FOR_TESTING:+kept} ${GCE_METADATA_HOST:-none}"')
        began = time.monotonic()
        assert place.wait(place.launch(spec)).code == 0
        assert time.monotonic() - began < 60
    assert place.output(spec) == b"kept none\n"
    assert list(place.backend.tokens.token_folder.iterdir()) == []


def test_a_connection_that_is_gone_when_it_is_accepted_holds_up_nothing():
    with LocalServer(("127.0.0.1", 0), MetadataRequest, bind_and_activate=False) as server:
        server.server_bind()
        server.socket.listen()
        with pytest.raises(BlockingIOError):
            server.get_request()
