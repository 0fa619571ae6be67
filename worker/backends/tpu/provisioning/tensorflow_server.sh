#!/bin/bash
# Runs as root on a new TPU VM at each of its starts: serves the TPU to TensorFlow programs at port 8470, so that a job
# elsewhere reaches it as grpc://ADDRESS:8470. The worker replaces the text between at-signs.
#
# The port has no authentication, and anyone who can reach it can read and write files here: the network's firewall must
# admit only the workers (docs/tpu.md).

set -eu

place=/opt/gradient-tpu
mkdir -p "$place"
@RUNNER@

# If no worker is connected for long, nobody else would delete this node, even if nothing can be installed.
cat >"$place/watch.json" <<'GRADIENT_WATCH'
@WATCH@
GRADIENT_WATCH

cat >/etc/systemd/system/gradient-watch.service <<UNIT
[Unit]
After=network-online.target

[Service]
WorkingDirectory=$place
ExecStart=/usr/bin/python3 $place/runner.pyz on_vm.connection_watch $place/watch.json
Restart=always
RestartSec=5

[Install]
WantedBy=multi-user.target
UNIT

systemctl daemon-reload
systemctl enable --now gradient-watch.service

packages=@PACKAGES@
# A newer libtpu than the one that a tensorflow-tpu was built with aborts when the TPU is set up.
set -- "tensorflow-tpu==@TENSORFLOW@" "libtpu==0.0.14"

install() {
    rm -rf "$place/venv" "$place/wheels"
    if [ -n "$packages" ]; then install_from_bucket "$@"; else install_from_pypi "$@"; fi
}

install_from_bucket() {
    python3 "$place/runner.pyz" on_vm.wheels "$packages" "$place/wheels" &&
        python3 -m venv --without-pip "$place/venv" &&
        pip=$(find "$place/wheels" -name 'pip-*.whl' | sort | tail -n 1) &&
        "$place/venv/bin/python" "$pip/pip" install --quiet --no-cache-dir --no-index --find-links "$place/wheels" "$@" &&
        rm -r "$place/wheels"
}

install_from_pypi() {
    # Ubuntu's python3 has no ensurepip without its package python3-venv.
    {
        python3 -m venv "$place/venv" ||
            { apt-get update && apt-get install --yes python3-venv && python3 -m venv "$place/venv"; }
    } && "$place/venv/bin/pip" install --quiet "$@"
}

until [ -e "$place/installed" ] || { install "$@" && touch "$place/installed"; }; do
    echo "gradient-tpu: TensorFlow was not installed; the next attempt is in 30 seconds" >&2
    sleep 30
done

libtpu=$(echo "$place"/venv/lib/python3*/site-packages/libtpu/libtpu.so)

cat >"$place/serve.py" <<'PYTHON'
import tensorflow as tf

tf.distribute.Server({"worker": ["0.0.0.0:8470"]}, job_name="worker", task_index=0, protocol="grpc").join()
PYTHON

cat >/etc/systemd/system/gradient-tpu.service <<UNIT
[Unit]
After=network-online.target

[Service]
Environment=PJRT_DEVICE=TPU NEXT_PLUGGABLE_DEVICE_USE_C_API=true TF_PLUGGABLE_DEVICE_LIBRARY_PATH=$libtpu
ExecStartPre=/bin/sh -c 'ls /dev/accel* /dev/vfio/* 2>/dev/null | grep -q .'
ExecStart=$place/venv/bin/python $place/serve.py
Restart=always
RestartSec=5

[Install]
WantedBy=multi-user.target
UNIT

systemctl daemon-reload
systemctl enable --now gradient-tpu.service
