"""PyPI's `gradient-statsd` 1.0.1, unmodified, inside a job."""

import time

MAIN = """
import os, time
from gradient_statsd import Client
client = Client(host="127.0.0.1", port=int(os.environ["GRADIENT_STATSD_PORT"]))
for step in range(5):
    client.gauge("loss", 1 / (step + 1))
    client.increment("steps", 2)
client.decrement("steps", 1)
client.__del__()  # it sends most of it when it goes
# No datagram is acknowledged: a program that ends at once may be gone before it is known whose they were.
file = os.environ["GRADIENT_METRICS_FILE"]
while not os.path.exists(file) or '"steps": 9' not in open(file).read():
    time.sleep(0.05)
"""


def test_its_metrics_become_the_job_s(original_clients, service, tmp_path):
    (tmp_path / "main.py").write_text(MAIN)
    python = original_clients / "python" / "bin" / "python"
    began = time.time()
    job = service.submit(f"'{python}' '{tmp_path}/main.py'")
    assert service.wait_ended(job)["exitCode"] == 0, service.raw_log(job)
    found = service.request("GET", f"/jobs/{job}/metrics").json()["series"]
    values = {one["name"]: [point["value"] for point in one["points"]] for one in found if one["source"] == "job"}
    assert values == {"loss": [1.0, 0.5, 1 / 3, 0.25, 0.2], "steps": [2.0, 4.0, 6.0, 8.0, 10.0, 9.0]}
    assert all(point["time"] >= time.strftime("%Y-%m-%d", time.gmtime(began)) for point in found[0]["points"])
