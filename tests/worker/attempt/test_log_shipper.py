import json
import os
from datetime import UTC, datetime

import pytest
from support.live_service import measure_peak_memory

from core.jobs.tracking.metrics import MetricLimits, StoredSummary
from core.storage.joblogs.store import JobLogs
from core.storage.joblogs.writer import LogWriter
from worker.attempt.outputs import log_shipper
from worker.attempt.outputs.log_shipper import LogShipper, MetricsReader, SourceFile, parse_metric

TAIL = 1000
NOW = datetime.now(UTC)


class Shipped:
    """A job's output file, and its log."""

    def __init__(self, folder, max_bytes):
        self.path = folder / "log"
        self.logs = JobLogs(folder / "logs", max_bytes=max_bytes)

    def ship(self, *, finish):
        """Ship as a restarted worker does."""
        source = SourceFile(self.path)
        with self.logs.open_writer("j1", 1) as writer:
            shipper = LogShipper(source, writer, TAIL)
            shipper.ship()
            if finish:
                shipper.finish()
        source.close()

    def stored(self):
        reader = self.logs.reader("j1")
        return b"".join(reader.raw_blocks(0, reader.size))


@pytest.fixture
def shipped(tmp_path):
    return Shipped(tmp_path, max_bytes=100_000)


def test_every_byte_is_shipped_once_over_any_number_of_workers(shipped):
    written = b""
    for number in range(50):
        piece = bytes([number]) * (number * 7)
        with shipped.path.open("ab") as file:
            file.write(piece)
        written += piece
        shipped.ship(finish=False)
    shipped.ship(finish=True)
    assert shipped.stored() == written


def test_output_past_the_limit_loses_its_middle_and_says_so(shipped):
    output = b"".join(b"line %06d\n" % number for number in range(100_000))
    shipped.path.write_bytes(output)
    shipped.ship(finish=False)
    assert shipped.stored() == output[: 100_000 - TAIL]
    shipped.ship(finish=True)
    stored = shipped.stored()
    assert stored.startswith(output[: 100_000 - TAIL])
    assert stored.endswith(output[-TAIL:])
    (gap,) = [line for line in stored.splitlines() if b"[gradient]" in line]
    assert f"{len(output) - 100_000:,} bytes".encode() in gap
    shipped.ship(finish=True)
    assert shipped.stored() == stored, "finishing again changes nothing"


def test_disk_space_of_shipped_output_is_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(log_shipper, "RELEASE_BYTES", 1024**2)
    shipped = Shipped(tmp_path, max_bytes=1024**3)
    shipped.path.write_bytes(os.urandom(8 * 1024**2).replace(b"\x1b", b"."))
    before = shipped.path.read_bytes()
    shipped.ship(finish=True)
    assert shipped.stored() == before
    assert shipped.path.stat().st_size == len(before)
    assert shipped.path.stat().st_blocks * 512 <= 2 * 1024**2


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_what_is_no_plain_file_is_not_read(tmp_path, make):
    make(tmp_path / "log")
    source = SourceFile(tmp_path / "log")
    assert source.read(0, 100) == b""
    assert source.size == 0
    source.close()


def opened(path, stored=None, **settings):
    return MetricsReader(SourceFile(path), "j1", 1, MetricLimits(**settings), stored)


def read_all(reader):
    rows = []
    reader.more = True
    while reader.more:
        rows += reader.read()
    return rows


def metrics(path, offset=0):
    return read_all(opened(path, StoredSummary({0: offset})))


@pytest.mark.parametrize(
    "line",
    [b"", b"nonsense", b"[]", b"1", b'"x"', b"{}", b'{"step": 1}', b'{"loss": "0.5"}', b'{"loss": true}', b"\xff\xfe"],
)
def test_what_is_no_metric_is_passed_over(line):
    assert parse_metric(line, NOW) is None


def test_the_first_malformed_line_is_told(tmp_path):
    path = tmp_path / "metrics"
    path.write_text('{"loss": 1}\nepoch 1: 0.5\n\nepoch 2: 0.4\n{"loss": 2}\n')
    reader = opened(path)
    assert [row["values"]["loss"] for row in read_all(reader)] == [1.0, 2.0]
    reader.finish()
    assert reader.left_out == {
        "malformed_metric": "Lines of its metrics file that are no JSON object with numbers are left out; "
        "the first is 'epoch 1: 0.5'.",
        "malformed_metrics": "2 lines of its metrics file were left out.",
    }


def truncate(path, text):
    path.write_text(text)


def replace(path, text):
    other = path.with_name("other")
    other.write_text(text)
    other.replace(path)


def remove_and_write(path, text):
    path.unlink()
    path.write_text(text)


@pytest.mark.parametrize("rewrite", [truncate, replace, remove_and_write])
@pytest.mark.parametrize("count", [1, 50, 500], ids=["shorter", "as long", "longer"])
@pytest.mark.parametrize("end", ["", '{"loss": '], ids=["whole", "cut"])
def test_a_file_that_is_rewritten_is_read_again(tmp_path, rewrite, count, end):
    path, earlier = tmp_path / "metrics", tmp_path / "earlier"
    path.write_text('{"loss": 1}\n' * 50 + end)
    reader = MetricsReader(SourceFile(path), "j1", 1, MetricLimits(), None, earlier)
    first = read_all(reader)
    rewrite(path, '{"loss": 2}\n' * count)
    second = read_all(reader)
    assert [row["values"]["loss"] for row in second] == [2] * count
    assert first[-1]["offset"] < second[0]["offset"], "both are stored"
    assert list(reader.left_out) == ["metrics_rewritten"]
    later = MetricsReader(SourceFile(path), "j1", 1, MetricLimits(), StoredSummary({0: second[-1]["offset"]}), earlier)
    assert [row["offset"] for row in read_all(later)] == [second[-1]["offset"]], "also by another worker"
    assert later.left_out == {}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        (b'{"loss": NaN, "lr": 0.1}', {"loss": None, "lr": 0.1}),
        (b'{"loss": Infinity}', {"loss": None}),
        (b'{"loss": 1, "step": NaN}', {"loss": 1.0}),
        (b'{"loss": 1e400}', {"loss": None}),
        (b'{"loss": 1, "count": 1' + b"0" * 400 + b"}", {"loss": 1.0}),
        (b'{"loss": 1, "time": 1e300}', {"loss": 1.0}),
    ],
)
def test_odd_numbers_are_kept_as_far_as_they_can_be(line, values):
    step, _, found = parse_metric(line, NOW)
    assert found == values
    assert step is None


def test_a_line_too_long_for_a_metric_is_skipped_in_bounded_memory(tmp_path):
    path = tmp_path / "metrics"
    path.write_bytes(b'{"x": "' + b"y" * 5_000_000 + b'"}\n{"step": 1, "loss": 2}\n')
    assert [row["values"] for row in metrics(path)] == [{"loss": 2.0}]


def test_a_hole_of_a_terabyte_in_the_metrics_is_passed_over_at_once(tmp_path):
    """It takes no disk; read through, it kept the ended job and its slot for an hour."""
    path = tmp_path / "metrics"
    path.write_bytes(b'{"step": 1, "loss": 1}\n')
    os.truncate(path, 1024**4)
    with path.open("ab") as file:
        file.write(b'\n{"step": 2, "loss": 2}\n')
    reader, rows = opened(path), []
    for _ in range(5):
        rows += reader.read()
    assert not reader.more
    assert [row["values"] for row in rows] == [{"loss": 1.0}, {"loss": 2.0}]


def test_a_flood_of_metrics_is_thinned_and_said(tmp_path):
    path = tmp_path / "metrics"
    path.write_text("".join(f'{{"step": {step}, "loss": 1}}\n' for step in range(100_000)))
    reader = opened(path, values=1600)
    steps = [row["step"] for row in read_all(reader)]
    assert steps[:100] == list(range(100))
    assert len(steps) <= 1600
    assert steps[-1] > 90_000, "the end is kept too"
    assert list(reader.left_out) == ["metric_values_limit"]
    assert "1,600" in reader.left_out["metric_values_limit"]


def test_the_values_of_a_job_are_counted_on_after_a_restart(tmp_path):
    path = tmp_path / "metrics"
    path.write_text("".join(f'{{"step": {step}, "loss": 1, "late": 2}}\n' for step in range(3000)))
    reader = opened(path, StoredSummary(values=800, names={"loss"}), values=1600, names=1)
    rows = read_all(reader)
    assert 0 < len(rows) <= 100
    assert all(row["values"] == {"loss": 1.0} for row in rows)
    assert list(reader.left_out) == ["metric_values_limit", "metric_names_limit"]


@pytest.mark.slow
def test_a_hundred_thousand_rows_at_once_are_read_in_batches_of_bounded_memory(tmp_path):
    path = tmp_path / "metrics"
    path.write_text((json.dumps({f"m{number}": number / 7 for number in range(4)}) + "\n") * 100_000)
    reader = opened(path, values=10_000_000)
    batches = []

    def read_in_batches():
        reader.more = True
        while reader.more:
            batches.append(sum(len(row["values"]) for row in reader.read()))

    assert measure_peak_memory(read_in_batches) < 30 * 1024**2
    assert sum(batches) == 400_000
    assert max(batches) <= log_shipper.BATCH_VALUES


def test_output_is_safe_on_disk_before_its_source_is_given_back(shipped, monkeypatch):
    done = []
    monkeypatch.setattr(log_shipper, "RELEASE_BYTES", 1000)
    monkeypatch.setattr(log_shipper, "_punch_hole", lambda *_: done.append("freed") or True)
    monkeypatch.setattr(LogWriter, "sync", lambda _: done.append("synced"))
    shipped.path.write_bytes(b"x" * 5000)
    shipped.ship(finish=False)
    assert done[:2] == ["synced", "freed"]


@pytest.mark.parametrize("seconds", ["253402300799", "-62135596800", "1e300", "NaN", "Infinity"])
def test_a_time_that_leaves_the_calendar_somewhere_is_not_believed(seconds):
    _, at, _ = parse_metric(f'{{"loss": 1, "time": {seconds}}}'.encode(), NOW)
    assert 2020 < at.year < 2243
