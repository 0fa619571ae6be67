"""Compute a·x + y on the device that TPU_GRPC_URL names; without one, on a device of this machine."""

import os

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1
tpu_url = os.environ.get("TPU_GRPC_URL", "")
print(f"TPU_NAME      {os.environ.get('TPU_NAME', '')}\nTPU_GRPC_URL  {tpu_url}", flush=True)

a, x, y = 3.0, np.ones((3, 3), np.float32), np.full((3, 3), 2.0, np.float32)
with tf1.Graph().as_default(), tf1.Session(tpu_url) as session:
    for device in session.list_devices():
        print(device.name)
    result = session.run(a * tf1.constant(x) + tf1.constant(y))
print(result)
folder = os.environ.get("TPU_MODEL_DIR") or os.environ.get("GRADIENT_ARTIFACTS_DIR") or "."
with tf.io.gfile.GFile(f"{folder}/result.txt", "w") as file:
    file.write(f"{result.tolist()}\n")
print("Done!")
