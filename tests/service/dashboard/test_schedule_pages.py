"""The page of a schedule."""

import html
import re

from support.live_service import make_job_body


def test_the_page_of_a_schedule(signed_in_browser, client, worker):
    """It shows the last 30 runs, the last failure, the next times in the schedule's time zone, and has its actions."""
    body = make_job_body(
        cron="0 3 * * *", timezone="Asia/Tokyo", name="<nightly>", command="python main.py &", params={"lr": 0.1}
    )
    address = f"/ui/schedules/{client.post('/schedules', json=body).json()['id']}"
    assert "No jobs yet." in signed_in_browser.get(address).text
    worker.register()
    exit_codes, ids = [0, 3] * 15 + [0], []
    for exit_code in exit_codes:
        ids.append(signed_in_browser.post(f"{address}/trigger").headers["location"].rpartition("/")[2])
        worker.end(worker.start(), "exit_nonzero" if exit_code else "completed", exit_code=exit_code)
    page = signed_in_browser.get(address).text
    words = ["Failed" if exit_code else "Succeeded" for exit_code in exit_codes]
    runs = re.findall(r'<a class="(\w+)" href="/ui/jobs/(\w+)" title="(\w+), ', page)
    assert runs == [(word.lower(), job_id, word) for word, job_id in zip(words, ids, strict=True)][1:]
    assert f'<a href="/ui/jobs/{ids[-2]}">Last failure</a>' in page
    assert page.count(" 03:00 JST <") == 5
    assert '<pre class="command">python main.py &amp;</pre>' in page
    assert "<h1>&lt;nightly&gt;</h1>" in page
    assert "<dt><code>lr</code></dt><dd><code>0.1</code></dd>" in page
    copy = html.unescape(re.search('<a id="copy" class="button" href="([^"]*)"', page)[1])
    form = signed_in_browser.get(copy).text
    for filled in ('value="0 3 * * *"', 'value="Asia/Tokyo"', ">python main.py &amp;</textarea>", "lr=0.1</textarea>"):
        assert filled in form.replace(">\n", ">"), filled
    assert re.search('value="schedule"[^>]* checked', form)
    assert signed_in_browser.post(f"{address}/suspend").headers["location"] == address
    page = signed_in_browser.get(address).text
    assert (page.count(f'action="{address}/resume"'), page.count("Suspended<")) == (1, 2)
    assert signed_in_browser.post(f"{address}/delete").headers["location"] == "/ui/schedules"
    assert signed_in_browser.get(address).status_code == 404
