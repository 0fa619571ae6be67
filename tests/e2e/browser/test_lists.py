"""The list of jobs, the first page, the machines and the palette in a real browser."""

import json
import time

import pytest
from support.browser import Browser
from support.deployment import Deployment, wait_until

SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
THEMES = ("light", "dark")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    deployment = Deployment(tmp_path_factory.mktemp("lists") / "home")
    deployment.start_up(GRADIENT_WORKER__SYNC_SECONDS="0.2", GRADIENT_WORKER__SLOTS="8")
    yield deployment
    deployment.stop()


@pytest.fixture(scope="module")
def jobs(service):
    """Jobs by name: two that ended with an accuracy, one that failed, two that run."""
    metric = """echo '{{"step": 1, "accuracy": {0}}}' >> $GRADIENT_METRICS_FILE; """
    made = {
        "good": service.submit(metric.format(0.95), name="good", tags=["sweep"], project="vision"),
        "poor": service.submit(metric.format(0.3), name="poor", tags=["sweep"], project="vision"),
        "broken": service.submit("echo 'ValueError: no such column' >&2; exit 3", name="broken"),
    }
    for job_id in made.values():
        service.wait_ended(job_id)
    for name in ("first", "second"):
        made[name] = service.submit(metric.format(0.5) + "exec sleep 600", name=name, tags=["live"])
    return made


@pytest.fixture(params=["wide", pytest.param("narrow", marks=pytest.mark.slow)])
def browser(request, chromium, service):
    browser = Browser(chromium, size=SIZES[request.param])
    browser.hurry()
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    yield browser
    messages = browser.messages
    browser.close()
    assert messages == []


def names(browser):
    return browser.evaluate("[...document.querySelectorAll('tbody .name > a:first-child')].map(a => a.textContent)")


def press(browser, key, **parameters):
    for kind in ("keyDown", "keyUp"):
        text = {"text": key} if kind == "keyDown" and len(key) == 1 and not parameters else {}
        browser("Input.dispatchKeyEvent", type=kind, key=key, **text, **parameters)


def fits(browser):
    return browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def search(browser, query):
    browser.evaluate("document.getElementById('q').value = ''")
    browser.fill("#q", query)
    browser.evaluate("document.querySelector('.query').requestSubmit()")
    loaded = f"new URLSearchParams(location.search).get('q') === {json.dumps(query)}"
    browser.wait_for(f"{loaded} && document.readyState === 'complete'")


def test_jobs_are_found_sorted_and_shown_with_a_metric(service, browser, jobs):
    search(browser, "tag:sweep accuracy>0.2")
    assert sorted(names(browser)) == ["good", "poor"]
    assert browser.text("[data-count]") == "2 jobs"
    browser.open(f"{service.cli_json['url']}/ui/jobs?q=tag:sweep&cols=accuracy&cols=cost&sort=metric.accuracy")
    assert names(browser) == ["poor", "good"]
    browser.evaluate("[...document.querySelectorAll('thead a')].find(a => a.textContent === 'accuracy').click()")
    browser.wait_for("document.querySelector('[aria-sort=descending]')?.dataset.key === 'accuracy'")
    assert names(browser) == ["good", "poor"]
    assert "sort=-metric.accuracy" in browser.evaluate("location.search")
    assert browser.text("td.state + td") == "0.95"
    assert fits(browser)
    browser.open(f"{service.cli_json['url']}/ui/jobs")
    assert len(names(browser)) == len(jobs)
    browser.messages.clear()
    search(browser, "stat:failed")
    assert "'stat' is not a field" in browser.text("#problem")
    assert "character 1" in browser.text("#problem")
    browser.messages.clear()  # the browser reports the status 400 of the page


@pytest.mark.usefixtures("jobs")
def test_a_query_is_completed_and_kept_as_a_view(browser):
    browser.fill("#q", "tag:sw")
    browser.wait_for("document.querySelector('.completions li')?.textContent === 'tag:sweep'")
    top = "{ const box = document.querySelector('.completions li').getBoundingClientRect();"
    top += "document.elementFromPoint(box.left + 20, box.top + 5).textContent }"
    assert browser.evaluate(top) == "tag:sweep", "the table does not hide it"
    press(browser, "ArrowDown")
    press(browser, "Enter")
    browser.wait_for("document.querySelector('#q').value === 'tag:sweep '")
    browser("Input.insertText", text="accu")
    browser.wait_for("document.querySelector('.completions li')?.textContent === 'accuracy<'")
    press(browser, "Escape")
    assert browser.evaluate("document.querySelector('.completions').hidden")
    browser("Input.insertText", text="racy>0.2")
    browser.evaluate("document.querySelector('.query').requestSubmit()")
    browser.wait_for("location.search.includes('accuracy') && document.readyState === 'complete'")
    assert sorted(names(browser)) == ["good", "poor"]
    browser.click("#views summary")
    browser.fill("#view-name", "accurate")
    browser.leave(".views button:not(.quiet)")
    assert browser.evaluate("document.querySelector('.views a').textContent") == "accurate"
    address = browser.evaluate("document.querySelector('.views a').href")
    browser.open(address)
    assert sorted(names(browser)) == ["good", "poor"]
    assert fits(browser)


def test_the_checkpoint_of_the_best_run_is_few_clicks_away(service, browser):
    train = """echo '{{"step": 1, "val_loss": {0}}}' >>$GRADIENT_METRICS_FILE
        echo {0} >$GRADIENT_ARTIFACTS_DIR/checkpoint"""
    night = f"night-{time.monotonic_ns()}"
    runs = {0.5: (0.1, "too fast"), 0.001: (0.7, "slow"), 0.005: (0.2, "best"), 0.002: (0.4, "fair")}
    for lr, (loss, name) in runs.items():
        service.wait_ended(service.submit(train.format(loss), name=name, params={"lr": lr}, tags=[night]))
    search(browser, f"lr<0.01 created<1d tag:{night}")
    assert sorted(names(browser)) == ["best", "fair", "slow"]
    browser.click("[data-all]")
    browser.click("button[value=compare]")
    browser.wait_for("location.search.includes('charts=1') && document.readyState === 'complete'")
    browser.evaluate("[...document.querySelectorAll('thead a')].find(one => one.innerText === 'val_loss').click()")
    browser.wait_for("document.querySelector('tbody tr .name a').textContent === 'best'")
    assert browser.text("td.best").endswith("0.2")
    browser.click("tbody tr .name a")
    browser.wait_for("document.querySelector('h1').textContent === 'best' && document.readyState === 'complete'")
    browser.evaluate("[...document.querySelectorAll('nav a')].find(one => one.textContent === 'Artifacts').click()")
    browser.wait_for("document.querySelector('main')?.innerText.includes('checkpoint')")


def test_selected_jobs_are_tagged_and_stopped(service, browser, jobs):
    tag = f"stopped-at-{browser.evaluate('innerWidth')}"
    ids = [service.submit("exec sleep 600", name=name, tags=[tag], machineType="GPU+") for name in "ab"]
    search(browser, f"tag:{tag} -state:cancelled")
    assert browser.evaluate("getComputedStyle(document.querySelector('.bulk')).display") == "none"
    press(browser, "j")
    press(browser, "x")
    assert browser.text("[data-selected]") == "1 selected"
    boxes = "document.querySelectorAll('input[name=ids]')"
    browser.evaluate(f"{boxes}[1].dispatchEvent(new MouseEvent('click', {{bubbles: true, shiftKey: true}}))")
    browser.evaluate("document.querySelector('#bulk-tag').focus()")
    browser.wait_for("document.querySelector('[data-selected]').textContent === '2 selected'")
    browser.fill("#bulk-tag", "marked")
    browser.leave("button[value=tag]")
    assert browser.text(".did") == "Tagged: 2 jobs."
    assert {tuple(service.job(job_id)["tags"]) for job_id in ids} == {(tag, "marked")}
    browser.click("[data-all]")
    browser.click("#bulk-stop summary")
    browser.wait_for("document.querySelector('button[value=stop]').innerText === 'Stop the 2 selected'")
    browser.leave("button[value=stop]")
    assert browser.text(".did") == "Asked to stop: 2 jobs."
    for job_id in ids:
        assert service.wait_ended(job_id)["state"] == "Cancelled"
    search(browser, f"tag:{tag}")
    browser.click("[data-all]")
    assert browser.evaluate("document.querySelector('button[value=stop]').disabled"), "they have ended"
    browser.click("#bulk-delete summary")
    browser.wait_for("document.querySelector('#bulk-delete button').innerText === 'Delete the 2 selected'")
    assert jobs


@pytest.mark.usefixtures("jobs")
def test_rows_that_are_ticked_before_the_scripts_run_are_selected(service, browser):
    tick = "const box = document.querySelector('[data-all]'); if (box) { observer.disconnect(); box.click(); }"
    observe = f"const observer = new MutationObserver(() => {{ {tick} }}); "
    observe += "observer.observe(document, {childList: true, subtree: true});"
    browser("Page.addScriptToEvaluateOnNewDocument", source=observe)
    browser.open(f"{service.cli_json['url']}/ui/jobs?q=tag:sweep")
    assert browser.text("[data-selected]") == "2 selected"


def test_a_job_that_does_not_end_is_seen_stopping_and_its_time_counts_down(service, browser):
    job_id = service.submit('trap "" TERM; echo up; while true; do sleep 1; done', name="deaf", machineType="GPU+")
    wait_until(lambda: b"up" in service.raw_log(job_id), "the trap")
    search(browser, "deaf")
    browser.click("[data-all]")
    browser.click("#bulk-stop summary")
    browser.click("button[value=stop]")
    browser.wait_for("document.querySelector('tbody .badge')?.innerText === 'Stopping'")
    browser.open(f"{service.cli_json['url']}/ui")
    browser.wait_for(f"document.getElementById('{job_id}').closest('tr').innerText.includes('Stopping')")
    browser.click(f"[id='{job_id}']")
    left = "Number(document.querySelector('#stopping time')?.innerText.match(/^in (\\d+) s$/)?.[1] ?? NaN)"
    browser.wait_for(f"{left} < 60")
    first = browser.evaluate(left)
    browser.wait_for(f"{left} < {first}")
    service.request("POST", f"/jobs/{job_id}/stop?now=true")
    assert service.wait_ended(job_id)["message"].startswith("Ended by a stop request of ")
    browser.wait_for("document.querySelector('.state').innerText === 'Cancelled'")


def test_states_differ_in_the_shape_of_their_mark(service, browser, jobs):
    stopped = service.submit("exec sleep 600")
    service.request("POST", f"/jobs/{stopped}/stop")
    service.wait_ended(stopped)
    browser.open(f"{service.cli_json['url']}/ui/jobs")
    look = "{clipPath, borderRadius, backgroundColor} = getComputedStyle(one, '::before')"
    hollow = "backgroundColor === 'rgba(0, 0, 0, 0)'"
    shape = f"[one.innerText, (({look}) => [clipPath, borderRadius, {hollow}].join())()]"
    shapes = dict(browser.evaluate(f"[...document.querySelectorAll('.badge')].map(one => {shape})"))
    assert {"Running", "Succeeded", "Failed", "Cancelled"} <= shapes.keys()
    assert len(set(shapes.values())) == len(shapes), shapes
    assert jobs


def test_a_phone_says_why_a_job_failed(service, chromium, jobs):
    phone = Browser(chromium, size=SIZES["narrow"])
    phone.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    search(phone, "broken")
    reason, row = (f"document.querySelector('tbody {part}').getBoundingClientRect()" for part in (".state .why", "tr"))
    assert "ValueError: no such column" in phone.text("tbody .state .why")
    assert phone.evaluate(f"{reason}.width > 150 && {reason}.bottom <= {row}.bottom && {reason}.right <= {row}.right")
    for other in (".name > a", ".badge"):
        above = f"document.querySelector('tbody {other}').getBoundingClientRect().bottom"
        assert phone.evaluate(f"{above} <= {reason}.top + 2"), other
    phone.close()
    assert jobs


def test_the_highest_values_of_one_page_are_shown_and_not_sorted(service, chromium):
    """Job 20 on the second page has a last value of 20 and the lowest of all highest values."""
    lines = """printf '{"loss":%d}\\n{"loss":%d}\\n' $((100-GRADIENT_ARRAY_VALUE)) $GRADIENT_ARRAY_VALUE"""
    body = {"machineType": "CPU", "command": f"{lines} >> $GRADIENT_METRICS_FILE", "array": "0-20"}
    array = service.request("POST", "/jobs", json=body).json()["arrayId"]
    for job in service.request("GET", "/jobs", params={"array": array}).json()["jobs"]:
        service.wait_ended(job["id"])
    phone = Browser(chromium, size=SIZES["narrow"])
    phone.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    phone.open(f"{service.cli_json['url']}/ui/jobs?q=array:{array}&charts=1&sort=metric.loss")
    head = "document.querySelector('th[data-metric=loss]')"
    cells = f"[...document.querySelectorAll('tbody tr[data-run]')].map(row => row.cells[{head}.cellIndex])"
    expected = (("last", "ascending", range(20)), ("max", "none", range(100, 80, -1)), ("last", "ascending", range(20)))
    for kind, order, values in expected:
        choice = "document.querySelector('[data-metrics] [name=value]')"
        phone.evaluate(f"{choice}.value = '{kind}', {choice}.dispatchEvent(new Event('input', {{ bubbles: true }}))")
        shown = ",".join(map(str, values))
        phone.wait_for(f"{cells}.map(cell => cell.innerText).join() === '{shown}' && {head}.ariaSort === '{order}'")
    phone.close()


def test_a_worker_is_drained_and_resumed(service, browser):
    browser.open(f"{service.cli_json['url']}/ui/machines")
    browser.click("#change-1 summary")
    browser.fill("#own-key-1", service.cli_json["apiKey"])
    browser.leave("#drain-1")
    waiting = service.submit("true", name="waits-for-it")
    browser.wait_for("document.querySelector('#queue-title ~ .scroll table')?.innerText.includes('waits-for-it')")
    assert fits(browser)
    browser.click("#change-1 summary")
    browser.fill("#own-key-1", service.cli_json["apiKey"])
    browser.leave("#resume-1")
    browser.wait_for("document.getElementById('drain-1')")
    assert service.wait_ended(waiting)["state"] == "Stopped"


def test_the_palette_leads_to_a_job_by_its_name(browser, jobs):
    press(browser, "k", modifiers=2, code="KeyK", windowsVirtualKeyCode=75)
    browser.wait_for("document.querySelector('.palette[open] li')")
    browser("Input.insertText", text="brok")
    browser.wait_for("document.querySelector('.palette li')?.textContent.startsWith('broken')")
    press(browser, "Enter", windowsVirtualKeyCode=13)
    browser.wait_for(f"location.pathname === '/ui/jobs/{jobs['broken']}' && document.readyState === 'complete'")
    press(browser, "?")
    browser.wait_for("document.querySelector('.keys[open]')?.innerText.includes('new job')")
    assert browser.evaluate("document.activeElement.closest('dialog') !== null")


def test_the_palette_finds_names_that_look_like_ids_and_beginnings_of_ids(browser, service, jobs):
    fan = f"fan-{browser.evaluate('innerWidth')}"
    service.submit("true", name="jigsaw puzzle")
    service.submit("true", name=fan, array="0-2")
    service.submit("true", name=fan)
    press(browser, "k", modifiers=2, code="KeyK", windowsVirtualKeyCode=75)
    browser.wait_for("document.querySelector('.palette[open] li')")
    for text, name in (("jigsaw", "jigsaw puzzle"), (jobs["broken"], "broken"), (jobs["good"][:8], "good")):
        browser.evaluate("document.querySelector('.palette input').select()")
        browser("Input.insertText", text=text)
        browser.wait_for(f"document.querySelector('.palette li')?.textContent.startsWith('{name}')")
    browser.evaluate("document.querySelector('.palette input').select()")
    browser("Input.insertText", text=fan)
    kinds = f"[...document.querySelectorAll('.palette li')].filter(item => /^{fan}/.test(item.textContent))"
    browser.wait_for(f"({kinds}).filter(item => item.innerText.includes('3 jobs')).length === 1")
    assert browser.evaluate(f"({kinds}).length") == 2  # the members of an array are one
    press(browser, "Escape", windowsVirtualKeyCode=27)
    browser.wait_for("!document.querySelector('.palette')")


def test_what_is_done_with_selected_rows_covers_the_table(service, chromium):
    browser = Browser(chromium, size=(1366, 300))
    service.submit("true", name="rows", project="tall", array="0-5")
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.open(f"{service.cli_json['url']}/ui/jobs?q=project:tall")
    browser.click("a.fold")
    browser.wait_for("document.querySelectorAll('tbody tr').length === 7")
    for _ in range(2):
        press(browser, "j")
        press(browser, "x")
    browser.wait_for("document.querySelector('.current > :first-child')")
    assert "inset" in browser.evaluate("getComputedStyle(document.querySelector('.current > .pick')).boxShadow")
    shades = (
        "['.current', '.current > .name'].map(name => getComputedStyle(document.querySelector(name)).backgroundColor)"
    )
    assert len(set(browser.evaluate(shades))) == 1, "the column that stays in sight as well"
    browser.evaluate("scrollTo(0, 0)")
    at = "node.getBoundingClientRect().left + 4, node.getBoundingClientRect().top + 4"
    on_top = f"(node => node.contains(document.elementFromPoint({at})))(document.querySelector('.bulk {{}}'))"
    for button in ("#bulk-stop > summary", "[value=compare]"):
        assert browser.evaluate(on_top.format(button)), button
    press(browser, "k", modifiers=2, code="KeyK", windowsVirtualKeyCode=75)
    browser("Input.insertText", text="compare")
    browser.wait_for("document.querySelector('.palette li')?.textContent.startsWith('Compare jobs: 2 selected')")
    press(browser, "Enter", windowsVirtualKeyCode=13)
    browser.wait_for("location.search.includes('charts=1')")
    browser.close()


@pytest.mark.parametrize("browser", ["wide"], indirect=True)  # a telephone has no keys
def test_keys_and_the_palette_act_on_the_page(browser, service):
    press(browser, "g")
    press(browser, "m")
    browser.wait_for("location.pathname === '/ui/machines' && document.readyState === 'complete'")
    press(browser, "k", modifiers=2, code="KeyK", windowsVirtualKeyCode=75)
    browser.wait_for("document.querySelector('.palette[open] li')")
    browser("Input.insertText", text="density")
    browser.wait_for("document.querySelector('.palette li')?.textContent.startsWith('Density')")
    press(browser, "Enter", windowsVirtualKeyCode=13)
    browser.wait_for("document.documentElement.dataset.density === 'compact'")
    running = service.submit("echo line; sleep 60", name="acted-on")
    browser.open(f"{service.cli_json['url']}/ui/jobs/{running}")
    press(browser, "2")
    browser.wait_for("location.pathname.endsWith('/log') && document.readyState === 'complete'")
    browser.wait_for("document.querySelector('[data-find]').offsetParent")
    press(browser, "/")
    browser.wait_for("document.activeElement.placeholder === 'Find in the log'")
    browser.evaluate("document.activeElement.blur()")
    press(browser, "?")
    browser.wait_for("document.querySelector('.keys')?.innerText.includes('g c\\nComparisons')")
    press(browser, "Escape", windowsVirtualKeyCode=27)
    press(browser, "s")
    browser.wait_for("document.activeElement.closest('#stop-menu')?.open")
    press(browser, "Escape", windowsVirtualKeyCode=27)
    browser.wait_for("!document.querySelector('#stop-menu').open")
    press(browser, "c")
    browser.wait_for(f"location.search === '?from={running}' && document.readyState === 'complete'")
    service.request("POST", f"/jobs/{running}/stop")


@pytest.mark.parametrize("browser", ["wide"], indirect=True)  # a telephone shows no heads to sort by
def test_machine_types_are_filtered_and_sorted(browser, service):
    browser.open(f"{service.cli_json['url']}/ui/machines")
    browser.click("#types-2 th:last-child button")
    browser.click("#types-2 th:last-child button")
    browser.fill("#filter", "v100")
    shown = "[...document.querySelectorAll('#types-2 tbody tr:not([hidden]) .name')].map(name => name.innerText)"
    browser.wait_for(f"({shown}).length === 2")
    assert browser.evaluate(shown) == ["8x V100", "V100"]


@pytest.mark.parametrize("theme", THEMES)
def test_the_theme_is_remembered(service, browser, theme):
    browser.evaluate("localStorage.clear()")
    browser.click("#account summary")
    for _ in range(1 + THEMES.index(theme)):
        browser.click("[data-switch=theme]")
    browser.open(f"{service.cli_json['url']}/ui/machines")
    assert browser.evaluate("document.documentElement.dataset.theme") == theme
    bright = "parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0]) > 128"
    assert browser.evaluate(bright) is (theme == "light")


def test_a_job_opens_beside_the_list_and_whole(service, jobs, chromium):
    browser = Browser(chromium, size=SIZES["wide"])
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.open(service.cli_json["url"] + "/ui/jobs?q=project:vision")
    browser.wait_for("document.querySelectorAll('[data-run]').length === 2")
    for key, name in (("j", "poor"), ("j", "good"), ("k", "poor")):
        press(browser, key)
        browser.wait_for(f"document.querySelector('#peek h2')?.innerText === '{name}'")
        assert browser.evaluate("document.querySelector('tr.beside').dataset.run") == jobs[name]
    assert "accuracy" in browser.text("#peek")
    assert browser.evaluate("document.querySelectorAll('#peek :is([id], [data-part])').length") == 0
    press(browser, "Escape")
    assert browser.evaluate("document.getElementById('peek').hidden")
    browser.click("tr[data-run] td.state")
    browser.wait_for("!document.getElementById('peek').hidden")
    press(browser, "Enter")
    browser.wait_for(f"location.pathname === '/ui/jobs/{jobs['poor']}'")
    assert browser.messages == []
    browser.close()


def test_a_job_is_renamed_tagged_and_annotated_on_its_page(service, browser):
    job_id = service.submit("true", name="first try")
    service.wait_ended(job_id)
    browser.open(f"{service.cli_json['url']}/ui/jobs/{job_id}")
    saved = "document.readyState === 'complete' && document.querySelector('{}')?.innerText.includes('{}')"

    def type_into(field, text):
        browser.click(f"#edit-{field} summary")
        browser.wait_for(f"document.activeElement.name === '{field}'")
        browser.evaluate("document.activeElement.select()")
        browser("Input.insertText", text=text)

    type_into("note", "dropped")
    press(browser, "Escape")
    browser.wait_for("!document.querySelector('#edit-note').open")
    assert browser.evaluate("document.querySelector('[name=note]').value") == ""
    type_into("name", "best")
    press(browser, "Enter", text="\r")
    browser.wait_for(saved.format("h1", "best"))
    type_into("tags", "kept, good")
    press(browser, "Enter", text="\r")
    browser.wait_for(saved.format("#tags", "good"))
    type_into("note", "lr 0.1")
    press(browser, "Enter", text="\r")
    press(browser, "Enter", modifiers=2)
    browser.wait_for(saved.format("#note .written", "lr 0.1"))
    job = service.job(job_id)
    assert (job["name"], job["tags"], job["note"]) == ("best", ["kept", "good"], "lr 0.1")
