"""Event files that are moved, begun again, and beside a metrics file."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from support.event_files import write_scalars

from core.jobs.tracking.metric_limits import MetricLimits
from core.jobs.tracking.metrics import FILE_STREAM, STREAM_BYTES, Removal, StoredSummary
from worker.attempt.outputs.event_files import EventFiles
from worker.attempt.outputs.metric_rows import MetricRows


@pytest.fixture
def scratch(tmp_path):
    folders = {name: tmp_path / name for name in ("control", "workspace", "artifacts")}
    for folder in folders.values():
        folder.mkdir()
    (folders["control"] / "command").touch()
    return SimpleNamespace(root=tmp_path, event_files=tmp_path / "event-files.json", **folders)


def read(scratch, rows=None):
    """Read as a worker does that has just started."""
    files = EventFiles(scratch, rows or MetricRows("j1", 1, MetricLimits(), StoredSummary()), StoredSummary())
    files.find()
    return files, files.read()


def points(rows):
    return [(row["step"], *row["values"].items()) for row in rows if row["source"] == "job"]


@pytest.mark.parametrize("target", ["workspace/renamed", "workspace/deep/er", "artifacts/board"])
def test_a_folder_that_is_moved_keeps_its_names_and_its_place(scratch, target):
    write_scalars(scratch.workspace / "tb", "loss", [0.0, 1.0])
    files, rows = read(scratch)
    moved = scratch.root / target
    moved.parent.mkdir(exist_ok=True)
    (scratch.workspace / "tb").rename(moved)
    write_scalars(moved, "loss", [2.0], first_step=2)
    files.find()
    rows += files.read()
    expected = [(step, ("loss", step)) for step in (0.0, 1.0, 2.0)]
    assert points(rows) == expected
    assert points(read(scratch)[1]) == expected, "also by another worker"


def test_a_file_that_takes_the_place_of_another_is_read_from_its_beginning(scratch):
    path = write_scalars(scratch.workspace / "tb", "loss", [0.0, 1.0])
    files, rows = read(scratch)
    path.unlink()
    write_scalars(scratch.workspace / "tb", "loss", [5.0, 6.0, 7.0])
    files.find()
    rows += files.read()
    assert [value for _, (_, value) in points(rows)] == [0, 1, 5, 6, 7]


def test_a_writer_that_begins_again_takes_the_place_of_what_was_there(scratch):
    write_scalars(scratch.workspace / "tb", "p", [0.0, 1.0, 2.0])
    write_scalars(scratch.workspace / "other", "p", [9.0] * 3)
    files, rows = read(scratch)
    write_scalars(scratch.workspace / "tb", "p", [11.0, 12.0], first_step=1, writer="second", purges=True)
    files.find()
    (first, second, *new) = files.read()
    number = [file.path.split("/")[1] for file in files.files].index("tb")
    assert first["removal"] == Removal(number * STREAM_BYTES, (number + 1) * STREAM_BYTES, from_step=1.0)
    assert second["removal"].from_step == 1.0
    assert [value for _, (_, value) in points(new)] == [11.0, 12.0]
    again = [(step, value) for step, (name, value) in points(read(scratch)[1]) if name.endswith("p") and value != 9]
    assert [point for point in again if point[1] < 9] == [(0.0, 0.0)], "another worker leaves it out"
    assert len(rows) == 6


def test_a_metric_that_comes_to_the_metrics_file_later_is_taken_from_there(scratch):
    rows = MetricRows("j1", 1, MetricLimits(), StoredSummary())
    write_scalars(scratch.workspace, "loss", [99.0])
    files, found = read(scratch, rows)
    assert points(found) == [(0.0, ("loss", 99.0))]
    removal, row = rows.add(FILE_STREAM, 0, 1.0, datetime.now(UTC), {"loss": 0.5})
    assert removal["removal"] == Removal(0, FILE_STREAM * STREAM_BYTES, name="loss")
    assert row["offset"] > found[0]["offset"]
    write_scalars(scratch.workspace, "loss", [98.0], first_step=1)
    assert files.read() == []
