#!/bin/bash
# Runs as root on a new TPU VM at each of its starts: has the VM run one job. What stands between at-signs is put in by
# whoever makes the VM; the job itself comes from the bucket, and what becomes of it goes there (docs/tpu.md).

set -eu

place=${GRADIENT_VM_PLACE:-/var/lib/gradient-job}
mkdir -p "$place"
chmod 700 "$place"

cat >"$place/vm.json" <<'GRADIENT_VM'
@SETTINGS@
GRADIENT_VM

cat >"$place/run.sh" <<'GRADIENT_RUN'
@WRAPPER@
GRADIENT_RUN
chmod 755 "$place/run.sh"

mkdir -p "$place/agent"
@AGENT@

if [ "${GRADIENT_VM_RUN:-docker}" = docker ] && ! command -v docker >/dev/null; then
    # Without it the agent says so in the bucket.
    { apt-get update && apt-get install --yes docker.io; } || true
fi

# Wherever it was when it fell over, it takes the job up again there.
cd "$place"
until python3 -m agent "$place"; do
    sleep 5
done
