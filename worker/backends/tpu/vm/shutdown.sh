#!/bin/bash
# Runs as root when a TPU VM is shut down, as before Google takes back spot capacity: the runner lets the job save in the
# seconds that are left, and sends what it saved.

place=${GRADIENT_VM_PLACE:-/var/lib/gradient-job}
touch "$place/shutting-down"
for _ in $(seq 1 250); do
    [ ! -e "$place/reported" ] || exit 0
    sleep 0.1
done
