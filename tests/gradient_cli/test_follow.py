import json
import os
import pty
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradient_cli.api import sse
from gradient_cli.errors import ConnectionFailed, ServerError

BASICS = ("jobs", "create", "--machineType", "CPU", "--command", "x", "--workspace", "none")


@pytest.fixture
def cli(cli):
    """The client as a process: a stream that it follows stays open until it ends."""
    cli.in_process = False
    return cli


@pytest.fixture
def followed(server, protocol):
    """A job that ends well, with nothing left; tests script its stream."""
    server.on("POST", "/jobs", protocol.Reply(protocol.job(), 201))
    server.on("GET", f"/jobs/{protocol.id}", protocol.ended())
    server.on("GET", f"/jobs/{protocol.id}/artifacts", {"state": "none", "files": [], "totalFiles": 0, "totalBytes": 0})

    def script(*replies):
        server.on("GET", f"/jobs/{protocol.id}/logs", *replies)

    return script


def test_create_stays_to_the_end(cli, server, protocol, followed):
    followed(
        protocol.Reply(
            stream=[
                protocol.event("phase", {"state": "Pending", "phase": "queued", "message": "2 jobs ahead"}) * 2,
                b": keep-alive\n\n",
                protocol.line(1, "epoch 1") + protocol.event("partial", {"message": "50%"})[:9],
                protocol.event("partial", {"message": "50%"})[9:] + protocol.line(2, "épöch 2 🎉"),
                protocol.event("phase", {"state": "Running", "phase": "collecting", "message": "The command ended."}),
                protocol.end(),
            ]
        )
    )
    server.on(
        "GET", f"/jobs/{protocol.id}/artifacts", {"state": "complete", "files": [], "totalFiles": 3, "totalBytes": 5}
    )
    made = cli(*BASICS)
    assert made.returncode == 0
    assert made.stdout == "epoch 1\népöch 2 🎉\n", "a file gets the job's lines and nothing else"
    for told in (
        f"job {protocol.id}  http://x/ui/jobs/{protocol.id}",
        "queued: 2 jobs ahead",
        "Succeeded: The command ended.",
        "exit code 0, ran 12s on CPU, cost $0.0123 at $3.06/hour",
        f"3 artifacts, 5 B: gradient-cli jobs artifacts get {protocol.id}",
    ):
        assert told in made.stderr
    assert made.stderr.count("2 jobs ahead") == 1
    assert made.stderr.count("The command ended.") == 1
    (stream,) = server.requests_to("GET", f"/jobs/{protocol.id}/logs")
    assert stream.headers["Accept"] == "text/event-stream"


@pytest.mark.parametrize(
    ("code", "state", "ours"),
    [
        (0, "Stopped", 0),
        (3, "Failed", 3),
        (255, "Failed", 255),
        (None, "Error", 1),
        (0, "Cancelled", 1),
        (None, "Cancelled", 1),
        (-9, "Failed", 1),
    ],
)
def test_the_exit_code_is_the_jobs(cli, server, protocol, followed, code, state, ours):
    followed(protocol.Reply(stream=[protocol.end(code, state)]))
    server.on("GET", f"/jobs/{protocol.id}", protocol.ended(code, state))
    assert cli(*BASICS).returncode == ours


def test_why_an_attempt_ended_is_told_before_the_next(cli, protocol, followed):
    phases = [("collecting", "Exit code 3."), ("queued", "Waiting to try again."), ("running", None)]
    told = [protocol.event("phase", {"state": "Running", "phase": phase, "message": why}) for phase, why in phases]
    followed(protocol.Reply(stream=[*told, protocol.end()]))
    assert "collecting\nExit code 3.\nqueued: Waiting to try again.\nrunning\n" in cli(*BASICS).stderr


def test_what_a_job_waits_for_is_told_and_told_again_when_it_changes(cli, protocol, followed):
    def waits(reason, message, position, starts_at=None):
        fields = {"reason": reason, "message": message, "queuePosition": position, "estimatedStartAt": starts_at}
        return protocol.event("phase", {"state": "Pending", "phase": "queued", **fields})

    told = [
        waits("no_worker", "Nobody is there.", 9),
        *(waits("behind_jobs", f"{place - 1} ahead.", place, "2020-01-01T00:00:00.000Z") for place in range(9, 1, -1)),
        waits("waiting_for_machine", "Next.", 1),
        protocol.event("phase", {"state": "Running", "phase": "running", "queuePosition": None}),
    ]
    followed(protocol.Reply(stream=[*told, protocol.end()]))
    # Far from the front, not every step is told.
    assert (
        "queued: Nobody is there.\n"
        "queued: 8 ahead. Starts soon.\n"
        "queued: 2 ahead. Starts soon.\n"
        "queued: 1 ahead. Starts soon.\n"
        "queued: Next.\n"
        "running\n"
    ) in cli(*BASICS).stderr


def test_a_broken_stream_is_taken_up_where_it_broke(cli, server, protocol, followed):
    followed(
        protocol.Reply(stream=[protocol.line(1, "one"), protocol.line(2, "two"), b"id: 3\nevent: li"], breaks=True),
        protocol.Reply(breaks="unanswered"),
        protocol.error(502, "bad gateway"),
        protocol.Reply(stream=[protocol.line(2, "two"), protocol.line(3, "three"), protocol.end()]),
    )
    made = cli(*BASICS)
    assert made.stdout == "one\ntwo\nthree\n"
    assert made.stderr.count("connection lost, trying again…") == 1
    assert made.stderr.count("connected again") == 1
    resumed = [r.headers["Last-Event-ID"] for r in server.requests_to("GET", f"/jobs/{protocol.id}/logs")]
    assert resumed == ["0", "2", "2", "2"]


def test_a_revoked_key_ends_the_follower_and_is_told(cli, server, protocol, followed):
    told = {"error": {"name": "Unauthorized", "status": 401, "message": "The API key k1 was revoked."}}
    followed(
        protocol.Reply(stream=[protocol.line(1, "one"), protocol.event("error", told)]),
        protocol.error(401, "The API key k1 was revoked.", name="Unauthorized"),
    )
    made = cli(*BASICS)
    assert (made.stdout, made.returncode != 0) == ("one\n", True)
    assert "The API key k1 was revoked" in made.stderr
    assert len(server.requests_to("GET", f"/jobs/{protocol.id}/logs")) == 2, "it connects again once and not for ever"


def test_a_limit_or_a_failure_of_the_server_ends_no_follower(cli, protocol, followed):
    limited = protocol.error(429, "Limit reached: 1 stream for one key.", name="LimitReached")
    limited.headers["Retry-After"] = "1"
    stream = protocol.Reply(stream=[protocol.line(1, "one"), protocol.end()])
    followed(limited, limited, protocol.error(500, "internal error"), stream)
    made = cli(*BASICS)
    assert (made.stdout, made.returncode) == ("one\n", 0)
    assert made.stderr.count("Limit reached: 1 stream for one key, trying again…") == 1
    assert made.stderr.count("again") == 2, "the reason is told once, and then the new connection"


def test_a_limit_of_streams_is_waited_for_however_long_it_lasts(monkeypatch, protocol):
    waits = []
    monkeypatch.setattr(sse, "time", SimpleNamespace(sleep=waits.append))
    limited = ServerError("Limit reached.", status=429, retry_after=60.0)

    def connect(_line):
        if len(waits) < 20:
            raise limited
        return [protocol.end()]

    assert [name for name, _ in sse.follow(connect, 0)] == ["end"]
    assert waits == [60.0] * 20


def test_a_stream_that_just_ends_is_no_end_of_the_job(cli, server, protocol, followed):
    followed(protocol.Reply(stream=[protocol.line(1, "one")]), protocol.Reply(stream=[protocol.end(4, "Failed")]))
    server.on("GET", f"/jobs/{protocol.id}", protocol.ended(4, "Failed"))
    assert cli(*BASICS).returncode == 4


def test_a_server_away_at_the_end_does_not_change_the_exit_code(cli, server, protocol, followed):
    followed(protocol.Reply(stream=[protocol.end(7, "Failed")]))
    server.on("GET", f"/jobs/{protocol.id}", protocol.error(502, "bad gateway"), protocol.ended(7, "Failed"))
    server.on("GET", f"/jobs/{protocol.id}/artifacts", protocol.error(503, "The bucket cannot be reached."))
    made = cli(*BASICS)
    assert made.returncode == 7
    assert "Failed: The command ended." in made.stderr
    assert "its artifacts cannot be listed right now: The bucket cannot be reached." in made.stderr


def test_a_job_deleted_meanwhile_ends_the_wait(cli, protocol, followed):
    followed(protocol.Reply(stream=[protocol.line(1, "one")], breaks=True), protocol.error(404, "no such job"))
    made = cli(*BASICS)
    assert made.returncode == 4
    assert "error: no such job" in made.stderr


def test_ctrl_c_detaches(cli, protocol, followed):
    hold = threading.Event()
    followed(protocol.Reply(stream=[protocol.line(1, "started")], hold=hold))
    with cli.start(*BASICS) as process:
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    hold.set()
    assert process.returncode == 130
    assert f"gradient-cli jobs logs {protocol.id} --follow" in err
    assert f"gradient-cli jobs stop {protocol.id}" in err
    assert "Traceback" not in err


def test_lines_cannot_drive_the_terminal(cli, protocol, followed):
    nasty = "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\x1b]52;c;ZXZpbA==\x1b\\ \x9b1A\x08ok\tt"
    followed(protocol.Reply(stream=[protocol.line(1, nasty), protocol.end()]))
    assert cli(*BASICS).stdout == "red ok\tt\n"
    followed(protocol.Reply(stream=[protocol.line(1, nasty), protocol.end()]))
    assert cli(*BASICS, "--raw").stdout == nasty + "\n"


def on_a_terminal(cli, *args, env=None):
    """Run the client on a terminal and return what it prints."""
    ours, theirs = pty.openpty()
    with cli.start(*args, stdout=theirs, stderr=theirs, env={"TERM": "xterm", "COLUMNS": "40", **(env or {})}):
        os.close(theirs)
        seen = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            seen += piece
    os.close(ours)
    return seen.decode()


def test_a_terminal_gets_progress_redrawn_and_colours(cli, protocol, followed):
    stream = [
        protocol.event("partial", {"message": "\x1b[32m10%"}),
        protocol.event("partial", {"message": "x" * 100}),
        protocol.line(1, "\x1b[32mdone"),
        protocol.end(),
    ]
    followed(protocol.Reply(stream=stream))
    seen = on_a_terminal(cli, *BASICS)
    assert f"\r\x1b[K10%\r\x1b[K{'x' * 38}…\r\x1b[K\x1b[32mdone\x1b[0m\r\n" in seen
    followed(protocol.Reply(stream=stream))
    assert "\x1b[32m" not in on_a_terminal(cli, *BASICS, env={"NO_COLOR": "1"})


def test_a_line_of_several_rows_is_printed_as_rows(cli, protocol, followed):
    rows = "epoch 1\n\x1b[31mstep 2\x1b[0m"
    partials = [protocol.event("partial", {"message": text}) for text in (rows, "epoch 2")]
    followed(protocol.Reply(stream=[*partials, protocol.line(1, rows + "\x07"), protocol.end()]))
    made = cli(*BASICS)
    assert made.stdout == "epoch 1\nstep 2\n"
    assert "… epoch 1  step 2\n" in made.stderr


def test_without_a_terminal_progress_goes_to_stderr_now_and_then(cli, protocol, followed):
    bar = [protocol.event("partial", {"message": f"{percent}%"}) for percent in range(50)]
    followed(protocol.Reply(stream=[*bar, protocol.line(1, "100%"), protocol.end()]))
    made = cli(*BASICS)
    assert made.stdout == "100%\n"
    assert made.stderr.count("%") == 1, "the second would follow ten seconds later"
    assert "… 0%\n" in made.stderr


@pytest.mark.parametrize(
    "texts",
    [
        ["cuda:", "cuda: False", "cuda: False threads 2"],
        ["caf\N{REPLACEMENT CHARACTER}", "café"],
        [f"{'x' * 300} … {count} bytes" for count in ("1,000", "2,000")],
        ["epoch 1\n", "epoch 1\nepoch 2"],
    ],
)
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_without_a_terminal_a_line_that_is_continued_is_printed_once(cli, protocol, followed, texts, options):
    partials = [protocol.event("partial", {"message": text}) for text in texts]
    followed(protocol.Reply(stream=[*partials, protocol.line(1, texts[-1]), protocol.end()]))
    shown = cli("jobs", "logs", protocol.id, "--follow", *options)
    assert (shown.stdout + shown.stderr).count(texts[-1] if not options else '"message": ') == 1
    assert texts[0][:4] not in shown.stderr


def test_json_marks_an_unfinished_line(cli, server, protocol, followed):
    bar = [protocol.event("partial", {"message": text}) for text in ("5%", "6%")]
    followed(protocol.Reply(stream=[*bar, protocol.line(1, "100%"), protocol.end()]))
    shown = cli("jobs", "logs", protocol.id, "--follow", "--json")
    partial = {"line": None, "timestamp": None, "message": "5%", "partial": True}
    rows = [json.loads(line) for line in shown.stdout.splitlines()]
    assert rows[0] == partial
    assert [row["message"] for row in rows] == ["5%", "100%"]
    server.on("GET", f"/jobs/{protocol.id}/logs", {"lines": [], "complete": False, "partial": "5%"})
    assert json.loads(cli("jobs", "logs", protocol.id, "--json").stdout) == partial


def test_logs_end_with_the_unfinished_line(cli, server, protocol):
    rows = [json.loads(protocol.line(1, "one").split(b"data: ")[1])]
    server.on(
        "GET",
        f"/jobs/{protocol.id}/logs",
        {"lines": rows, "complete": False, "partial": "5%"},
        {"lines": [], "complete": False, "partial": "\x1b[2K7%"},
    )
    shown = cli("jobs", "logs", protocol.id)
    assert (shown.stdout, shown.stderr) == ("one\n7%\n", "")


def test_notes_on_the_job_are_printed_at_its_end(cli, server, protocol, followed):
    followed(protocol.Reply(stream=[protocol.end()]))
    note = "1 file of the workspace was not kept: model.pt 8 B."
    server.on("GET", f"/jobs/{protocol.id}", protocol.ended(notes=[note]))
    assert f"note: {note}\n" in cli(*BASICS).stderr
    assert note in cli("jobs", "show", protocol.id).stdout.replace("\n", " ")


def test_logs_come_in_pages(cli, server, protocol):
    rows = [json.loads(protocol.line(number, f"text {number}").split(b"data: ")[1]) for number in range(1, 4)]
    server.on(
        "GET",
        f"/jobs/{protocol.id}/logs",
        {"lines": rows[:2], "complete": False},
        {"lines": rows[2:], "complete": True},
        {"lines": [], "complete": True},
    )
    assert cli("jobs", "logs", protocol.id).stdout == "text 1\ntext 2\ntext 3\n"
    assert [request.query["line"] for request in server.requests] == ["0", "2", "3"]


def test_a_log_without_lines_says_whether_more_can_come(cli, server, protocol):
    nothing = [{"lines": [], "complete": complete} for complete in (False, True)]
    server.on("GET", f"/jobs/{protocol.id}/logs", nothing[0], nothing[0], nothing[1])
    assert cli("jobs", "logs", protocol.id).stderr == "no lines yet\n"
    assert cli("jobs", "logs", protocol.id, "--line", "3").stderr == "no more lines\n"


def test_logs_begin_where_asked(cli, server, protocol):
    row = json.loads(protocol.line(9, "nine").split(b"data: ")[1])
    server.on("GET", f"/jobs/{protocol.id}/logs", {"lines": [row], "total": 9, "complete": True})
    shown = cli("jobs", "logs", protocol.id, "--tail", "1", "--timestamps")
    assert shown.stdout == "2024-05-01T10:00:00.000Z nine\n"
    assert server.requests[-1].query == {"limit": "2000", "tail": "1"}
    assert json.loads(cli("jobs", "logs", protocol.id, "--tail", "1", "--json").stdout) == row
    assert cli("jobs", "logs", protocol.id, "--tail", "1", "--line", "2").returncode == 2


def test_following_after_a_tail_goes_on_behind_it(cli, server, protocol, followed):
    row = json.loads(protocol.line(9, "nine").split(b"data: ")[1])
    followed(
        {"lines": [row], "total": 9, "complete": False},
        protocol.Reply(stream=[protocol.line(10, "ten"), protocol.end(7, "Failed")]),
    )
    server.on("GET", f"/jobs/{protocol.id}", protocol.ended(7, "Failed"))
    shown = cli("jobs", "logs", protocol.id, "-f", "--tail", "1")
    assert (shown.stdout, shown.returncode) == ("nine\nten\n", 7)
    assert server.requests_to("GET", f"/jobs/{protocol.id}/logs")[-1].headers["Last-Event-ID"] == "9"


def test_following_after_no_line_begins_at_the_end(cli, server, protocol, followed):
    nothing = {"lines": [], "total": 9, "complete": False}
    followed(nothing, nothing, protocol.Reply(stream=[protocol.line(10, "ten"), protocol.end()]))
    assert cli("jobs", "logs", protocol.id, "-f", "--tail", "0").stdout == "ten\n"
    assert server.requests_to("GET", f"/jobs/{protocol.id}/logs")[-1].headers["Last-Event-ID"] == "9"


def test_a_reader_that_goes_away_is_no_failure_to_talk_about(cli, server, protocol):
    rows = [{"line": n, "timestamp": "t", "message": "x" * 1000} for n in range(1, 2000)]
    server.on("GET", f"/jobs/{protocol.id}/logs", {"lines": rows, "complete": True}, {"lines": [], "complete": True})
    with cli.start("jobs", "logs", protocol.id) as process:
        process.stdout.read(10)
        process.stdout.close()
        err = process.stderr.read()
        process.wait(60)
    assert (process.returncode, err) == (141, "")


def test_a_full_disk_behind_stdout_is_told(cli, server, protocol):
    row = {"line": 1, "timestamp": "t", "message": "x"}
    server.on("GET", f"/jobs/{protocol.id}/logs", {"lines": [row], "complete": True}, {"lines": [], "complete": True})
    with Path("/dev/full").open("w") as full, cli.start("jobs", "logs", protocol.id, stdout=full) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "No space left on device" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_events_are_the_same_however_the_bytes_are_cut(protocol, cut):
    text = (
        b":\xef hello\r\n" + protocol.line(1, "a\u2028b") + b"event: x\r\ndata: {\r\ndata: }\r\n\r\ndata: {}\n\nid: 9"
    )
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    names = [(name, data.get("message")) for name, data in sse.parse_events(pieces)]
    assert names == [("line", "a\u2028b"), ("x", None), ("message", None)]


def test_data_that_is_no_json_is_refused():
    with pytest.raises(ConnectionFailed, match="invalid event stream"):
        list(sse.parse_events([b"data: {broken\n\n"]))
