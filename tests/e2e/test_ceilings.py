"""Ceilings: a job ends by what it costs, over all attempts, and with the others of its array."""

import re

SAVES = "trap 'echo saved > $GRADIENT_ARTIFACTS_DIR/checkpoint; exit 0' TERM; echo begun; sleep 600 & wait"
V100 = 2.3 / 3600  # US dollars a second


def test_a_job_ends_at_its_ceiling_with_grace_and_keeps_its_artifacts(service):
    price = next(
        kind["pricePerHour"]
        for kind in service.request("GET", "/machine-types").json()["machineTypes"]
        if kind["name"] == "V100"
    )
    job_id = service.submit(SAVES, machineType="V100", maxCost=3 * price / 3600, stopGrace=5)
    job = service.wait_ended(job_id)
    assert (job["state"], job["reason"]) == ("Failed", "cost_limit")
    assert "maxCost" in job["message"]
    assert 3 * price / 3600 <= job["cost"] <= 10 * price / 3600
    assert service.artifact(job_id, "checkpoint") == b"saved\n"
    spent = re.search(r"would cost +(\$[\d.]+ of \$[\d.]+) at", service.cli("jobs", "show", job_id).stdout)
    assert spent[1].replace(" of", "</span> of") in service.request("GET", f"/ui/jobs/{job_id}").text
