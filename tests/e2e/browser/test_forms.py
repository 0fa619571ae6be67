"""The forms of the dashboard in a real browser: a job from the form, its clone, and an API key."""

import json

import pytest
from support.browser import Browser

LOADED = "document.readyState === 'complete'"
VISIBLE = "(selector => [...document.querySelectorAll(selector)].filter(element => element.offsetParent))"


@pytest.fixture(
    params=[((1440, 900), "light"), pytest.param(((390, 844), "dark"), marks=pytest.mark.slow)],
    ids=["wide-light", "narrow-dark"],
)
def browser(request, chromium, service):
    size, theme = request.param
    browser = Browser(chromium, size=size)
    browser("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.messages.clear()
    yield browser
    found = fits(browser), browser.messages
    browser.close()
    assert found == (True, [])


def fits(browser):
    return browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def choose(browser, selector, value):
    browser.evaluate(
        f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(value)};"
        " e.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def attach(browser, selector, *paths):
    root = browser("DOM.getDocument")["root"]["nodeId"]
    node = browser("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
    browser("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])


def test_a_job_with_uploaded_files_succeeds_after_a_mistake(browser, tmp_path):
    main = tmp_path / "main.py"
    main.write_text("print('from the form')\n", encoding="utf-8")
    browser.click("a[href='/ui/jobs/new']")
    browser.wait_for(f"location.pathname === '/ui/jobs/new' && {LOADED}")
    assert browser.evaluate("[...document.querySelectorAll('[data-source]')].every(part => part.hidden)")
    assert browser.evaluate("document.activeElement.id") == "command"
    browser.fill("[data-filter]", "$0.473")
    assert browser.evaluate(f"{VISIBLE}('#machine-types tbody tr').map(row => row.querySelector('input').value)") == [
        "CPU"
    ]
    enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
    browser("Input.dispatchKeyEvent", type="keyDown", **enter)
    assert browser.evaluate("document.querySelector('[name=machineType]:checked').value") == "CPU"
    browser.fill("#command", "python3 main.py")
    browser.click("#other-options summary")
    browser.fill("#timeLimit", "soon")
    # Checked while it is filled in: nothing was pressed.
    browser.wait_for("document.querySelector('#timeLimit-error')?.innerText.includes('not a duration')")
    browser.wait_for("document.querySelector('#command-line')?.innerText.includes(\"--command 'python3 main.py'\")")
    browser.click("input[name=source][value=files]")
    assert not browser.evaluate("document.querySelector('[data-source=files]').hidden")
    attach(browser, "#files", main)
    for place in ("0", "document.body.scrollHeight / 2", "document.body.scrollHeight"):
        browser.evaluate(f"scrollTo({{top: {place}, behavior: 'instant'}})")
        box = "document.querySelector('#submit').getBoundingClientRect()"
        assert browser.evaluate(f"(b => b.top >= 0 && b.bottom <= innerHeight)({box})"), "Submit is always in reach"
    browser.click("#submit")
    browser.wait_for(f"document.querySelector('#uploaded') && {LOADED}")
    assert "not a duration" in browser.text("#timeLimit-error")
    assert browser.evaluate("document.querySelector('#command').value") == "python3 main.py"
    browser.messages[:] = [one for one in browser.messages if "422" not in one]
    browser.evaluate("document.querySelector('#timeLimit').value = ''")
    browser.fill("#timeLimit", "5m")
    browser.wait_for("!document.querySelector('#timeLimit-error')")
    assert "next" in browser.text("#plan")
    browser.click("#submit")
    browser.wait_for("/^\\/ui\\/jobs\\/j\\w+$/.test(location.pathname)")
    browser.wait_for("document.querySelector('.state .badge')?.innerText === 'Succeeded'")
    browser.wait_for("document.querySelector('.log.last')?.innerText.includes('from the form')")


def test_a_job_becomes_a_sweep_which_drops_its_recorded_parameter(service, browser):
    body = {"machineType": "CPU", "command": "true --lr 0.003", "params": {"lr": 0.003}, "timeLimit": 60}
    job_id = service.request("POST", "/jobs", json=body).json()["id"]
    browser.open(f"{service.cli_json['url']}/ui/jobs/new?from={job_id}")
    browser.wait_for(LOADED)
    assert not browser.evaluate(f"{VISIBLE}('#space, #cron, #repeats, [name=machineTypes]')")
    browser.click("#kind-sweep")
    assert browser.evaluate(f"{VISIBLE}('#space, #cron, #repeats').map(field => field.id)") == ["space"]
    assert browser.text("h1") == "New sweep"
    browser.fill("#space", "lr=0.1,0.2")
    browser.fill("#metric", "loss:min")
    browser.fill("#trials", "2")
    browser.wait_for("document.querySelector('.field .conflict')?.innerText.includes('the sweep tries values of it')")
    browser.wait_for("document.querySelector('#command-line').innerText.startsWith('gradient-cli sweeps create')")
    at_the_button = (
        "document.querySelector('[name=drop]').scrollIntoView({behavior: 'instant', block: 'center'}), scrollY"
    )
    top = browser.evaluate(at_the_button)
    browser.click("[name=drop]")
    browser.wait_for(f"!document.querySelector('.conflict') && document.querySelector('#plan') && {LOADED}")
    assert browser.evaluate("document.querySelector('#params').value") == ""
    assert abs(browser.evaluate("scrollY") - top) < 200, "the page stays where it was read"
    browser.click("#submit")
    browser.wait_for("new URLSearchParams(location.search).get('q')?.startsWith('sweep:')")
    sweep_id = browser.evaluate("new URLSearchParams(location.search).get('q')").removeprefix("sweep:")
    browser.wait_for(f"document.querySelectorAll('[data-run]').length === 2 && {LOADED}")
    tried = {trial["params"]["lr"] for trial in service.request("GET", f"/sweeps/{sweep_id}").json()["trials"]}
    assert tried == {0.1, 0.2}


def test_a_key_is_made_used_and_revoked(service, browser):
    browser.click("#account > summary")
    browser.click("#account a[href='/ui/settings']")
    browser.wait_for(f"location.pathname === '/ui/settings/keys' && {LOADED}")
    browser.fill("#name", "from the browser")
    browser.fill("#own-key", service.cli_json["apiKey"])
    browser.click("#create-key")
    browser.wait_for("document.querySelector('#created-key')")
    secret = browser.text("#created-key")
    assert service.request("GET", "/jobs", headers={"x-api-key": secret}).status_code == 200
    key_id = secret.split("_")[1]
    row = f"#key-{key_id}"
    assert fits(browser)
    browser.click(f"{row} summary")
    browser.fill(f"#own-key-{key_id}", service.cli_json["apiKey"])
    browser.click(f"{row} button.danger")
    browser.wait_for(
        f"location.pathname === '/ui/settings/keys' && document.querySelector('{row}').innerText.includes('revoked')"
    )
    assert service.request("GET", "/jobs", headers={"x-api-key": secret}).status_code == 401
