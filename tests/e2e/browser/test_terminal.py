"""The terminal of a running job in a real browser: what is typed, seen, resized and ended."""

import json

import pytest
from support.browser import Browser
from support.deployment import wait_until

STATE = "document.querySelector('[data-terminal-state]').textContent"
ROWS = "document.querySelectorAll('.xterm-rows > div')"
SEEN = f"[...{ROWS}].map(row => row.textContent.trimEnd()).join('\\n')"
CONNECTED = f"{STATE}.startsWith('Connected') && document.activeElement.matches('.xterm-helper-textarea')"


@pytest.fixture
def job(service):
    job_id = service.submit("until [ -e end ]; do sleep 0.05; done", name="entered")
    wait_until(lambda: service.job(job_id)["state"] == "Running", "the job to run")
    yield job_id
    service.request("POST", f"/jobs/{job_id}/stop")


@pytest.fixture
def browser(service, chromium):
    browser = Browser(chromium)
    browser.hurry()
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    yield browser
    assert browser.messages == []
    browser.close()


def enter(browser, service, job_id):
    browser.open(f"{service.cli_json['url']}/ui/jobs/{job_id}")
    browser.click("#terminal")
    browser.wait_for(CONNECTED)


def type_line(browser, line):
    for key in line:
        browser("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        browser("Input.dispatchKeyEvent", type="keyUp", key=key)
    browser("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r", windowsVirtualKeyCode=13)
    browser("Input.dispatchKeyEvent", type="keyUp", key="Enter", windowsVirtualKeyCode=13)


def test_a_shell_answers_knows_the_size_of_the_window_and_is_opened_again(service, browser, job):
    enter(browser, service, job)
    type_line(browser, "echo $((6*7))")
    browser.wait_for(f"/^42$/m.test({SEEN})")
    sizes = set()
    for width, height in ((1280, 900), (800, 600)):
        browser("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        browser.wait_for(f"document.querySelector('.xterm-screen').getBoundingClientRect().right <= {width}")
        type_line(browser, "clear; stty size")
        browser.wait_for(f"{SEEN}.match(/^(\\d+) \\d+$/m)?.[1] === String({ROWS}.length)")
        sizes.add(browser.evaluate(f"{SEEN}.match(/^\\d+ \\d+$/m)[0]"))
    assert len({size.split()[0] for size in sizes}) == len({size.split()[1] for size in sizes}) == 2, sizes
    type_line(browser, "exit 3")
    browser.wait_for(f"{STATE} === 'The shell ended with exit code 3.'")
    browser.click("[data-terminal-again]")
    browser.wait_for(CONNECTED)
    type_line(browser, "echo again$((1+1))")
    browser.wait_for(f"/^again2$/m.test({SEEN})")
    assert "42" not in browser.evaluate(SEEN)


@pytest.mark.parametrize("end", ["by itself", "by a stop"])
def test_the_end_of_the_job_is_told(service, browser, job, end):
    enter(browser, service, job)
    type_line(browser, "echo up$((0))")
    browser.wait_for(f"/^up0$/m.test({SEEN})")
    if end == "by itself":
        type_line(browser, "touch end")
        browser.wait_for(f"{STATE} === 'The job has ended.'")
    else:
        service.request("POST", f"/jobs/{job}/stop")
        browser.wait_for(f"{STATE} === 'The job is being stopped.'")
    browser.wait_for("/Succeeded|Cancelled/.test(document.querySelector('.state .badge').innerText)")
    browser.wait_for("!document.querySelector('[data-terminal-again]').checkVisibility()")
    assert "up0" in browser.evaluate(SEEN)
    browser.open(f"{service.cli_json['url']}/ui/jobs/{job}/terminal")
    assert "is not running" in browser.text("#no-terminal")


def test_nobody_else_has_a_terminal_in_it(service, chromium, job):
    other = Browser(chromium)
    other.sign_in(service.cli_json["url"], service.request("POST", "/keys", json={"name": "other"}).json()["apiKey"])
    other.open(f"{service.cli_json['url']}/ui/jobs/{job}")
    assert other.evaluate("document.getElementById('terminal')") is None
    other.open(f"{service.cli_json['url']}/ui/jobs/{job}/terminal")
    assert other.text("#no-terminal") == "Only the owner of the job and administrators can enter it."
    assert other.evaluate("document.querySelector('[data-terminal]')") is None
    address = json.dumps(f"/jobs/{job}/terminal")
    events = "['open', 'error'].forEach(name => socket.addEventListener(name, () => done(name)))"
    opens = f"new Promise(done => {{ const socket = new WebSocket({address}); {events} }})"
    assert other.evaluate(opens) == "error"
    other.close()
