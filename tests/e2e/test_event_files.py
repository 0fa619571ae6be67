"""Metrics of TensorBoard's event files, from the writers of real libraries to the client."""

import csv
import io
import shlex
import sys

import pytest
from support.deployment import wait_until
from support.event_files import write_scalars

WITHOUT_TENSORFLOW = """
import sys, types
sys.modules["tensorboard.compat.notf"] = types.ModuleType("tensorboard.compat.notf")  # its import takes long
"""
PLAIN = f"""{WITHOUT_TENSORFLOW}
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter

def write(folder, tag, values, at=1_700_000_000, picture=0):
    # As torch.utils.tensorboard and Lightning do.
    writer = EventFileWriter(folder)
    if picture:
        image = summary_pb2.Summary.Image(encoded_image_string=bytes(picture))
        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag="picture", image=image)])
        writer.add_event(event_pb2.Event(wall_time=at, step=0, summary=summary))
    for step, value in enumerate(values):
        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, simple_value=value)])
        writer.add_event(event_pb2.Event(wall_time=at + step, step=step, summary=summary))
    writer.flush()
    return writer
"""
TENSORS = f"""{WITHOUT_TENSORFLOW}
from tensorboard.summary import Writer

def write(folder, tag, values):
    # As tf.summary of TensorFlow 2 does.
    writer = Writer(folder)
    for step, value in enumerate(values):
        writer.add_scalar(tag, value, step)
    writer.flush()
    return writer
"""


def submit(service, folder, program, *options):
    folder.mkdir(exist_ok=True)
    (folder / "main.py").write_text(program)
    command = f"{shlex.quote(sys.executable)} main.py"
    given = ["jobs", "create", "-m", "CPU", "-d", "--command", command, *options]
    return service.cli(*given, folder=folder).stdout.split()[-1]


def read(service, job_id):
    """Return the (step, value) points of each metric that the job has itself."""
    found = {}
    for row in csv.DictReader(io.StringIO(service.cli("jobs", "metrics", job_id, "--csv").stdout)):
        if row["source"] == "job":
            found.setdefault(row["name"], []).append((float(row["step"]), float(row["value"] or "nan")))
    return found


def left_out(service, job_id):
    return service.request("GET", f"/jobs/{job_id}/metrics").json().get("leftOut") or ""


def end(service, job_id):
    assert service.wait_ended(job_id)["state"] == "Stopped", service.raw_log(job_id)
    return read(service, job_id)


@pytest.mark.parametrize("writer", [PLAIN, TENSORS])
def test_scalars_are_metrics_while_the_job_runs(service, tmp_path, writer):
    program = writer + "write('runs/first', 'train/loss', [0.5, 0.25, float('nan')]); import time; time.sleep(600)"
    job_id = submit(service, tmp_path / "folder", program)
    wait_until(lambda: read(service, job_id).get("train/loss", [])[:2] == [(0, 0.5), (1, 0.25)], "its scalars")
    shown = service.request("GET", f"/jobs/{job_id}/metrics").json()
    (series,) = [one for one in shown["series"] if one["source"] == "job"]
    assert series["name"] == "train/loss"
    if writer == PLAIN:
        assert "2023-11-14" in service.cli("jobs", "metrics", job_id, "--csv").stdout, "the time that the event has"
    service.request("POST", f"/jobs/{job_id}/stop?now=true")
    service.wait_ended(job_id)
    assert left_out(service, job_id) == ""


def test_folders_are_told_apart_and_nothing_is_counted_twice(service, tmp_path):
    write_scalars(tmp_path / "folder/runs/old", "uploaded", [1.0])
    program = PLAIN + (
        "import json, os, shutil\n"
        "write('logs/train', 'loss', [1.0]); write('logs/validation', 'loss', [2.0])\n"
        "write('logs/train', 'step', [3.0]); write('logs/train', 'acc', [4.0], picture=2 << 20)\n"
        "shutil.copytree('logs', os.environ['GRADIENT_ARTIFACTS_DIR'] + '/tensorboard')\n"
        "open(os.environ['GRADIENT_METRICS_FILE'], 'w').write(json.dumps({'step': 0, 'acc': 4.0}) + '\\n')\n"
        "print('epoch 0 lr 0.5')\n"
        "write('.venv/lib', 'ignored', [1.0])\n"
    )
    found = end(
        service, submit(service, tmp_path / "folder", program, "--metric", "lr=lr (.*)", "--metric", "step=epoch (.)")
    )
    expected = {"loss": 1.0, "validation/loss": 2.0, "step": 3.0, "acc": 4.0, "lr": 0.5}
    assert found == {name: [(0, value)] for name, value in expected.items()}


def test_a_later_attempt_does_not_count_the_files_of_an_earlier_one(service, tmp_path):
    program = PLAIN + (
        "import os\n"
        "attempt = int(os.environ['GRADIENT_ATTEMPT'])\n"
        "write(os.environ['GRADIENT_ARTIFACTS_DIR'] + '/board', 'loss', [float(attempt)])\n"
        "sys.exit(attempt == 1)\n"
    )
    found = end(service, submit(service, tmp_path / "folder", program, "--maxAttempts", "2"))
    assert found == {"loss": [(0, 1.0), (0, 2.0)]}


def test_damaged_and_hostile_files_cost_no_more_than_themselves(service, tmp_path):
    name = "events.out.tfevents.1.host"
    program = PLAIN + (
        "import os, random, struct\n"
        "write('good', 'loss', [1.0, 2.0]).close()\n"
        "def put(folder, content):\n"
        "    os.makedirs(folder, exist_ok=True)\n"
        f"    open(folder + '/{name}', 'wb').write(content)\n"
        "(one,) = os.listdir('good'); good = open('good/' + one, 'rb').read()\n"
        "flipped = bytearray(good); flipped[-6] ^= 1\n"
        "put('h1', bytes(flipped)); put('h2', good[:-9]); put('h3', good + random.randbytes(5000))\n"
        "put('h4', struct.pack('<QI', 1 << 62, 0)); put('h5', bytes(10 << 20)); put('h6', random.randbytes(10 << 20))\n"
        f"os.mkdir('l1'); os.symlink('/dev/zero', 'l1/{name}'); os.mkdir('l2'); os.mkfifo('l2/{name}')\n"
        f"os.mkdir('l3'); os.symlink(os.path.abspath('good'), 'l3/linked'); os.makedirs('l4/{name}')\n"
        "deep = '/'.join('d' * 3 for _ in range(200)); os.makedirs(deep)\n"
        "os.mkdir('h7')\n"
        f"with open('h7/{name}', 'wb') as sparse: sparse.truncate(1 << 40)\n"
    )
    job_id = submit(service, tmp_path / "folder", program)
    found = end(service, job_id)
    assert found == {
        "loss": [(0, 1.0), (1, 2.0)],
        "h1/loss": [(0, 1.0)],
        "h2/loss": [(0, 1.0)],
        "h3/loss": [(0, 1.0), (1, 2.0)],
    }
    assert "is damaged at byte" in left_out(service, job_id)
    assert "Traceback" not in "".join(log.read_text() for log in service.logs)


def test_more_than_is_stored_is_told(service, tmp_path):
    program = PLAIN + "for number in range(205):\n    write(f'runs/{number:03}', 'loss', [1.0]).close()\n"
    job_id = submit(service, tmp_path / "folder", program)
    assert len(end(service, job_id)) == 200
    assert "Only 200 event files are read" in left_out(service, job_id)


@pytest.mark.faults
@pytest.mark.slow  # test_log_metrics.py kills the worker that reads the log
def test_no_event_is_lost_or_counted_twice_when_the_worker_is_killed(deployment, tmp_path):
    program = PLAIN + (
        "import time\n"
        "writers = [EventFileWriter(f'runs/{name}') for name in 'ab']\n"
        "for step in range(200):\n"
        "    for writer in writers:\n"
        "        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag='loss', simple_value=step)])\n"
        "        writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))\n"
        "        writer.flush()\n"
        "    time.sleep(0.02)\n"
    )
    deployment.start_api()
    worker = deployment.start_worker()
    job_id = submit(deployment, tmp_path / "folder", program)
    wait_until(lambda: read(deployment, job_id), "its first values")
    worker.kill()
    deployment.start_worker()
    expected = [(float(step), float(step)) for step in range(200)]
    assert end(deployment, job_id) == {"loss": expected, "b/loss": expected}
