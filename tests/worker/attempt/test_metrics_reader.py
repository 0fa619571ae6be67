import json
import math
import os
from datetime import UTC, datetime

import pytest
from support.live_service import measure_peak_memory

from core.jobs.tracking.metric_limits import MetricLimits
from core.jobs.tracking.metrics import FILE_STREAM, STREAM_BYTES, StoredSummary
from worker.attempt.outputs import metrics_reader
from worker.attempt.outputs.log_shipper import SourceFile
from worker.attempt.outputs.metric_lines import parse_metric
from worker.attempt.outputs.metric_rows import MetricRows
from worker.attempt.outputs.metrics_reader import MetricsReader

NOW = datetime.now(UTC)


class Read:
    """A job's metrics file as a worker reads it."""

    def __init__(self, path, stored=None, earlier=None, **limits):
        self.rows = MetricRows("j1", 1, MetricLimits(**limits), stored or StoredSummary())
        self.reader = MetricsReader(SourceFile(path), self.rows, stored, earlier)
        self.left_out = self.rows.left_out

    def all(self):
        found = []
        self.reader.more = True
        while self.reader.more:
            found += self.reader.read()
        return found

    def finish(self):
        return self.reader.finish() + self.rows.finish()


def place(row):
    return row["offset"] - FILE_STREAM * STREAM_BYTES


@pytest.mark.parametrize(
    "line",
    [b"", b"nonsense", b"[]", b"1", b'"x"', b"{}", b'{"step": 1}', b"\xff\xfe"],
)
def test_a_line_without_a_number_is_told_and_passed_over(tmp_path, line):
    path = tmp_path / "metrics"
    path.write_bytes(line + b"x\n" + b'{"loss": 1}\n')
    read = Read(path)
    assert [row["values"] for row in read.all()] == [{"loss": 1.0}]
    assert list(read.left_out) == ["malformed_metric"]


def test_the_first_malformed_line_is_told(tmp_path):
    path = tmp_path / "metrics"
    path.write_text('{"loss": 1}\nepoch 1: 0.5\n\nepoch 2: 0.4\n{"loss": 2}\n')
    read = Read(path)
    assert [row["values"]["loss"] for row in read.all()] == [1.0, 2.0]
    read.finish()
    assert read.left_out == {
        "malformed_metric": (
            "Lines of the metrics file that are not a JSON object with numbers are left out; the first is 'epoch "
            "1: 0.5'."
        ),
        "malformed_metrics": "2 lines of the metrics file were left out.",
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
    read = Read(path, None, earlier)
    first = read.all()
    rewrite(path, '{"loss": 2}\n' * count)
    second = read.all()
    assert [row["values"]["loss"] for row in second] == [2] * count
    assert first[-1]["offset"] < second[0]["offset"], "both are stored"
    assert list(read.left_out) == ["metrics_rewritten"]
    later = Read(path, StoredSummary({FILE_STREAM: place(second[-1])}), earlier)
    assert [row["offset"] for row in later.all()] == [second[-1]["offset"]], "also by another worker"
    assert later.left_out == {}


@pytest.mark.parametrize(
    ("line", "values", "refused"),
    [
        ('{"loss": NaN, "lr": 0.1}', {"loss": math.nan, "lr": 0.1}, ""),
        ('{"loss": Infinity, "x": -Infinity}', {"loss": math.inf, "x": -math.inf}, ""),
        ('{"loss": "NaN", "x": "-Infinity"}', {"loss": math.nan, "x": -math.inf}, ""),
        ('{"loss": 1e400}', {"loss": math.inf}, ""),
        ('{"loss": 1, "count": 1%s}' % ("0" * 5000), {"loss": 1.0, "count": math.inf}, ""),
        ('{"loss": 1, "step": NaN}', {"loss": 1.0}, "step (not finite)"),
        ('{"loss": 1, "step": "7"}', {"loss": 1.0}, "step (a string)"),
        ('{"loss": 1, "time": 1767225600250}', {"loss": 1.0}, "time (1.76723e+12 is not a time in seconds since 1970)"),
        (
            '{"acc": "0.5", "done": true, "n": {"a": 1}, "l": [1], "x": null, "loss": 3}',
            {"loss": 3.0},
            "acc (a string), done (true or false), n (an object), l (a list), x (null)",
        ),
        ('{"acc": "0.5"}', None, "acc (a string)"),
        ('{"params": {"lr": 1}, "loss": 2}', {"loss": 2.0}, ""),
        ('{"params": 1e6}', {"params": 1e6}, ""),
        ('{"pad": "%s", "loss": 2}' % ("y" * 70_000), {"loss": 2.0}, "pad (a string)"),
    ],
)
def test_of_a_line_all_numbers_are_kept_and_the_others_named(tmp_path, line, values, refused):
    path = tmp_path / "metrics"
    path.write_text(f"{line}\n")
    read = Read(path)
    rows = [row for row in read.all() if row["source"] == "job"]
    assert [(row["step"], str(row["values"])) for row in rows] == ([(None, str(values))] if values else [])
    text = "Values of the metrics file that are not numbers are left out"
    assert read.left_out == ({"metric_no_number": f"{text}: {refused}."} if refused else {})


def test_a_line_too_long_for_a_metric_is_skipped_in_bounded_memory(tmp_path):
    path = tmp_path / "metrics"
    path.write_bytes(b'{"x": "' + b"y" * 5_000_000 + b'"}\n{"step": 1, "loss": 2}\n')
    read = Read(path)
    assert [row["values"] for row in read.all()] == [{"loss": 2.0}]
    assert "over 1,048,576 bytes are left out; the first begins at byte 0" in read.left_out["metric_line_limit"]


def test_a_hole_of_a_terabyte_in_the_metrics_is_passed_over_at_once(tmp_path):
    """It takes no disk; read through, it kept the ended job and its slot for an hour."""
    path = tmp_path / "metrics"
    path.write_bytes(b'{"step": 1, "loss": 1}\n')
    os.truncate(path, 1024**4)
    with path.open("ab") as file:
        file.write(b'\n{"step": 2, "loss": 2}\n')
    read, rows = Read(path), []
    for _ in range(5):
        rows += read.reader.read()
    assert not read.reader.more
    assert [row["values"] for row in rows] == [{"loss": 1.0}, {"loss": 2.0}]


SERIES = {
    "wave": lambda step: math.sin(step / 50),
    "falling": lambda step: 1 / (step + 1),
    "diverged": lambda step: math.nan if step % 3 else float(step % 7),
}


@pytest.mark.parametrize("limit", [600, 8000])
@pytest.mark.parametrize("series", SERIES)
def test_of_too_many_values_the_ends_and_the_extremes_are_stored(tmp_path, series, limit):
    path = tmp_path / "metrics"
    value = SERIES[series]
    odd = {0: 3.0, 12_345: 1000.0, 17_777: -1000.0, 19_999: 7.0}
    lines = (
        {"step": step, "y": odd.get(step, value(step))} | ({"val": step} if step % 999 == 0 else {})
        for step in range(20_000)
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = Read(path, values=limit)
    rows = read.all()
    rows += read.finish()
    assert [row["offset"] for row in rows] == sorted({row["offset"] for row in rows})
    stored = {row["step"]: row["values"]["y"] for row in rows if "y" in row["values"]}
    assert stored.items() >= odd.items()
    assert list(stored)[: limit // 4] == list(range(limit // 4)), "the first ones are whole"
    assert limit / 2 < sum(len(row["values"]) for row in rows) <= limit
    assert [row["step"] for row in rows if "val" in row["values"]][-1] == 19_980
    assert f"more than {limit // 2:,} metric values" in read.left_out["metric_values_limit"]


def test_nothing_is_thinned_below_half_of_the_limit(tmp_path):
    path = tmp_path / "metrics"
    path.write_text("".join(f'{{"step": {step}, "y": 1}}\n' for step in range(5000)))
    read = Read(path, values=10_000)
    assert [row["step"] for row in read.all()] == list(range(5000))
    assert (read.finish(), read.left_out) == ([], {})


def test_the_values_of_a_job_are_counted_on_after_a_restart(tmp_path):
    path = tmp_path / "metrics"
    path.write_text("".join(f'{{"step": {step}, "loss": 1, "late": 2}}\n' for step in range(3000)))
    read = Read(path, StoredSummary(values=1500, names={"loss"}), values=1600, names=1)
    rows = read.all() + read.finish()
    assert 0 < len(rows) <= 100
    assert all(row["values"] == {"loss": 1.0} for row in rows)
    assert list(read.left_out) == ["metric_names_limit", "metric_values_limit"]


def test_of_a_wide_line_the_first_names_are_stored_and_the_others_named(tmp_path):
    path = tmp_path / "metrics"
    wide = {"step": 1, "loss": 0.5} | {f"grad/{number}": 0.1 for number in range(300)}
    path.write_text(f"{json.dumps(wide)}\n{json.dumps({'late': 1})}\n{json.dumps({'loss': 2, 'later': 1})}\n")
    read = Read(path)
    first, second = read.all()
    assert list(first["values"]) == ["loss", *(f"grad/{number}" for number in range(199))]
    assert second["values"] == {"loss": 2.0}
    assert "at most 200 metrics" in read.left_out["metric_names_limit"]
    read.finish()
    said = read.left_out["metric_names_limit_all"]
    assert said.startswith("In all 103. ")
    assert "grad/199, grad/200" in said


LONG = "model.encoder." + "x" * 200


@pytest.mark.parametrize(
    ("names", "changed"),
    [
        (["x" * 110 + ".weight", "x" * 110 + ".bias"], False),
        ([f"{LONG}.weight", f"{LONG}.bias"], True),
        (["x" * 199 + "éa", "x" * 199 + "éb"], True),
        (["a\ud800", "a\udfff", "a?"], True),
        (["a\0", "a\N{REPLACEMENT CHARACTER}"], True),
    ],
)
def test_names_that_differ_are_metrics_that_differ(tmp_path, names, changed):
    path = tmp_path / "metrics"
    path.write_text(json.dumps({name: number for number, name in enumerate(names)}) + "\n")
    read = Read(path)
    (row,) = read.all()
    assert list(row["values"].values()) == [float(number) for number in range(len(names))]
    assert all(len(name) <= 200 and "\0" not in name and name.encode() for name in row["values"])
    assert (list(row["values"]) != names) == changed == ("metric_names_changed" in read.left_out)
    assert all(name in read.left_out.get("metric_names_changed", "") for name in row["values"] if name not in names)


@pytest.mark.slow
def test_a_hundred_thousand_rows_at_once_are_read_in_batches_of_bounded_memory(tmp_path):
    path = tmp_path / "metrics"
    path.write_text((json.dumps({f"m{number}": number / 7 for number in range(4)}) + "\n") * 100_000)
    reader = Read(path, values=10_000_000).reader
    batches = []

    def read_in_batches():
        reader.more = True
        while reader.more:
            batches.append(sum(len(row["values"]) for row in reader.read()))

    assert measure_peak_memory(read_in_batches) < 30 * 1024**2
    assert sum(batches) == 400_000
    assert max(batches) <= metrics_reader.BATCH_VALUES


@pytest.mark.parametrize("seconds", ["253402300799", "-62135596800", "1e300", "NaN", "Infinity"])
def test_a_time_that_leaves_the_calendar_somewhere_is_not_believed(seconds):
    at = parse_metric(f'{{"loss": 1, "time": {seconds}}}'.encode(), NOW).at
    assert 2020 < at.year < 2243
