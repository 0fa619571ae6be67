"""Comparisons of machine types in the browser."""

from support.browser import Browser
from support.live_service import make_form, make_zip

PROGRAM = b"""
import json, os
with open(os.environ["GRADIENT_METRICS_FILE"], "a") as metrics:
    for step in range(3):
        print(json.dumps({"step": step, "loss": 1 / (step + 1)}), file=metrics)
"""


def test_one_click_opens_the_jobs_of_a_comparison_with_their_curves_by_machine(service, chromium):
    spec = {"machineType": "CPU,V100", "repeats": 2, "command": "python3 main.py", "metric": "loss"}
    made = service.request("POST", "/comparisons", files=make_form(spec, make_zip({"main.py": PROGRAM}))).json()
    for row in made["rows"]:
        for member in row["members"]:
            assert service.wait_ended(member["jobId"])["state"] == "Stopped"
    browser = Browser(chromium, size=(1440, 900))
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.open(f"{service.cli_json['url']}/ui/comparisons/{made['id']}")
    first = "document.querySelector('.chart').chart"
    browser.wait_for(f"{first}.labels?.length === 2")
    left, right = browser.evaluate(f"{first}.labels")
    beside = left["end"] <= right["start"] or right["end"] <= left["start"]
    assert beside or abs(left["bottom"] - right["bottom"]) >= 15, "labels cover each other"
    browser.click("#runs")
    groups = "[...document.querySelectorAll('[data-groups] tbody tr')].map(row => row.innerText.trim().split(/\\s+/))"
    browser.wait_for(f"{groups}.length === 2")
    assert [row[:2] for row in browser.evaluate(groups)] == [["CPU", "2"], ["V100", "2"]]
    assert browser.evaluate("document.querySelectorAll('[data-groups] .best').length") == 0, "all means are equal"
    browser.wait_for("document.querySelector('.chart')?.chart.series?.length === 2")
    browser.click("#verdict")
    browser.wait_for(f"location.pathname === '/ui/comparisons/{made['id']}'")
    browser.close()
