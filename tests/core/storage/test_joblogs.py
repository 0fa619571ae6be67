import os
import re
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import GradientError, JobNotFound, LeaseLost
from core.storage.joblogs import writer as joblog_writer
from core.storage.joblogs.index import BLOCK_BYTES, RECORD_SIZE
from core.storage.joblogs.render import FOLD_STATES
from core.storage.joblogs.store import JobLogs

JOB = "jabc123"
LINES_SOURCE = b"one\ntwo\r\nthr\xc3\xa9e\n\nfive is longer\nbar 1\rbar 2\rbar 3\nlast"


@pytest.fixture
def logs(tmp_path):
    return JobLogs(tmp_path)


def ship(logs, source, attempt=1, chunk=7, at_ms=0):
    """Ships from where the log wants it, as the worker does."""
    with logs.open_writer(JOB, attempt) as writer:
        while writer.position < len(source):
            at_ms += 30
            writer.append(source[writer.position : writer.position + chunk], at_ms)


def messages(logs, *, final=True, page=1000, **options):
    reader, found = logs.reader(JOB), []
    while rows := reader.lines(len(found), page, final=final, **options):
        assert [row.line for row in rows] == list(range(len(found) + 1, len(found) + 1 + len(rows)))
        found += [row.message for row in rows]
    return found


def reference_lines(raw, limit):
    """Render the lines of a log in the simplest way, without regard for size or speed."""
    lines = raw.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    return [reference_line(line, limit) for line in lines]


def reference_line(line, limit):
    states = line.rstrip(b"\r").split(b"\r")[-FOLD_STATES - 1 :]
    if len(states) > FOLD_STATES:
        states = states[1:]
    for state in reversed(states):
        if len(state) > limit:
            text = without_split_character(state[:limit]).decode("utf-8", "replace")
            return f"{reference_clean(text)} … [{len(state):,} bytes in total; download the log to see them]"
        if text := reference_clean(state.decode("utf-8", "replace")):
            return text
    return ""


def without_split_character(cut):
    for length in (1, 2, 3):
        try:
            cut[-length:].decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return cut[:-length]
    return cut


def reference_clean(text):
    return "".join(c for c in text if c == "\t" or not ("\x00" <= c < "\x20" or "\x7f" <= c < "\xa0"))


class Killed(BaseException):
    pass


def killing_pwrite(budget):
    left = budget
    real = os.pwrite

    def pwrite(descriptor, data, offset):
        nonlocal left
        if len(data) > left:
            real(descriptor, bytes(data[:left]), offset)
            raise Killed
        left -= len(data)
        return real(descriptor, data, offset)

    return pwrite


def test_killed_at_every_byte_no_output_is_lost_or_doubled(tmp_path, monkeypatch):
    real, budget, done = os.pwrite, 0, False
    while not done:
        logs = JobLogs(tmp_path / str(budget))
        monkeypatch.setattr(joblog_writer.os, "pwrite", killing_pwrite(budget))
        try:
            ship(logs, LINES_SOURCE, attempt=1)
            ship(logs, b"again\n", attempt=2)
            done = True
        except Killed:
            pass
        monkeypatch.setattr(joblog_writer.os, "pwrite", real)
        if not begun(logs, 2):
            ship(logs, LINES_SOURCE, attempt=1, chunk=5 if budget % 2 else 64)
        ship(logs, b"again\n", attempt=2, chunk=3)
        assert logs.reader(JOB).raw(0, 1000) == LINES_SOURCE + b"\nagain\n"
        assert messages(logs) == reference_lines(LINES_SOURCE + b"\nagain\n", 1000)
        budget += 1
    assert budget > len(LINES_SOURCE) + RECORD_SIZE


def begun(logs, attempt):
    try:
        logs.open_writer(JOB, attempt - 1).close()
    except LeaseLost:
        return True
    return False


def test_files_cut_at_any_length_are_completed_from_the_source(tmp_path):
    made = JobLogs(tmp_path / "made")
    ship(made, LINES_SOURCE, chunk=16)
    reader = made.reader(JOB)
    raw, index = reader.raw_path.read_bytes(), reader.index_path.read_bytes()
    cuts = [(len(raw), n) for n in range(len(index))] + [(n, len(index)) for n in range(len(raw))]
    for number, (raw_length, index_length) in enumerate(cuts):
        logs = JobLogs(tmp_path / str(number))
        logs.directory(JOB).mkdir(parents=True)
        (logs.directory(JOB) / "raw").write_bytes(raw[:raw_length])
        (logs.directory(JOB) / "index").write_bytes(index[:index_length])
        ship(logs, LINES_SOURCE, chunk=11)
        assert logs.reader(JOB).raw(0, 1000) == LINES_SOURCE


def test_a_full_disk_commits_nothing_and_can_be_tried_again(logs, monkeypatch):
    with logs.open_writer(JOB, 1) as writer:
        writer.append(b"kept\n", 1)

        def full(*_):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(joblog_writer.os, "pwrite", full)
            with pytest.raises(OSError, match="No space"):
                writer.append(b"refused\n", 2)
        assert (writer.position, messages(logs)) == (5, ["kept"])
        writer.append(b"refused\n", 3)
    assert messages(logs) == ["kept", "refused"]


@settings(max_examples=150)
@given(
    chunks=st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\x00", b"\xc3", b"\xa9", b"\xf0\x9f", b"\t"])).map(
                b"".join
            ),
        ),
        max_size=20,
    ),
    limit=st.integers(1, 30),
    page=st.integers(1, 7),
)
def test_any_bytes_in_any_chunks_read_like_the_reference(tmp_path_factory, chunks, limit, page):
    chunks = [chunk.replace(b"\x1b", b"") for chunk in chunks]
    logs = JobLogs(tmp_path_factory.mktemp("logs"))
    with logs.open_writer(JOB, 1) as writer:
        for number, chunk in enumerate(chunks):
            writer.append(chunk, number * 60)
    raw = b"".join(chunks)
    assert logs.reader(JOB).raw(0, 10_000) == raw
    if not re.search("[\x90\x98\x9b\x9d-\x9f]", raw.decode("utf-8", "ignore")):
        assert messages(logs, page=page, max_line_bytes=limit) == reference_lines(raw, limit)
    assert len(messages(logs, final=False, max_line_bytes=limit)) == raw.count(b"\n")


def test_attempts_go_on_with_the_numbers_on_a_line_of_their_own(logs):
    ship(logs, b"a\nb", attempt=1)
    with logs.open_writer(JOB, 2) as writer:
        assert writer.position == 0
        writer.append(b"c\n", 9)
        assert writer.position == 2
    ship(logs, b"c\nd\n", attempt=2)
    ship(logs, b"e\n", attempt=4)
    assert messages(logs) == ["a", "b", "c", "d", "e"]


def test_an_older_attempt_may_not_write_any_more(logs):
    ship(logs, b"x\n", attempt=2)
    with pytest.raises(LeaseLost, match="attempt 2"):
        logs.open_writer(JOB, 1)


def test_a_gap_is_marked_and_the_tail_follows(tmp_path):
    logs = JobLogs(tmp_path, max_bytes=1_000_000)
    with logs.open_writer(JOB, 1) as writer:
        assert writer.remaining_bytes == 1_000_000
        writer.append(b"head", 1)
        assert writer.remaining_bytes == 999_996
        writer.append_gap(123_456, 4 + 123_456, 2)
        assert writer.position == 123_460
        writer.append(b"tail\n", 3)
        with pytest.raises(GradientError, match="cannot resume"):
            writer.append_gap(1, 5, 4)
    assert messages(logs) == [
        "head",
        "[gradient] 123,456 bytes of output left out here: the log passed its limit of 1,000,000 bytes",
        "tail",
    ]
    assert logs.open_writer(JOB, 1).position == 123_465


def test_replaced_bytes_move_the_source_by_what_they_stand_for(logs):
    with logs.open_writer(JOB, 1) as writer:
        writer.append(b"key=***\n", 1, source_bytes=20)
        assert writer.position == 20
        writer.append(b"*" * 3 * BLOCK_BYTES, 500, source_bytes=7)
    reader = logs.reader(JOB)
    index = reader.index_path.read_bytes()
    reader.index_path.write_bytes(index[:-RECORD_SIZE])
    assert reader.size == 8
    assert logs.open_writer(JOB, 1).position == 20


def test_a_huge_line_is_read_with_little_memory(logs):
    with logs.open_writer(JOB, 1) as writer:
        writer.append(b"before\n", 1)
        for _ in range(100):
            writer.append(b"x" * (1 << 20), 2)
        huge = logs.reader(JOB)
        tracemalloc.start()
        assert huge.partial().endswith(f"[{100 << 20:,} bytes in total; download the log to see them]")
        writer.append(b"\nafter\n", 3)
        rows = huge.lines(0, 10, final=True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert [row.message[:6] for row in rows] == ["before", "xxxxxx", "after"]
    assert len(rows[1].message) < 20_000
    assert peak < 2 << 20


def test_a_million_newlines_in_one_append_are_found_by_number(logs):
    with logs.open_writer(JOB, 1) as writer:
        writer.append(b"\n" * 400_000 + b"here\n" + b"\n" * 400_000, 1)
    reader = logs.reader(JOB)
    assert reader.lines(400_000, 1, final=True) == [(400_001, 1, "here")]
    assert reader.line_count == 800_001
    assert reader.index_path.stat().st_size < 20 * RECORD_SIZE


@pytest.mark.parametrize(("final", "expected"), [(True, ["b", "c"]), (False, ["a", "b"])])
def test_tail_counts_the_unfinished_line_only_at_the_end(logs, final, expected):
    ship(logs, b"a\nb\nc")
    reader = logs.reader(JOB)
    rows = reader.lines(reader.tail(2, final=final), 10, final=final)
    assert [row.message for row in rows] == expected


def test_remove_and_ids_that_lead_elsewhere(logs, tmp_path):
    ship(logs, b"x\n")
    logs.remove(JOB)
    logs.remove(JOB)
    assert messages(logs) == []
    for bad in ("", "..", "../x", "a/b", "a\n", "x" * 65):
        with pytest.raises(JobNotFound):
            logs.reader(bad)
    assert list(tmp_path.rglob("raw")) == []


def test_an_unfinished_line_ends_with_a_whole_character(logs):
    """Of one that has come in part nothing is shown, until the log ends with it."""
    text = "é✓🎉損"
    with logs.open_writer(JOB, 1) as writer:
        for at, byte in enumerate(text.encode() + "é".encode()[:1]):
            writer.append(bytes([byte]), 1)
            shown = text.encode()[: at + 1].decode(errors="ignore")
            assert logs.reader(JOB).partial() == shown
            assert logs.reader(JOB).section(0, 10, final=False).partial == shown
    assert messages(logs) == [f"{text}�"]
