"""A job's log in a real browser: any line of a long one, links, search, floods, many tabs."""

import re

import pytest
from support.browser import Browser
from support.deployment import wait_until
from support.live_folder import find

LINES = 60_000
LONG = f"""
seq -f 'line %.0f' 1 {LINES}
printf 'an \\033[7minverse\\033[0m word, https://example.org/a?b=1. And \\033[9mstruck\\033[0m\\n'
"""
FLOOD = """
while [ ! -e go ]; do sleep 0.02; done
seq -f 'flood %.0f of many lines, each with some text' 1 300000
while [ ! -e end ]; do sleep 0.02; done
"""
TICKS = """
while [ ! -e end ]; do echo tick; sleep 0.1; done
"""


@pytest.fixture(params=[(1280, 900), pytest.param((390, 844), marks=pytest.mark.slow)], ids=["wide", "narrow"])
def size(request):
    return request.param


@pytest.fixture
def browser(service, chromium, request):
    size = request.getfixturevalue("size") if "size" in request.fixturenames else (1280, 900)
    browser = Browser(chromium, size=size)
    browser.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
    browser.messages.clear()  # the hint about fields for user names
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def long_job(service):
    job_id = service.submit(LONG, name="long")
    service.wait_ended(job_id)
    return job_id


def touch(service, job_id, name):
    next(find(service.home / "attempts" / f"{job_id}-1", "workspace")).joinpath(name).touch()


def page_of(service, job_id):
    return f"{service.cli_json['url']}/ui/jobs/{job_id}/log"


def shown_lines(browser):
    return browser.evaluate("[...document.querySelectorAll('#log .row')].map(row => Number(row.dataset.line))")


def middle_line(browser):
    """Return the text of the row in the middle of what is seen of the log."""
    return browser.evaluate(
        "(() => { const box = document.getElementById('log').getBoundingClientRect();"
        " return document.elementFromPoint(box.left + box.width / 2, box.top + box.height / 2)"
        ".closest('.row').innerText; })()"
    )


@pytest.mark.usefixtures("size")
def test_any_line_of_a_long_log_can_be_seen(service, browser, long_job):
    browser.open(page_of(service, long_job))
    browser.wait_for(f"document.querySelector('#log .row:last-child')?.dataset.line === '{LINES + 1}'")
    assert browser.evaluate("document.getElementById('follow').closest('label').hidden"), "nothing will follow"
    assert browser.evaluate("[...document.querySelectorAll('#log .line')].every(one => one.offsetHeight < 40)")
    browser.evaluate("document.querySelector('[data-log-line]').focus()")
    browser("Input.insertText", text="30000")
    browser.evaluate("document.activeElement.blur()")
    browser.wait_for("document.querySelector('#log .marked')?.dataset.line === '30000'")
    assert browser.evaluate("location.hash") == "#L30000"
    assert middle_line(browser) == "line 30000"
    assert len(shown_lines(browser)) <= 140
    # Scrolling on reads what comes before and after.
    for _ in range(3):
        first = shown_lines(browser)[0]
        browser.evaluate("document.getElementById('log').scrollTop = 0")
        browser.wait_for(f"Number(document.querySelector('#log .row').dataset.line) < {first}")
    lines = shown_lines(browser)
    assert lines == list(range(lines[0], lines[0] + len(lines))), "without gaps"
    assert len(lines) <= 140
    browser.evaluate("document.getElementById('log').dispatchEvent(new KeyboardEvent('keydown', {key: 'Home'}))")
    browser.wait_for("document.querySelector('#log .row').dataset.line === '1'")
    browser.evaluate("document.getElementById('log').dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}))")
    browser.wait_for(f"document.querySelector('#log .row:last-child').dataset.line === '{LINES + 1}'")
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.messages == []


def test_a_link_shows_its_lines(service, browser, long_job):
    browser.open(f"{page_of(service, long_job)}#L214-L220")
    browser.wait_for("document.querySelectorAll('#log .marked').length === 7")
    assert browser.evaluate("document.querySelector('#log .marked').dataset.line") == "214"
    top = "document.querySelector('#log .marked').getBoundingClientRect().top"
    assert 0 <= browser.evaluate(top) < browser.evaluate("window.innerHeight")
    browser.evaluate(
        "document.querySelector('#log [data-number=\"222\"]')"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true, shiftKey: true}))"
    )
    assert browser.evaluate("location.hash") == "#L214-L222"
    assert browser.evaluate("document.querySelectorAll('#log .marked').length") == 9


def test_a_link_to_a_line_survives_the_sign_in(service, chromium, long_job):
    browser = Browser(chromium, size=(1000, 800))
    browser.open(f"{page_of(service, long_job)}#L214-L220")
    browser.fill("#key", service.cli_json["apiKey"])
    browser.click("form.sign-in button")
    browser.wait_for("document.querySelectorAll('#log .marked').length === 7 && location.hash === '#L214-L220'")
    browser.close()


def test_text_is_found_in_the_whole_log(service, browser, long_job):
    browser.open(page_of(service, long_job))
    browser.wait_for("!document.querySelector('[data-log-bar]').hidden")
    browser.fill("[data-find] [name=query]", "LINE 1234")
    browser.wait_for("document.querySelector('#log .found')?.innerText === 'line 12349'")
    assert middle_line(browser) == "line 12349"
    assert browser.evaluate("scrollY") == 0, "the buttons stay where they are"
    browser.click("[data-next]")
    browser.wait_for("document.querySelector('#log .found')?.innerText === 'line 1234'")
    browser.click("[data-next]")
    browser.wait_for("document.querySelector('#log .found')?.innerText === 'line 12340'")
    assert browser.text("[data-find] output") == "2 of 11"
    browser.click("[data-previous]")
    browser.wait_for("document.querySelector('#log .found')?.innerText === 'line 1234'")
    browser.click("[name=matchCase]")
    browser.wait_for("document.querySelector('[data-find] output').innerText === 'No matches'")
    assert browser.messages == []


def test_colours_and_addresses(service, browser, long_job):
    browser.open(page_of(service, long_job))
    browser.wait_for("document.querySelector('#log .inverse')")
    assert browser.text("#log .inverse") == "inverse"
    assert "line-through" in browser.evaluate("getComputedStyle(document.querySelector('#log .strike')).textDecoration")
    link = "document.querySelector('#log .row a:not(.line)')"
    assert browser.evaluate(f"[{link}.href, {link}.rel]") == ["https://example.org/a?b=1", "noreferrer"]


def test_the_end_of_a_flood_is_shown_at_once(service, browser):
    job_id = service.submit(FLOOD, name="flood")
    browser.open(page_of(service, job_id))
    browser.wait_for("document.querySelector('.state .badge').innerText === 'Running'")
    browser.wait_for("document.querySelector('[data-log-note]').innerText === 'Waiting for output…'")
    assert browser.evaluate("document.getElementById('log').offsetHeight") == 0, "no empty box"
    touch(service, job_id, "go")
    browser.wait_for("document.querySelector('#log .row:last-child')?.dataset.line === '300000'")
    assert "came too fast to show" in browser.text("[data-log-note]")
    assert browser.evaluate("document.getElementById('follow').checked")
    # What was skipped is read when it is looked for.
    first = shown_lines(browser)[0]
    browser.evaluate("document.getElementById('log').scrollTop = 0")
    browser.wait_for(f"Number(document.querySelector('#log .row').dataset.line) < {first}")
    lines = shown_lines(browser)
    assert lines == list(range(lines[0], 300_001))
    touch(service, job_id, "end")
    browser.wait_for("document.querySelector('.state .badge').innerText === 'Succeeded'")
    assert browser.messages == []


def count_streams(service):
    metrics = service.request("GET", "/metrics").text
    return float(re.search(r"^gradient_log_streams (\S+)$", metrics, re.MULTILINE)[1])


def test_many_tabs_of_live_jobs_hold_one_stream(service, browser):
    job_id = service.submit(TICKS, name="ticks")
    tabs = []
    for _ in range(7):  # a browser has six connections to a server
        tabs.append(browser.open_tab())
        browser.open(page_of(service, job_id))
        browser.wait_for("document.querySelectorAll('#log .row').length > 3")
    wait_until(lambda: count_streams(service) == 1, "the hidden tabs to close their streams")
    browser.show_tab(tabs[0])
    browser.wait_for("!document.hidden")
    had = shown_lines(browser)[-1]
    browser.wait_for(f"Number(document.querySelector('#log .row:last-child').dataset.line) > {had + 3}")
    lines = shown_lines(browser)
    assert lines == list(range(lines[0], lines[0] + len(lines))), "it goes on after the last line that it had"
    wait_until(lambda: count_streams(service) == 1, "one stream")
    touch(service, job_id, "end")


@pytest.mark.slow
def test_fifty_tabs_of_live_jobs_show_a_new_line(service, chromium):
    jobs = [
        service.submit("echo first; while [ ! -e go ]; do sleep 0.1; done; echo second; sleep 600") for _ in range(5)
    ]
    people, tabs = [], []
    for _ in range(10):
        people.append(person := Browser(chromium))
        person.sign_in(service.cli_json["url"], service.cli_json["apiKey"])
        for job_id in jobs:
            tabs.append((person, person.open_tab()))
            person.open(page_of(service, job_id))
            person.wait_for("document.querySelector('#log .row')?.innerText.includes('first')")
    wait_until(lambda: count_streams(service) == len(people), "one stream for each of them")
    for job_id in jobs:
        touch(service, job_id, "go")
    for person, tab in reversed(tabs):  # first those in front, which show it without being shown again
        person.show_tab(tab)
        person.wait_for("document.querySelector('#log .row:last-child').innerText.includes('second')")
    assert len(tabs) == 50
    for person in people:
        person.close()
    for job_id in jobs:
        service.request("POST", f"/jobs/{job_id}/stop?now=true")


@pytest.mark.slow
def test_fifty_tabs_of_one_person_show_what_has_changed(service, browser):
    job_id = service.submit("echo first; while [ ! -e go ]; do sleep 0.1; done; echo second", project="tabs")
    log, of_project = page_of(service, job_id), f"{service.cli_json['url']}/ui/jobs?project=tabs"
    last_line = "document.querySelector('#log .row:last-child')?.innerText"
    row = f"document.querySelector('[data-run={job_id}] .badge')"
    kinds = [
        (log, f"{last_line} === 'first'", f"{last_line} === 'second'"),
        (of_project, f"{row}?.matches('.running')", f"{row}.matches('.succeeded')"),
        (f"{of_project}&charts=1", f"{row}?.matches('.running')", f"{row}.matches('.succeeded')"),
    ]
    tabs = []
    for number in range(50):
        page, before, after = kinds[number % len(kinds)]
        tabs.append((browser.open_tab(), after))
        browser.open(page)
        browser.wait_for(before)
    wait_until(lambda: count_streams(service) == 1, "one stream for all of them")
    new = service.submit("true", project="tabs")
    touch(service, job_id, "go")
    assert service.wait_ended(job_id)["state"] == "Stopped"
    for number in reversed(range(50)):  # first the one in front, which shows it without being shown again
        tab, after = tabs[number]
        if number < 49:
            browser.show_tab(tab)
        browser.wait_for(after)
        if number % len(kinds):
            browser.wait_for(f"document.getElementById('{new}')")
    assert browser.messages == []


def test_of_two_windows_the_one_used_last_streams_and_the_other_polls(service, browser):
    job_id = service.submit(TICKS, name="ticks")
    browser.open(page_of(service, job_id))
    browser.wait_for("document.querySelectorAll('#log .row').length > 3")
    browser.evaluate("new BroadcastChannel('gradient-log-stream').postMessage('streaming')")
    wait_until(lambda: count_streams(service) == 0, "the window to give up its stream")
    had = shown_lines(browser)[-1]
    browser.wait_for(f"Number(document.querySelector('#log .row:last-child').dataset.line) > {had + 3}")
    assert count_streams(service) == 0
    browser.evaluate("window.dispatchEvent(new Event('focus'))")
    wait_until(lambda: count_streams(service) == 1, "the window to stream again")
    touch(service, job_id, "end")
    browser.wait_for("document.querySelector('.state .badge').innerText === 'Succeeded'")
    wait_until(lambda: count_streams(service) == 0, "the stream to end")


@pytest.mark.usefixtures("size")
def test_errors_matches_times_and_lines_to_save(service, browser, tmp_path):
    lines = "line = lambda n: print(f'line {n}', 'RuntimeError: bad' if n % 900 == 0 else '')"
    job_id = service.submit(f"""python3 -c "{lines}
for n in range(1, 3001): line(n)" """)
    service.wait_ended(job_id)
    browser.open(page_of(service, job_id))
    browser.wait_for("document.querySelector('#log .row')")
    found = "document.querySelector('#log .found')?.dataset.line"
    browser.wait_for("document.querySelectorAll('#log .error-line').length === 0")
    browser.wait_for("document.querySelector('.log-map').title.includes('like errors: 3, like warnings: 0')")
    browser.evaluate(
        "(place => { place.value = 1798; place.dispatchEvent(new Event('input')); })"
        "(document.querySelector('[data-log-place]'))"
    )
    browser.wait_for("document.querySelector('#log .error-line')?.dataset.line === '1800'")
    browser.evaluate("(log => { log.focus(); })(document.getElementById('log'))")
    browser("Input.dispatchKeyEvent", type="keyDown", key="End")
    browser.wait_for("document.querySelector('#log .row:last-child').dataset.line === '3000'")
    browser.click("[data-errors]")
    browser.wait_for(f"{found} === '2700'")  # the end is shown, and no error follows it: the last
    browser.click("[data-next]")
    browser.wait_for(f"{found} === '900'")
    assert browser.text("[data-find] output") == "1 of 3"
    browser.click("[data-find] [name=only]")
    browser.wait_for("document.querySelectorAll('[data-matches] .row').length === 3")
    assert browser.text("[data-matches]").split("\n") == [f"line {n} RuntimeError: bad" for n in (900, 1800, 2700)]
    assert browser.evaluate("document.getElementById('log').hidden")
    browser.click("[data-matches] .row:nth-child(3) a.line")
    browser.wait_for("document.querySelector('#log .marked')?.dataset.line === '2700'")
    assert not browser.evaluate("document.getElementById('log').hidden")
    browser.evaluate("location.hash = 'L2699-L2701'")
    browser.wait_for("document.querySelectorAll('#log .marked').length === 3")
    assert browser.text("[data-marked] span") == "Lines 2699 to 2701"
    browser(
        "Browser.setDownloadBehavior", behavior="allow", browserContextId=browser.context, downloadPath=str(tmp_path)
    )
    browser.click("[data-save-lines]")
    saved = tmp_path / "lines-2699-2701.txt"
    wait_until(lambda: saved.exists() and saved.stat().st_size > 0, "the saved lines")
    assert saved.read_text() == "line 2699 \nline 2700 RuntimeError: bad\nline 2701 \n"
    for mode, pattern in (("clock", r"\d\d:\d\d:\d\d"), ("relative", r"\+\d+\.\d"), ("delta", r"\+\d\.\d{3}")):
        browser.evaluate(
            f"(s => {{ s.value = '{mode}'; s.dispatchEvent(new Event('change', {{bubbles: true}})) }})"
            "(document.querySelector('[name=times]'))"
        )
        assert re.fullmatch(pattern, browser.evaluate("document.querySelector('#log .marked .line').dataset.time"))
    browser.click("[name=wrap]")
    assert browser.evaluate("getComputedStyle(document.getElementById('log')).whiteSpace") == "pre"
    browser.open(page_of(service, job_id))  # both choices are kept
    browser.wait_for("document.querySelector('#log.timed.unwrapped .row .line[data-time]')")
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.messages == []


def test_new_lines_are_counted_while_older_ones_are_read(service, browser):
    wait = "while [ ! -e {} ]; do sleep 0.05; done"
    job_id = service.submit(f"seq 1 1000; {wait.format('go')}; seq 1001 1400; {wait.format('end')}")
    browser.open(page_of(service, job_id))
    browser.wait_for("document.querySelector('#log .row:last-child')?.dataset.line === '1000'")
    browser.evaluate("location.hash = 'L10'")
    browser.wait_for("document.querySelector('#log .marked')")
    touch(service, job_id, "go")
    browser.wait_for("document.querySelector('[data-log-new]').innerText === '400 new lines'")
    assert not browser.evaluate("document.getElementById('follow').checked")
    browser.click("[data-log-new]")
    browser.wait_for("document.querySelector('#log .row:last-child').dataset.line === '1400'")
    browser.wait_for("document.querySelector('[data-log-new]').hidden")
    touch(service, job_id, "end")


def test_the_first_lines_stay_where_they_are_while_new_ones_arrive(service, browser):
    wait = "while [ ! -e {} ]; do sleep 0.05; done"
    job_id = service.submit(f"seq 1 100; {wait.format('go')}; seq 101 160; {wait.format('end')}")
    browser.open(page_of(service, job_id))
    browser.wait_for("document.querySelector('#log .row:last-child')?.dataset.line === '100'")
    browser.evaluate("document.getElementById('log').dispatchEvent(new KeyboardEvent('keydown', {key: 'Home'}))")
    browser.wait_for("document.getElementById('log').scrollTop === 0 && !document.getElementById('follow').checked")
    read = middle_line(browser)
    touch(service, job_id, "go")
    browser.wait_for("document.querySelector('[data-log-new]').innerText === '60 new lines'")
    wait_until(lambda: shown_lines(browser) == list(range(1, 141)), "the lines that are shown ahead")
    assert middle_line(browser) == read
    browser.evaluate("(log => { log.scrollTop = log.scrollHeight; })(document.getElementById('log'))")
    browser.wait_for("document.querySelector('#log .row:last-child').dataset.line === '160'")
    touch(service, job_id, "end")


@pytest.mark.usefixtures("size")
def test_any_line_of_a_large_text_artifact_is_seen_and_found(service, browser):
    write = "seq -f 'row %.0f of a text' 1 2000000 > $GRADIENT_ARTIFACTS_DIR/long.txt"
    job_id = service.submit(write)
    service.wait_ended(job_id)
    view = f"{service.cli_json['url']}/ui/jobs/{job_id}/artifacts/view?path=long.txt"
    browser.open(view)
    browser.wait_for("document.querySelector('#log .row')?.dataset.line === '1'")
    assert browser.text("[data-log-total]") == "2,000,000"
    assert browser.evaluate("document.querySelectorAll('#log .row').length") <= 600
    browser.fill("[data-find] input", "row 1999999 of")
    browser.wait_for("document.querySelector('#log .found')?.innerText === 'row 1999999 of a text'")
    assert browser.text("[data-find] output") == "1 of 1"
    browser.open(f"{view}#L1500000-L1500002")
    browser.wait_for("document.querySelectorAll('#log .marked').length === 3")
    assert browser.text("#log .marked") == "row 1500000 of a text"
    assert browser.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert browser.messages == []
