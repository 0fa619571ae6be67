"""The mark of jobs that diverged, and the way from it to stopping them, in a real browser."""

import pytest
from support.browser import Browser
from support.deployment import wait_until

NAMES = "[...document.querySelectorAll('tbody .name > a:first-child')].map(a => a.textContent)"


@pytest.fixture(params=[(1440, 900), (390, 844)], ids=["wide", "narrow"])
def browser(request, chromium, service):
    browser = Browser(chromium, size=request.param)
    browser.hurry()
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    yield browser
    messages = browser.messages
    browser.close()
    assert messages == []


def test_those_that_diverged_are_found_by_a_mark_and_stopped(service, browser):
    lines = """for n in 1 2 3; do echo '{{"step": 7, "loss": "{0}"}}' >> $GRADIENT_METRICS_FILE; done; exec sleep 600"""
    well = service.submit(lines.format(1), name="well")
    ids = [service.submit(lines.format("NaN"), name=f"lost {number}") for number in range(3)]
    wait_until(lambda: all(service.job(job_id)["diverged"] for job_id in ids), "their metrics")
    browser.fill("#q", "is:")
    browser.wait_for("document.querySelector('.completions li')?.textContent === 'is:diverged'")
    browser.open(f"{service.cli_json['url']}/ui/jobs?q=id:{ids[0]}")
    assert browser.text("a.diverged .unseen") == "Diverged: loss is nan at step 7"
    assert browser.evaluate("document.querySelector('a.diverged').title") == "Diverged: loss is nan at step 7"
    browser.leave("a.diverged")
    assert sorted(browser.evaluate(NAMES)) == ["lost 0", "lost 1", "lost 2"]
    browser.click("[data-all]")
    browser.click("#bulk-stop summary")
    browser.leave("button[value=stop]")
    assert browser.text(".did") == "Asked to stop: 3 jobs."
    for job_id in ids:
        assert service.wait_ended(job_id)["state"] == "Cancelled"
    browser.open(f"{service.cli_json['url']}/ui/jobs?q=is:diverged+state:running")
    assert browser.evaluate(NAMES) == []
    assert service.job(well)["state"] == "Running"
    browser.open(f"{service.cli_json['url']}/ui/jobs/{ids[0]}")
    assert " ".join(browser.text(".heading .state").split()) == "Cancelled Diverged loss is nan at step 7"
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
