"""The first page, while it is open."""

import pytest
from support.browser import Browser

AMOUNTS = """(() => {
    const today = [...document.querySelectorAll(".spent dd")].map((one) => one.textContent).join(", ");
    return [today, document.querySelector(".week")?.textContent.replace("Last 7 days", "").trim()];
})()"""


@pytest.fixture
def browser(chromium):
    browser = Browser(chromium)
    browser.hurry()
    yield browser
    browser.close()


def test_the_week_grows_with_today(service, browser):
    """As the service is new, both are the same amount, simulated as its machines are."""
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.open(f"{service.cli_json['url']}/ui")
    before = browser.evaluate(AMOUNTS)
    service.submit("exec sleep 600", name="costs", timeLimit=60)
    browser.wait_for(f"(([today, week]) => today === week && today !== {before[0]!r})({AMOUNTS})")
    assert "simulated" in browser.text(".week")
