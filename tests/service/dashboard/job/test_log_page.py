"""The page of a job's log, as a browser without scripts sees it, and what its scripts fetch."""

import re

from support.live_service import make_job_body


def made(client):
    return client.post("/jobs", json=make_job_body()).json()["id"]


def test_only_a_short_log_is_offered_as_one_text(signed_in_browser, client, worker, stores, monkeypatch):
    job_id = made(client)
    worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"x" * 2000 + b"\n", 1000)
    raw = f'href="/jobs/{job_id}/logs/raw?inline=1"'
    assert raw in signed_in_browser.get(f"/ui/jobs/{job_id}/log").text
    monkeypatch.setattr("service.dashboard.job.log_page.LOG_BYTES_IN_TAB", 2000)
    page = signed_in_browser.get(f"/ui/jobs/{job_id}/log").text
    assert raw not in page
    assert "Download (2.0 kB)" in page


def test_any_line_of_a_log_is_shown_and_found_without_scripts(signed_in_browser, client, worker, stores):
    job_id = made(client)
    job = worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"".join(b"line %d\n" % number for number in range(1, 2001)), 1000)
    worker.end(job, exit_code=0)
    page = signed_in_browser.get(f"/ui/jobs/{job_id}/log").text
    assert "Lines 1,501 to 2,000 of 2,000." in page
    earlier = re.search(r'href="([^"]+)" rel="prev"', page)[1]
    page = signed_in_browser.get(earlier).text
    assert "Lines 1,001 to 1,500 of 2,000." in page
    assert re.search(r'href="([^"]+)" rel="next"', page)[1] == f"/ui/jobs/{job_id}/log?line=1501"
    page = signed_in_browser.get(f"/ui/jobs/{job_id}/log", params={"line": 7, "find": "LINE 77"}).text
    assert "line 7\nline 8\n" in page
    assert re.findall(r">line (\d+)</a>", page) == ["77", *map(str, range(770, 780))]
    assert "zebra is in no line." in signed_in_browser.get(f"/ui/jobs/{job_id}/log?find=zebra").text
    assert signed_in_browser.get(f"/ui/jobs/{job_id}/log?line=0").status_code == 422


def test_what_a_script_fetches_again_leaves_out_the_log(signed_in_browser, client, worker, stores):
    job_id = made(client)
    worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"spoken words\n", 1000)
    assert "spoken words" in signed_in_browser.get(f"/ui/jobs/{job_id}/log").text
    assert "spoken words" not in signed_in_browser.get(f"/ui/jobs/{job_id}/log?part=live").text
