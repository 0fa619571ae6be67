"""Compute a·x + y on the job's TPU, write the result to the job's bucket, and print it."""

import os

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


def main() -> None:
    """Use the device that TPU_GRPC_URL names; without one, a device of this machine."""
    tpu_name = os.environ.get("TPU_NAME", "")
    tpu_url = os.environ.get("TPU_GRPC_URL", "")
    model_dir = os.environ.get("TPU_MODEL_DIR", "")
    print(f"TPU_NAME      {tpu_name}\nTPU_GRPC_URL  {tpu_url}\nTPU_MODEL_DIR {model_dir}", flush=True)

    a, x, y = 3.0, np.ones((3, 3), np.float32), np.full((3, 3), 2.0, np.float32)
    with tf1.Graph().as_default(), tf1.Session(tpu_url) as session:
        for device in session.list_devices():
            print(device.name)
        result = session.run(a * tf1.constant(x) + tf1.constant(y))
    print(result)
    if model_dir:
        with tf.io.gfile.GFile(f"{model_dir}/result.txt", "w") as file:
            file.write(f"{result.tolist()}\n")
    print("Done!")


if __name__ == "__main__":
    main()
