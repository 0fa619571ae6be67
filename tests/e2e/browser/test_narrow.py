"""Pages on a phone and on a small screen: what is said at the top, and lists that have no heads."""

import pytest
from support.browser import Browser
from support.live_service import make_form, make_job_body, make_zip


@pytest.fixture
def open_page(chromium, service):
    """A function that opens a page in a window of this size."""
    browsers = []

    def open_page(path, size):
        browser = Browser(chromium, size=size)
        browsers.append(browser)
        browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
        browser.open(f"{service.cli_json['url']}{path}")
        return browser

    yield open_page
    for browser in browsers:
        browser.close()


def is_whole(browser, selector):
    """Return whether the text of an element is shown whole."""
    return browser.evaluate(
        f"(one => one.clientWidth > 0 && one.scrollWidth <= one.clientWidth)(document.querySelector('{selector}'))"
    )


def test_a_phone_sorts_lists_by_a_choice_in_place_of_their_heads(open_page, service):
    for project, count in (("few", 1), ("many", 3), ("some", 2)):
        for _ in range(count):
            service.request("POST", "/jobs", json=make_job_body(project=project, command="true"))
    browser = open_page("/ui/projects", (390, 844))
    names = "[...document.querySelectorAll('tbody .name a')].map(one => one.innerText)"
    names += ".filter(name => ['few', 'many', 'some'].includes(name))"
    browser.wait_for("document.querySelector('.sort-by select')?.checkVisibility()")
    for order, expected in (("Jobs ↓", ["many", "some", "few"]), ("Project ↑", ["few", "many", "some"])):
        browser.evaluate(f"""(choice => {{
            choice.value = [...choice.options].find(one => one.text === {order!r}).value;
            choice.dispatchEvent(new Event('change'));
        }})(document.querySelector('.sort-by select'))""")
        browser.wait_for(f"{names}.join() === '{','.join(expected)}'")
    browser = open_page("/ui/projects", (1440, 900))
    browser.click("#projects-table th:nth-child(2) button")
    browser.wait_for(f"{names}.join() === 'few,some,many'")
    assert not browser.evaluate("document.querySelector('.sort-by').checkVisibility()")


def test_a_phone_sorts_a_list_over_all_its_pages(open_page, service):
    for at in range(51):
        body = make_job_body(cron="0 3 * * *", name=f"a-{at:02}")
        service.request("POST", "/schedules", json=body)
    browser = open_page("/ui/schedules", (390, 844))
    first, order = "document.querySelector('tbody .name a').innerText", "document.querySelector('.sort-by select')"
    browser.wait_for(f"{order}?.checkVisibility()")
    browser.evaluate(f"{order}.value = '?sort=name', {order}.dispatchEvent(new Event('change'))")
    browser.wait_for(f"{first} === 'a-00' && {order}?.selectedOptions[0].text === 'Schedule ↑'")
    browser.click("[rel=next]")
    browser.wait_for(f"{first} === 'a-50'")


def test_the_names_of_a_comparison_and_a_schedule_stay_whole_beside_their_actions(open_page, service):
    spec = {"machineType": "CPU,V100", "command": "true", "name": "a name of some length"}
    compared = service.request("POST", "/comparisons", files=make_form(spec, make_zip({"a": b""}))).json()["id"]
    body = make_job_body(cron="0 3 * * *", name="a name of some length")
    schedule = service.request("POST", "/schedules", json=body).json()["id"]
    for path, action in ((f"/ui/comparisons/{compared}", "#runs"), (f"/ui/schedules/{schedule}", "#trigger")):
        browser = open_page(path, (390, 844))
        assert is_whole(browser, "h1")
        browser.click(".more")
        browser.wait_for(f"document.querySelector('{action}').checkVisibility()")


@pytest.mark.parametrize("size", [(768, 1024), (1024, 768), (1440, 900)], ids=["768", "1024", "1440"])
def test_a_running_job_says_its_duration_cost_and_owner_at_the_top(open_page, service, size):
    job = service.submit("sleep 600", name="sleeps")
    browser = open_page(f"/ui/jobs/{job}", size)
    browser.wait_for("document.querySelector('.state .badge').innerText === 'Running'")
    line = "document.querySelector('.job-page .under')"
    browser.wait_for(f"{line}.innerText.includes('$')")
    shown = browser.evaluate(f"""(line => {{
        const cut = line.getBoundingClientRect().right;
        const range = document.createRange();
        const owner = [...line.childNodes].find(one => one.textContent.includes(' · by '));
        range.selectNode(owner);
        return [line.clientWidth > 0, range.getBoundingClientRect().right <= cut + 1];
    }})({line})""")
    service.request("POST", f"/jobs/{job}/stop")
    assert shown == [True, True]


def test_a_phone_shows_the_name_and_the_states_of_a_set_of_jobs(open_page, service):
    job = service.submit("true", project="a-project")
    service.wait_ended(job)
    browser = open_page("/ui/jobs?q=project:a-project&charts=1", (390, 844))
    assert is_whole(browser, "h1")
    cut = browser.evaluate("""[...document.querySelectorAll(".heading .chip")].map((chip) => {
        const [inner, outer] = [chip, chip.parentElement].map((one) => one.getBoundingClientRect());
        return inner.left < outer.left || inner.right > outer.right;
    })""")
    assert cut == [False, False], "all jobs, and those that succeeded"
