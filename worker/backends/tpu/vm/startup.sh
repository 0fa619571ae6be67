#!/bin/bash
# Runs as root on a new TPU VM at each of its starts: makes the VM run one job. The worker replaces the text between
# at-signs; the job comes from the bucket, and its outputs go there (docs/tpu.md).

set -eu

place=${GRADIENT_VM_PLACE:-/var/lib/gradient-job}
mkdir -p "$place"
chmod 700 "$place"
rm -f "$place/shutting-down"

cat >"$place/vm.json" <<'GRADIENT_VM'
@SETTINGS@
GRADIENT_VM

cat >"$place/run.sh" <<'GRADIENT_RUN'
@WRAPPER@
GRADIENT_RUN
chmod 755 "$place/run.sh"

@RUNNER@

if [ "${GRADIENT_VM_RUN:-docker}" = docker ] && ! command -v docker >/dev/null; then
    # If the installation fails, the runner reports that in the bucket.
    { apt-get update && apt-get install --yes docker.io; } || true
fi

# After a crash it continues where it was.
cd "$place"
until python3 "$place/runner.pyz" on_vm "$place"; do
    sleep 5
done
