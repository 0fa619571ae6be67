"""Search in a log: every line with the text, without colours, in parts, and also across blocks."""

import pytest

from core.storage.joblogs.store import JobLogs

JOB = "jabc123"


@pytest.fixture
def logs(tmp_path):
    return JobLogs(tmp_path)


def written(logs, data):
    with logs.open_writer(JOB, 1) as log:
        log.append(data, 1000)
    return logs.reader(JOB)


def search(reader, text, **options):
    defaults = {"after": 0, "limit": 1000, "final": True, "match_case": False, "seconds": 60.0}
    return reader.search(text, **(defaults | options))


def test_every_line_with_the_text_is_found_once(logs):
    reader = written(logs, b"Error one\nfine\nerror error\n\x1b[31mER\x1b[0mROR\nlast error")
    assert search(reader, "ERROR") == ([1, 3, 4, 5], 5, True)
    assert search(reader, "error", match_case=True) == ([3, 5], 5, True)
    assert search(reader, "error", final=False) == ([1, 3, 4], 4, True)
    assert search(reader, "31") == ([], 5, True), "not what only a terminal sees"
    assert search(reader, "e.r") == ([], 5, True)


def test_lines_that_look_like_errors_are_found(logs):
    reader = written(
        logs, b"errors 0\nValueError: x\nloss=nan\n\x1b[31mERROR\x1b[0m: bad Error\nfine\nTraceback (most recent"
    )
    assert search(reader, None) == ([2, 3, 4], 6, True)
    assert search(reader, None, after=2, limit=1) == ([3], 3, False)


@pytest.mark.parametrize("before", range((1 << 20) - 8, (1 << 20) + 3))
def test_a_match_across_blocks_is_found(logs, before):
    lines = before // 64
    head = b"." * 63 + b"\n"
    reader = written(logs, head * lines + b"-" * (before - 64 * lines) + b"needle\nand another needle\n")
    assert search(reader, "needle").lines == [lines + 1, lines + 2]


def test_a_search_that_takes_too_long_ends_at_a_line_and_always_gets_on(logs):
    reader = written(logs, b"a line\n" * 1_000_000)
    found, line, steps = [], 0, 0
    while True:
        page = search(reader, "no such text", after=line, seconds=0.0)
        found += page.lines
        if page.complete:
            break
        assert page.searched_to > line
        line, steps = page.searched_to, steps + 1
    assert (found, page.searched_to, steps > 1) == ([], 1_000_000, True)


def test_the_first_line_of_each_attempt(logs):
    with logs.open_writer(JOB, 1) as log:
        log.append(b"one\ntwo", 1000)
    with logs.open_writer(JOB, 3) as log:
        log.append(b"three\n", 1000)
    reader = logs.reader(JOB)
    assert [reader.first_line(attempt) for attempt in (1, 2, 3, 4)] == [1, None, 3, None]
    assert reader.lines(2, 1, final=True)[0].message == "three"
