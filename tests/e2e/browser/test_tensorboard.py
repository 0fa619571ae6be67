"""TensorBoard in one click, in a real browser: for a job, for a selection, and where it is not installed."""

import json

import pytest
from support.browser import Browser
from support.deployment import wait_until
from support.event_files import write_scalars


@pytest.fixture(scope="module")
def jobs(service, tmp_path_factory):
    """Two jobs that stored event files, by name."""
    made = {}
    for name, losses in (("falling", [1.0, 0.5, 0.25]), ("flat", [1.0, 1.0, 1.0])):
        folder = tmp_path_factory.mktemp(name)
        write_scalars(folder / "train", "loss", losses)
        made[name] = service.submit(f"cp -r {folder}/. $GRADIENT_ARTIFACTS_DIR/", name=name)
    for job_id in made.values():
        assert service.wait_ended(job_id)["state"] == "Stopped"
    return made


@pytest.fixture
def browser(chromium, service):
    browser = Browser(chromium, size=(1440, 900))
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    yield browser
    browser.close()


def show_board(browser):
    """Go on in the tab that TensorBoard was opened in."""

    def find():
        tabs = browser.addresses_by_tab().items()
        return next((tab for tab, address in tabs if address.startswith("http://127.0.0.2:")), None)

    assert browser.messages == [], "nothing was refused by the dashboard's policy"
    browser.show_tab(wait_until(find, "the tab of TensorBoard"))


def test_a_click_on_a_jobs_page_shows_its_scalars(service, browser, jobs):
    browser.open(f"{service.cli_json['url']}/ui/jobs/{jobs['falling']}")
    browser.click("#tensorboard")
    show_board(browser)
    browser.wait_for("document.querySelector('scalar-card')?.innerText.includes('loss')")
    browser.wait_for("document.querySelector('scalar-card line-chart svg path, scalar-card line-chart canvas')")
    assert f"falling-{jobs['falling']}/train" in browser.text()
    assert browser.evaluate("location.search") == "", "the ticket is not in the address"
    assert browser.evaluate("document.cookie") == ""
    assert not [message for message in browser.messages if "Content Security Policy" in message]
    cookies = browser("Network.getCookies", urls=[browser.evaluate("location.href")])["cookies"]
    assert [one["name"] for one in cookies] == ["gradient_tensorboard"]


@pytest.mark.slow  # service/tensorboard selects
def test_a_selection_of_the_list_is_one_tensorboard(service, browser, jobs):
    browser.open(f"{service.cli_json['url']}/ui/jobs?q=state:succeeded")
    browser.click("[data-all]")
    browser.click(".bulk button[formaction='/ui/tensorboard']")
    show_board(browser)
    for name, job_id in jobs.items():
        browser.wait_for(f"document.body.innerText.includes({json.dumps(f'{name}-{job_id}/train')})")
