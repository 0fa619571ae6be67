import json
import socket
import subprocess
import sys
import threading
import time

import pytest

from gradient_trainer.errors import DeviceUnreachable, OptionsError
from gradient_trainer.options import TrainOptions
from gradient_trainer.reach import reach_tpu


@pytest.fixture
def closed_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_what_listens_is_reached(closed_port):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
        reach_tpu({"TPU_GRPC_URL": f"{url},{url}"}, 5)
        with pytest.raises(DeviceUnreachable, match="did not answer"):
            reach_tpu({"TPU_GRPC_URL": f"{url},grpc://127.0.0.1:{closed_port}"}, 0.1)
    reach_tpu({}, 5)


def test_what_listens_later_is_waited_for(closed_port):
    def listen():
        time.sleep(0.2)
        with socket.create_server(("127.0.0.1", closed_port)) as listener:
            listener.accept()[0].close()

    late = threading.Thread(target=listen)
    late.start()
    reach_tpu({"TPU_GRPC_URL": f"grpc://127.0.0.1:{closed_port}"}, 30)
    late.join(5)
    assert not late.is_alive()


@pytest.mark.parametrize("bad", ["10.0.0.2:8470", "http://10.0.0.2", "grpc://", "grpc://a:port", "my-tpu"])
def test_what_is_no_address_is_refused(bad):
    with pytest.raises(DeviceUnreachable, match="must look like grpc://"):
        reach_tpu({"TPU_GRPC_URL": bad}, 5)


def test_a_dead_address_ends_the_program_soon_with_75(closed_port, tmp_path):
    """Before TensorFlow is imported: it would wait for the address without end."""
    began = time.monotonic()
    ended = subprocess.run(
        [sys.executable, "-m", "gradient_trainer", "--data", "digits", "--connect-timeout", "0.5", "--output", "out"],
        env={"TPU_GRPC_URL": f"grpc://127.0.0.1:{closed_port}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 75
    assert "is the node READY" in ended.stderr
    assert time.monotonic() - began < 30


def test_batch_and_rate_are_scaled_when_asked():
    assert TrainOptions(batch_size=64, learning_rate=0.001).scaled(8) == (64, 0.001)
    assert TrainOptions(batch_size=64, learning_rate=0.001, scale_by_replicas=True).scaled(8) == (512, 0.008)
    assert TrainOptions(batch_size=30).scaled(1) == (30, 0.001)
    with pytest.raises(OptionsError, match="choose a multiple of 8"):
        TrainOptions(batch_size=30).scaled(8)


def test_outputs_go_to_the_bucket_that_the_job_was_given():
    assert TrainOptions().output_url({}) is None
    assert TrainOptions().output_url({"TPU_MODEL_DIR": "gs://b/model"}) == "gs://b/model"
    assert TrainOptions(output="out").output_url({"TPU_MODEL_DIR": "gs://b/model"}) is None
    assert TrainOptions(output="gs://c/d").output_url({}) == "gs://c/d"
    assert json.loads(json.dumps(TrainOptions().as_json()))["scale_by_replicas"] is False
