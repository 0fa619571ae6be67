"""The dashboard in a real browser: signing in, a log that grows, charts, the end of a job, narrow screens."""

import json

import pytest
from support.browser import Browser
from support.deployment import Deployment
from support.live_folder import find

TRAIN = """
exec python3 - <<'END'
import json, os, sys, time
def wait(name):
    while not os.path.exists(os.path.join(os.environ["GRADIENT_WORKSPACE_DIR"], name)):
        time.sleep(0.01)
metrics = open(os.environ["GRADIENT_METRICS_FILE"], "a")
for step in range(10):
    print(json.dumps({"step": step, "time": time.time(), "loss": 1 / (step + 1)}), file=metrics, flush=True)
open(os.path.join(os.environ["GRADIENT_ARTIFACTS_DIR"], "report.html"), "w").write("<script>alert(1)</script>")
print("\\x1b[32mgreen\\x1b[0m <b>not bold</b><script>window.broken = 1</script>", flush=True)
sys.stdout.write("\\rstep 1"); sys.stdout.flush()
wait("go-1")
sys.stdout.write("\\rstep 2\\nlast line\\n"); sys.stdout.flush()
wait("go-2")
END
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    deployment = Deployment(tmp_path_factory.mktemp("dashboard") / "home")
    deployment.start_up(GRADIENT_WORKER__SYNC_SECONDS="0.2")
    yield deployment
    deployment.stop()


@pytest.fixture(params=[(1280, 900), pytest.param((390, 844), marks=pytest.mark.slow)], ids=["wide", "narrow"])
def browser(request, chromium):
    browser = Browser(chromium, size=request.param)
    browser.hurry()
    yield browser
    browser.close()


def go(service, job_id, name):
    """Let the job go on."""
    workspace = next(find(service.home / "attempts" / f"{job_id}-1", "workspace"))
    (workspace / name).touch()


def fits(browser):
    return browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_job_is_seen_from_its_first_line_to_its_end(service, browser):
    job_id = service.submit(TRAIN, name="watched")
    browser.open(f"{service.cli_json['url']}/ui/jobs/{job_id}/log")
    assert "Sign in" in browser.text("h1")
    browser.fill("#key", service.cli_json["apiKey"])
    browser.click("form.sign-in button")
    browser.wait_for("location.pathname.startsWith('/ui/jobs/j')")
    log = "document.getElementById('log').innerText"
    browser.wait_for(f"{log}.includes('step 1')")
    assert "green <b>not bold</b><script>" in browser.text("#log")
    assert browser.evaluate("document.querySelector('#log .fg2').textContent") == "green"
    assert browser.text("#log .partial") == "step 1"
    browser.wait_for("document.querySelector('.state .badge').innerText === 'Running'")
    assert fits(browser)
    go(service, job_id, "go-1")
    browser.wait_for(f"{log}.includes('last line')")
    assert browser.evaluate("document.querySelectorAll('#log .partial').length") == 0
    assert browser.evaluate("[...document.querySelectorAll('#log .row')].map(row => row.dataset.line)") == [
        "1",
        "2",
        "3",
    ]
    go(service, job_id, "go-2")
    browser.wait_for("document.querySelector('.state .badge').innerText === 'Succeeded'")
    assert "exit code" not in browser.text("main"), "a success needs no words"
    assert browser.evaluate("document.querySelectorAll('#stop').length") == 0
    browser.click("a[href$='/ui/jobs/" + job_id + "']")
    browser.wait_for("document.querySelector('#metrics polyline')")
    assert browser.text(".log.last").endswith("last line")
    assert browser.text(".log.last .fg2") == "green"
    assert "loss" in browser.text("#metrics")
    assert fits(browser)
    assert "1 file" in browser.text("#browse")
    browser.click("#browse")
    browser.wait_for("document.querySelector('h2')?.innerText.startsWith('Artifacts')")
    browser.wait_for("document.readyState === 'complete'")
    assert "report.html" in browser.text("table")
    assert fits(browser)
    assert browser.evaluate("window.broken") is None
    assert browser.messages == [] or all("username fields" in message for message in browser.messages)


def click_action(browser, name):
    """Click an action of a job, which is in a sheet on a phone."""
    if browser.evaluate(f"!document.querySelector('{name}').checkVisibility()"):
        browser.click("[popovertarget=page-actions]")
    browser.click(name)


def test_the_list_changes_by_itself_and_buttons_work(service, browser):
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    job_id = service.submit("exec sleep 600", name="sleeper")
    browser.open(f"{service.cli_json['url']}/ui/jobs")
    assert fits(browser)
    badge = f"document.getElementById({json.dumps(job_id)}).closest('tr').querySelector('.badge').innerText"
    browser.wait_for(f"{badge} === 'Running'")
    browser.click(f"#{job_id}")
    browser.wait_for("document.getElementById('stop')")
    click_action(browser, "#stop-menu summary")
    browser.leave("#stop")
    browser.wait_for("document.querySelector('.state .badge')?.innerText === 'Cancelled'")
    browser.wait_for("document.querySelector('.badge.cancelled') && !document.getElementById('stop')")
    click_action(browser, "#delete summary")
    browser.leave("#delete-now")
    browser.wait_for(f"location.pathname === '/ui/jobs' && !document.getElementById({json.dumps(job_id)})")


def test_a_server_that_does_not_answer_is_announced(service, browser):
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    banner = "document.querySelector('#stale[role=status]').innerText"
    assert browser.evaluate(banner) == ""
    browser.evaluate("window.answers = window.fetch; window.fetch = () => Promise.reject(new TypeError('offline'))")
    browser.wait_for(f"{banner}.includes('does not answer')")
    assert browser.evaluate("getComputedStyle(document.getElementById('stale')).position") == "sticky"
    browser.evaluate("window.fetch = window.answers")
    browser.wait_for(f"{banner} === ''")


def test_a_list_without_live_jobs_shows_a_new_one(service, browser):
    service.wait_ended(service.submit("true", name="over", project="idle"))
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.open(f"{service.cli_json['url']}/ui/jobs?project=idle")
    job_id = service.submit("true", name="new", project="idle")
    browser.wait_for(f"document.getElementById({json.dumps(job_id)})")
    assert fits(browser)


def test_a_row_that_appears_between_press_and_release_takes_no_click(service, chromium):
    browser = Browser(chromium)
    pressed = service.submit("true", name="pressed", project="pressed")
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.open(f"{service.cli_json['url']}/ui/jobs?q=project:pressed")
    gate = "new Promise(open => { window.open = open; })"
    held = "window.waits = true; await gate; const answer = await ask(...of), text = await answer.text(); "
    held += "window.came = true; return new Response(text, answer);"
    browser.evaluate(f"const ask = fetch, gate = {gate}; window.fetch = async (...of) => {{ {held} }}; null")
    browser.wait_for("window.waits")
    for _ in range(3):
        service.submit("true", name="new", project="pressed")
    box = f"document.querySelector('#{pressed}').getBoundingClientRect()"
    x, y = browser.evaluate(f"(box => [box.left + 4, box.top + 4])({box})")
    mouse = {"x": x, "y": y, "button": "left", "clickCount": 1}
    browser("Input.dispatchMouseEvent", type="mousePressed", **mouse)
    browser.evaluate("window.open()")
    browser.wait_for("window.came")
    browser.evaluate("new Promise(seen => requestAnimationFrame(() => requestAnimationFrame(seen)))")
    browser("Input.dispatchMouseEvent", type="mouseReleased", **mouse)
    browser.wait_for(f"location.pathname === '/ui/jobs/{pressed}'")
    browser.close()


def choose(browser, selector, value):
    """Choose an option, and leave the field."""
    chosen = f"document.querySelector({json.dumps(selector)})"
    browser.evaluate(f"{chosen}.focus(); {chosen}.value = {json.dumps(value)}; {chosen}.blur()")


def test_what_is_chosen_of_artifacts_is_kept_while_new_ones_appear(service, browser):
    wait = "while [ ! -e {} ]; do sleep 0.05; done"
    write = "echo {0} > $GRADIENT_ARTIFACTS_DIR/{0}.txt"
    steps = [write.format("a"), wait.format("go-1"), write.format("b"), wait.format("go-2"), write.format("c")]
    job_id = service.submit("; ".join([*steps, wait.format("end")]), name="writes")
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.open(f"{service.cli_json['url']}/ui/jobs/{job_id}/artifacts")
    browser.wait_for("document.querySelector('input[value=\"a.txt\"]')")
    browser.click('input[value="a.txt"]')
    choose(browser, "[name=order]", "-size")
    browser.fill("[name=find]", "tx")
    go(service, job_id, "go-1")
    browser.wait_for("document.querySelector('input[value=\"b.txt\"]')")
    assert browser.evaluate("document.activeElement.name") == "find"
    browser.evaluate("document.activeElement.blur()")
    go(service, job_id, "go-2")
    browser.wait_for("document.querySelector('input[value=\"c.txt\"]')")
    ticked = "[...document.querySelectorAll('[name=path]')].filter(box => box.checked).map(box => box.value)"
    assert browser.evaluate(ticked) == ["a.txt"]
    entries = "['find', 'order'].map(name => document.querySelector(`[name=${name}]`).value)"
    assert browser.evaluate(entries) == ["tx", "-size"]
    go(service, job_id, "end")


HELD = "window.held === document.activeElement && window.held.isConnected"


def hold(browser, selector):
    """Focus an element, and select the text of the page's heading."""
    browser.wait_for(f"document.querySelector({json.dumps(selector)})")
    browser.evaluate(
        f"window.held = document.querySelector({json.dumps(selector)}), held.focus(), "
        "getSelection().selectAllChildren(document.querySelector('h1'))"
    )


HELD_ON_A_LIST = {
    "job": "#{}",
    "box": "[data-run={}] [name=ids]",
    "head": "th[data-key=duration] a",
    "state": ".heading .chip:not(.chosen)",
    "tag": "#bulk-tag",
}


@pytest.mark.parametrize("project", HELD_ON_A_LIST)
def test_a_list_that_changes_leaves_the_focus_where_it_is(service, chromium, project):
    browser = Browser(chromium, size=(1440, 900))
    browser.hurry()
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    until_end = "while [ ! -e $GRADIENT_WORKSPACE_DIR/end ]; do sleep 0.05; done"
    first = service.submit(until_end, project=project)
    browser.open(f"{service.cli_json['url']}/ui/projects/{project}")
    browser.wait_for("document.querySelector('.badge.running') && document.querySelector('[data-part=head] nav a + a')")
    browser.click(f"[data-run={first}] [name=ids]")
    browser.click(".columns-menu > summary")
    hold(browser, HELD_ON_A_LIST[project].format(first))
    second = service.submit(until_end, project=project)
    browser.wait_for(f"document.querySelector('tbody tr')?.dataset.run === '{second}'")
    browser.wait_for("document.querySelectorAll('.badge.running').length === 2")
    assert browser.evaluate(HELD), browser.evaluate("document.activeElement.outerHTML.slice(0, 200)")
    assert browser.evaluate("getSelection().toString()") == project
    assert browser.evaluate("document.querySelector('.columns-menu').open")
    assert browser.evaluate(f"document.querySelector('[data-run={first}] [name=ids]').checked")
    assert browser.evaluate(
        "[...document.querySelectorAll('th[aria-sort]')].every(head => head.lastChild.matches('.grip'))"
    )
    for job_id in (first, second):
        go(service, job_id, "end")
    browser.wait_for("!document.querySelector('.badge.running')")
    if project != "state":  # none is left that runs
        assert browser.evaluate(HELD), browser.evaluate("document.activeElement.outerHTML.slice(0, 200)")
    assert browser.messages == []
    browser.close()


def test_a_menu_opened_by_a_key_stays_and_stops_the_job(service, chromium):
    browser = Browser(chromium, size=(1366, 500))
    browser.hurry()
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    job_id = service.submit("exec sleep 600")
    browser.open(f"{service.cli_json['url']}/ui/jobs/{job_id}")
    browser.wait_for("document.querySelector('.badge.running')")
    browser("Input.dispatchKeyEvent", type="keyDown", key="s", text="s")
    browser.wait_for("document.activeElement.id === 'stop'")
    hold(browser, "#stop")
    line = browser.text("[data-part=line]")
    browser.wait_for(f"document.querySelector('[data-part=line]').innerText !== {json.dumps(line)}")
    assert browser.evaluate(HELD)
    assert browser.evaluate("document.getElementById('stop-menu').open")
    browser("Input.dispatchKeyEvent", type="keyDown", key="Enter", text="\r", windowsVirtualKeyCode=13)
    assert service.wait_ended(job_id)["state"] == "Cancelled"
    browser.close()


def test_a_new_run_appears_in_the_table_and_the_charts_of_a_workspace(service, browser):
    report = "for step in 1 2 3; do echo '{\"step\": '$step', \"loss\": 0.5}' >> $GRADIENT_METRICS_FILE; done"
    until_end = "while [ ! -e $GRADIENT_WORKSPACE_DIR/end ]; do sleep 0.05; done"
    project = f"ranked-{browser.evaluate('innerWidth')}"
    first = service.submit(f"{report}; {until_end}", project=project)
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.open(f"{service.cli_json['url']}/ui/projects/{project}")
    drawn = "document.querySelector('.run-curves .chart')?.chart.series.map(one => one.id).join()"
    browser.wait_for(f"{drawn} === '{first}'")
    other = service.submit(report, project=project)
    browser.wait_for(f"{drawn} === '{other},{first}' || {drawn} === '{first},{other}'")
    assert browser.evaluate(f"document.querySelector('[data-run={first}]').dataset.run") == first
    browser.click(f"[data-run={first}] .eye")
    browser.wait_for(f"{drawn} === '{other}'")
    go(service, first, "end")
    browser.wait_for("document.querySelector('[data-part=head]').innerText.includes('Succeeded 2')")
    assert browser.evaluate(drawn) == other, "what is hidden stays so"
    assert fits(browser)


def test_times_are_local_name_their_zone_and_become_dates_by_a_switch(service, browser):
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser("Emulation.setTimezoneOverride", timezoneId="America/Los_Angeles")
    browser.open(f"{service.cli_json['url']}/ui/jobs")
    old = '<time id="old" datetime="2026-07-01T00:00:00Z">2026</time><time id="new">now</time>'
    browser.evaluate(f"document.querySelector('h1').insertAdjacentHTML('afterend', {json.dumps(old)})")
    browser.evaluate("document.getElementById('new').dateTime = new Date().toISOString()")
    browser.click("#account summary")
    for _ in range(2):
        browser.click("[data-switch=times]")
        browser.wait_for("/^\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d P[DS]T$/.test(document.getElementById('new').innerText)")
        assert browser.text("#old") == "2026-06-30 17:00 PDT"
        assert browser.evaluate("document.getElementById('old').title") == "2026-06-30 17:00:00 PDT"
        browser.click("[data-switch=times]")
        browser.wait_for("/now|ago/.test(document.getElementById('new').innerText)")


def test_a_page_tells_of_the_end_of_its_job_while_it_is_hidden(service, browser):
    job_id = service.submit("while [ ! -e $GRADIENT_WORKSPACE_DIR/end ]; do sleep 0.05; done", name="told")
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.open(f"{service.cli_json['url']}/ui/jobs/{job_id}")
    granted = "static requestPermission = async () => 'granted'; constructor(title) { window.told = title; }"
    browser.evaluate(f"window.Notification = class {{ {granted} }}, null")
    browser.wait_for("!document.getElementById('tell').hidden")
    click_action(browser, "#tell")
    browser.evaluate("Object.defineProperty(document, 'hidden', { value: true }), null")
    go(service, job_id, "end")
    browser.wait_for("window.told === 'Succeeded: told · Gradient Jobs'")


def test_an_estimate_long_past_is_not_soon(service, browser):
    browser.open(f"{service.cli_json['url']}/ui/login")
    late = '<time id="late" data-coming datetime="2020-01-01T00:00:00Z">2020</time>'
    browser.evaluate(f"document.querySelector('main').insertAdjacentHTML('beforeend', {json.dumps(late)})")
    browser.wait_for("document.getElementById('late').innerText === 'later than estimated'")
