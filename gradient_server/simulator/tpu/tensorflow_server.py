"""A TensorFlow server with several logical devices; runs as a process of its own until its input ends.

It listens on every address of the machine and does what any client asks, reading and writing files included: it is
for machines that nobody else can reach.
"""

import argparse
import os
import sys

import tensorflow as tf

from gradient_server.simulator.tpu.device_server import READY


def main() -> None:
    """Serve until stdin is closed, at the latest when the parent process ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--replicas", type=int, required=True)
    chosen = parser.parse_args()
    config = tf.compat.v1.ConfigProto(device_count={"CPU": chosen.replicas})
    server = tf.distribute.Server(
        {"worker": [f"127.0.0.1:{chosen.port}"]}, job_name="worker", task_index=0, protocol="grpc", config=config
    )
    print(READY, server.target, flush=True)
    sys.stdin.buffer.read()  # TensorFlow ignores SIGTERM once a client has connected; the end of input still works
    os._exit(0)


if __name__ == "__main__":
    main()
