"""Uploads of the form of a new job: where their files are until they are stored, and what is refused."""

import os
import re
import socket
from pathlib import Path

import pytest
from support.live_service import list_stored_workspaces, wait_until

from core.settings.limits import LimitSettings
from service.auth.per_key_limits import Limits
from service.dashboard.forms import job_form_pages

PAGE = "/ui/jobs/new"
MIB = 1024**2


@pytest.fixture
def settings(settings):
    return settings.model_copy(update={"limits": LimitSettings(uploads=1)})


@pytest.fixture(autouse=True)
def _short_wait(stores, settings):
    stores.limits = Limits(settings.limits, wait_seconds=0.2)


def send(browser, *files, **fields):
    texts = {"action": "check", "machineType": "CPU", "command": "kept", **fields}
    parts = [(name, (None, text)) for name, text in texts.items()]
    return browser.post(PAGE, files=[*parts, *(("files", file) for file in files)])


def open_files() -> list[str]:
    """The files that this process has open, by name, with ` (deleted)` if they have none any more."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(descriptor))  # noqa: PTH115 - a Path would lose what is no path
        except FileNotFoundError:
            continue
    return found


def test_all_files_of_a_form_are_one_file_on_the_disk(signed_in_browser, settings, monkeypatch):
    seen = []
    pack = job_form_pages.pack

    def look(files, *args):
        contents = [one.file.read() for one in files]
        for one in files:
            one.file.seek(0)
        seen.append((contents, open_files()))
        return pack(files, *args)

    monkeypatch.setattr(job_form_pages, "pack", look)
    before = open_files()
    sent = [(f"d/f{number}", bytes([number]) * 100_000) for number in range(50)]
    page = send(signed_in_browser, *sent, ("d/empty", b""))
    assert "Uploaded:" in page.text
    [(contents, during)] = seen
    assert contents == [content for _, content in sent] + [b""]
    temporary = [name for name in during if name not in before and name.endswith(" (deleted)")]
    assert len(temporary) == 1
    assert temporary[0].startswith(f"{settings.root}/workspaces/")


def test_a_form_with_files_holds_the_slot_of_its_key_while_it_is_received(signed_in_browser, live_server):
    host, _, port = live_server.url.removeprefix("http://").partition(":")
    head = '--B\r\nContent-Disposition: form-data; name="files"; filename="d/f"\r\n\r\n'
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(
            f"POST {PAGE} HTTP/1.1\r\nHost: {host}:{port}\r\nx-api-key: {live_server.api_key}\r\n"
            "Sec-Fetch-Site: same-origin\r\nContent-Type: multipart/form-data; boundary=B\r\n"
            f"Content-Length: {MIB}\r\n\r\n{head}begun".encode()
        )
        wait_until(lambda: send(signed_in_browser).status_code == 429)
        page = send(signed_in_browser, ("d/f", b"x"))
        assert "<h1>A limit has been reached</h1>" in page.text
        assert "GRADIENT_LIMITS__UPLOADS" in page.text
    wait_until(lambda: send(signed_in_browser, ("d/f", b"x")).status_code == 200)


def test_a_disk_without_room_takes_no_file_and_keeps_what_was_typed(signed_in_browser, settings):
    settings.disk.min_free_mb = 1 << 40
    page = send(signed_in_browser, ("d/f", b"x" * 100))
    assert "The disk has no room for this upload" in page.text
    assert "GRADIENT_DISK__MIN_FREE_MB" in page.text
    assert re.search(r">\s*kept</textarea>", page.text)
    assert list_stored_workspaces(settings) == []
    assert "no room" not in send(signed_in_browser, ("", b"")).text, "nothing is uploaded"


def test_a_form_without_its_end_takes_no_file_and_keeps_what_was_typed(signed_in_browser, settings):
    parts = [
        f'--B\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n' for name in ("command", 'files"; filename="f')
    ]
    body = f"{parts[0]}kept\r\n{parts[1]}half"
    page = signed_in_browser.post(PAGE, content=body, headers={"Content-Type": "multipart/form-data; boundary=B"})
    assert "The upload is cut off" in page.text
    assert re.search(r">\s*kept</textarea>", page.text)
    assert list_stored_workspaces(settings) == []


def test_long_texts_of_a_form_are_not_collected(signed_in_browser):
    fields = {f"field{number}": "x" * (MIB // 2) for number in range(3)}
    page = send(signed_in_browser, **fields)
    assert "The values in the form are too long." in page.text
    assert re.search(r">\s*kept</textarea>", page.text)
    plain = signed_in_browser.post(PAGE, data={"command": "x" * 2 * MIB})
    assert plain.status_code == 413
