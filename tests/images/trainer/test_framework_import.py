import socket
import subprocess
import sys
import threading
import time

import pytest
from support.free_port import free_port

from gradient_trainer.errors import DeviceUnreachable
from gradient_trainer.training.framework_import import wait_for_tpu


@pytest.fixture
def closed_port():
    return free_port()


def test_what_listens_is_reached(closed_port):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"grpc://127.0.0.1:{listener.getsockname()[1]}"
        wait_for_tpu({"TPU_GRPC_URL": f"{url},{url}"}, 5)
        with pytest.raises(DeviceUnreachable, match="did not answer"):
            wait_for_tpu({"TPU_GRPC_URL": f"{url},grpc://127.0.0.1:{closed_port}"}, 0.1)
    wait_for_tpu({}, 5)


def test_what_listens_later_is_waited_for(closed_port):
    def listen():
        time.sleep(0.2)
        with socket.create_server(("127.0.0.1", closed_port)) as listener:
            listener.accept()[0].close()

    late = threading.Thread(target=listen)
    late.start()
    wait_for_tpu({"TPU_GRPC_URL": f"grpc://127.0.0.1:{closed_port}"}, 30)
    late.join(5)
    assert not late.is_alive()


@pytest.mark.parametrize("bad", ["10.0.0.2:8470", "http://10.0.0.2", "grpc://", "grpc://a:port", "my-tpu"])
def test_what_is_no_address_is_refused(bad):
    with pytest.raises(DeviceUnreachable, match="must look like grpc://"):
        wait_for_tpu({"TPU_GRPC_URL": bad}, 5)


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
