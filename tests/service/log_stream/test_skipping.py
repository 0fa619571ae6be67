"""A log stream whose client is far behind: lines are skipped, and the gap is announced."""

import json


def numbered_lines(first, last):
    return b"".join(b"line %d\n" % number for number in range(first, last + 1))


def parse(text):
    """Return the events in the bytes of a stream: (name, data)."""
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.split("\n\n") if block]
    return [(block["event"], json.loads(block["data"])) for block in blocks if "event" in block]


def lines_and_gaps(events):
    return [data["line"] if name == "line" else (data["from"], data["to"]) for name, data in events if name != "phase"]


def test_lines_far_behind_are_skipped_and_the_gap_is_announced(job_id, worker, stores, make_follower):
    worker.start()
    follower = make_follower(max_behind=1000)
    assert lines_and_gaps(parse(follower.poll())) == []
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(numbered_lines(1, 1000), 1000)
        assert lines_and_gaps(parse(follower.poll())) == list(range(1, 1001)), "not far enough behind"
        log.append(numbered_lines(1001, 60_000), 1000)
    assert lines_and_gaps(parse(follower.poll())) == [(1001, 59_900), *range(59_901, 60_001)]
    assert follower.poll() == ""


def test_the_end_of_a_flood_is_sent_at_once_and_the_skipped_lines_are_in_pages(client, job_id, worker, stores):
    job = worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(numbered_lines(1, 20_000) + b"not finished", 1000)
    worker.end(job, exit_code=0)
    with client.stream(
        "GET", f"/jobs/{job_id}/logs?maxBehind=5000", headers={"Accept": "text/event-stream"}
    ) as response:
        events = parse(response.read().decode())
    shown = [event for event in events if event[0] in {"line", "gap"}]
    assert lines_and_gaps(shown) == [(1, 19_901), *range(19_902, 20_002)]
    assert (shown[-1][1]["message"], events[-1][0]) == ("not finished", "end")
    page = client.get(f"/jobs/{job_id}/logs", params={"line": 9999, "limit": 1}).json()
    assert (page["lines"][0]["message"], page["total"]) == ("line 10000", 20_001)
