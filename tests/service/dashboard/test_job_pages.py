"""The list of jobs and the page of one, as a browser without scripts sees them."""

import html
import re
from html.parser import HTMLParser

import pytest
from sqlalchemy import update
from support.job_table import names
from support.live_service import make_job_body

from core.db.models.jobs import Job
from core.jobs import lifecycle
from core.jobs.tracking import metrics

EVIL = "<script>alert('x')</script>\" onload=alert(1) 🚀"


def made(client, **fields) -> str:
    answer = client.post("/jobs", json=make_job_body(**fields))
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def badges(page) -> list[str]:
    return re.findall(r'<span class="badge \w+">(\w+)</span>', page.text)


class Markup(HTMLParser):
    """The elements of a page, as a browser would find them."""

    def __init__(self, text):
        super().__init__()
        self.scripts = []
        self.risky = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))
        names = {name for name, _ in attrs}
        links = [value or "" for name, value in attrs if name in {"href", "src", "action"}]
        inline = any(name.startswith("on") or name == "style" for name in names)
        if inline or not all(link.startswith(("/", "#")) for link in links) or tag in {"style", "iframe", "base"}:
            self.risky.append((tag, attrs))


def no_script(page) -> bool:
    """Return whether a page's only scripts are our files; fail on a handler, style or foreign address in its markup."""
    markup = Markup(page.text)
    assert markup.risky == []
    return re.fullmatch(r"/ui/static/\w+/theme\.js /ui/static/\w+/page\.js", " ".join(markup.scripts)) is not None


def test_every_state_has_its_word_and_its_reason(signed_in_browser, client, worker):
    worker.register()
    # One worker's moves: the first that waits is the one that is claimed.
    made(client, name="good")
    worker.end(worker.start(), exit_code=0)
    made(client, name="bad")
    worker.end(worker.start(), "killed", exit_code=137)
    made(client, name="broken")
    worker.end(worker.claim(), "workspace_invalid", detail="no such file")
    cancelled = made(client, name="unwanted")
    client.post(f"/jobs/{cancelled}/stop")
    made(client, name="runs")
    worker.start()
    made(client, name="waits")
    page = signed_in_browser.get("/ui/jobs")
    assert badges(page) == ["Pending", "Running", "Cancelled", "Error", "Failed", "Succeeded"]
    assert "Exit code 137: the command was killed" in page.text
    assert "The workspace could not be unpacked: no such file" in page.text
    assert "Waiting for a free machine." in page.text
    assert no_script(page)
    for job in client.get("/jobs").json()["jobs"]:
        shown = signed_in_browser.get(f"/ui/jobs/{job['id']}")
        word = {"Stopped": "Succeeded"}.get(job["state"], job["state"])
        assert (shown.status_code, badges(shown)) == (200, [word])
        assert f"<title>{word}: " in shown.text
        assert ('data-live="yes"' in shown.text) == (job["state"] in {"Pending", "Running"})
        assert ('action="/ui/jobs/' + job["id"] + '/stop"' in shown.text) == (job["state"] in {"Pending", "Running"})
        assert no_script(shown)


def test_a_stopped_job_whose_outputs_are_collected_is_not_waited_for(signed_in_browser, client, stores, worker):
    path = f"/jobs/{made(client)}"
    running = worker.start()
    client.post(f"{path}/stop")
    page = signed_in_browser.get(f"/ui{path}").text
    killed = f"{client.get(path).json()['stopsBy']}"
    assert f'Asked to stop by tests. If it does not end by itself, it is killed <time datetime="{killed}"' in page
    with stores.database.write() as session:
        lifecycle.mark_finishing(session, running, "stopped_by_user")
    page = signed_in_browser.get(f"/ui{path}").text
    assert "Ended by a stop request of tests." in page
    assert "Asked to stop" not in page


def test_a_job_that_was_asked_to_stop_is_told_from_others_everywhere(signed_in_browser, client, worker):
    worker.register()
    array = client.post("/jobs", json=make_job_body(array="a,b")).json()["arrayId"]
    alone = made(client, stopGrace=30)
    for _ in range(3):
        worker.start()
    assert badges(signed_in_browser.get("/ui/jobs")) == ["Running", "Running"]
    client.post(f"/jobs/{alone}/stop")
    first, *_ = client.get("/jobs", params={"array": array}).json()["jobs"]
    client.post(f"/jobs/{first['id']}/stop")
    assert badges(signed_in_browser.get("/ui/jobs")) == ["Stopping", "Running"], "one of two members goes on"
    client.post("/jobs/actions", json={"action": "stop", "ids": [array]})
    assert badges(signed_in_browser.get("/ui/jobs")) == ["Stopping", "Stopping"]
    assert badges(signed_in_browser.get("/ui")) == ["Stopping"] * 3
    page = signed_in_browser.get(f"/ui/jobs/{alone}")
    assert badges(page) == ["Stopping"]
    assert "<title>Stopping: " in page.text


def test_a_job_that_leaves_the_queue_says_by_whom(client):
    job_id = made(client)
    assert client.post(f"/jobs/{job_id}/stop").json()["message"] == "Ended by a stop request of tests."


def test_the_list_is_searched_without_scripts(signed_in_browser, client):
    made(client, name="mnist-cnn", command="python train.py --lr 0.1", tags=["sweep-1"])
    made(client, name="other", command="python train.py --lr 0.01")
    made(client, name="large", machineType="GPU+")

    def found(**filters):
        return names(signed_in_browser.get("/ui/jobs", params=filters).text)

    assert found(query="MNIST") == ["mnist-cnn"]
    assert found(query="train.py") == ["other", "mnist-cnn"]
    assert found(tag="sweep-1") == ["mnist-cnn"]
    assert found(machineType="GPU+", query="", tag="") == ["large"]
    page = signed_in_browser.get("/ui/jobs", params={"query": "<b>", "state": "Succeeded"})
    assert 'name="q" value="state:Succeeded &#34;&lt;b&gt;&#34;"' in page.text
    assert re.search(r'<a class="chip chosen" [^>]*>Succeeded', page.text)
    assert "No jobs here." in page.text
    for question in ({"q": "state:stopped"}, {"state": "Stopped"}):
        page = signed_in_browser.get("/ui/jobs", params=question)
        assert page.status_code == 400
        assert "Succeeded or cancelled?" in page.text
    assert signed_in_browser.get("/ui/jobs", params={"query": "x" * 201}).status_code == 422


def test_a_state_or_page_that_cannot_be_is_explained(signed_in_browser):
    for query, shown in (("state=Nonsense", "not a state"), ("after=nonsense", "not a page cursor")):
        answer = signed_in_browser.get(f"/ui/jobs?{query}")
        assert (answer.status_code, shown in answer.text) == (400, True)


def test_nothing_a_job_says_becomes_markup(signed_in_browser, client, worker, stores):
    job_id = made(
        client,
        name=EVIL,
        project=EVIL,
        command=f"echo {EVIL}",
        tags=[EVIL],
        envVars={"TEXT": EVIL},
        workspace="https://example.org/a.git#<script>",
    )
    job = worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(f"\x1b[31m{EVIL}\x1b[0m </pre><script>x</script>\n".encode(), 1000)
    with stores.database.write() as session:
        metrics.add(session, [a_metric(job_id, job.started_at, {f"</table>{EVIL}": 1.0})])
    worker.end(job, "exit_nonzero", detail=EVIL, exit_code=3)
    of_job = [f"/ui/jobs/{job_id}{rest}" for rest in ("", "/log", "/metrics", "/artifacts", "/config", "/events")]
    for address in ("/ui/jobs", *of_job):
        page = signed_in_browser.get(address)
        assert page.status_code == 200
        assert no_script(page)
        assert "&lt;script&gt;alert(" in page.text


def a_metric(job_id, at, values, step=1.0):
    return {
        "job_id": job_id,
        "attempt": 1,
        "source": "job",
        "offset": int(step),
        "step": step,
        "at": at,
        "values": values,
    }


def test_the_page_of_a_job_tells_all_about_it(signed_in_browser, client, worker, stores):
    worker.register()
    job_id = made(
        client,
        machineType="P100",
        command="python train.py --epochs 2",
        container="tensorflow/tensorflow:2.21.0",
        envVars={"LR": "0.1", "WANDB_API_KEY": "abcdef"},
        timeLimit=7200,
        tags=["nightly"],
        maxAttempts=3,
    )
    job = worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"\x1b[1mepoch 1\x1b[0m\nepoch 2\n", 1000)
    with stores.database.write() as session:
        rows = [a_metric(job_id, job.started_at, {"loss": 1.0 / step}, step) for step in (1.0, 2.0)]
        metrics.add(session, rows)
    worker.end(job, exit_code=0)
    page = signed_in_browser.get(f"/ui/jobs/{job_id}")
    for text in (
        "python train.py --epochs 2",
        "tensorflow/tensorflow:2.21.0",
        ">simulated</span>",
        "at $1.46/h",
        '<a class="tag" href="/ui/jobs?tag=nightly">nightly</a>',
        "epoch 1\nepoch 2</pre>",
        '<dt>loss</dt><dd>0.5 <small class="muted">lowest 0.5, highest 1</small><svg',
    ):
        assert text in page.text, text
    config = signed_in_browser.get(f"/ui/jobs/{job_id}/config").text
    for text in ("2 h 00 min", "at most 3", "<code>WANDB_API_KEY</code>", "••••••", "<dt>Worker</dt>"):
        assert text in config, text
    assert "abcdef" not in page.text + config
    phases = re.findall(r'<rect class="p\d ([\w-]+)" x=', page.text)
    assert phases == ["queued", "provisioning", "running", "collecting"]
    events = client.get(f"/jobs/{job_id}/events").json()["events"]
    assert signed_in_browser.get(f"/ui/jobs/{job_id}/events").text.count("<li><time ") == len(events)


@pytest.mark.parametrize("length", [2_000, 50_000])
def test_the_cause_is_found_behind_long_lines(signed_in_browser, client, worker, stores, length):
    job_id = made(client)
    job = worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append((b"." * length + b"\n") * 99 + b"ValueError: bad " + b"." * length, 1000)
    worker.end(job, "exit_nonzero", detail="exit code 1", exit_code=1)
    page = signed_in_browser.get(f"/ui/jobs/{job_id}").text
    assert "<code>ValueError: bad ..." in page
    assert f'<a href="/ui/jobs/{job_id}/log#L100">log line 100</a>' in page


def test_each_attempt_has_its_timeline_log_and_artifacts(signed_in_browser, client, worker, stores, tmp_path):
    job_id = made(client, maxAttempts=2)
    for number in (1, 2):
        if number == 2:
            with stores.database.write() as session:
                session.execute(update(Job).where(Job.id == job_id).values(run_after=None))
        job = worker.start()
        with stores.logs.open_writer(job_id, number) as log:
            log.append(b"one\ntwo\nthr", 1000)
        folder = tmp_path / str(number) / "model"
        folder.mkdir(parents=True)
        (folder / f"of-{number}.txt").write_text(f"attempt {number}")
        stores.artifacts.close(job_id, number, folder.parent)
        worker.end(job, "killed", exit_code=137)
    page = signed_in_browser.get(f"/ui/jobs/{job_id}").text
    assert re.findall(rf'href="/ui/jobs/{job_id}/log#L(\d)">Log from line', page) == ["1", "4"]
    assert page.count('<svg class="bar"') == 3
    first = f"/ui/jobs/{job_id}/artifacts?attempt=1"
    assert f'href="{first}"' in page
    folder = signed_in_browser.get(f"/ui/jobs/{job_id}/artifacts?folder=model/&attempt=1").text
    assert "of-1.txt" in folder
    assert "of-2.txt" not in folder
    assert "Artifacts of attempt 1" in folder
    assert f"/jobs/{job_id}/artifacts.zip?prefix=model%2F&amp;attempt=1" in folder
    download = re.search(r'href="(/jobs/[^"]+of-1.txt[^"]*)" download', folder)[1]
    assert client.get(download).text == "attempt 1"
    preview = signed_in_browser.get(f"/ui/jobs/{job_id}/artifacts/view?path=model/of-1.txt&attempt=1")
    assert "attempt 1" in preview.text
    assert "of-2.txt" in signed_in_browser.get(f"/ui/jobs/{job_id}/artifacts?folder=model/").text


def test_names_cannot_reorder_the_text_around_them(signed_in_browser, client, worker, stores, tmp_path):
    name = "\u202egnp.exe"
    job_id = made(client, name=name, project=name, tags=[name], envVars={"A": name})
    job = worker.start()
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / name).write_text("x")
    stores.artifacts.close(job_id, 1, tmp_path / "left")
    worker.end(job, exit_code=0)
    for address in ("/ui/jobs", f"/ui/jobs/{job_id}", f"/ui/jobs/{job_id}/artifacts"):
        page = signed_in_browser.get(address).text
        assert "&lt;U+202E&gt;gnp.exe" in page
        # What a form sends back stays as it is.
        assert "\u202e" not in re.sub(r'value="[^"]*"', "", page)
    assert (
        "&lt;U+202E&gt;gnp.exe"
        in signed_in_browser.get(f"/ui/jobs/{job_id}/artifacts/view", params={"path": name}).text
    )
    assert signed_in_browser.get("/ui/jobs", params={"project": name}).text.count("<tr data-run=") == 1


def test_stop_and_delete_are_forms(signed_in_browser, client, wake_calls):
    job_id = made(client, name="first")
    wake_calls.clear()
    assert signed_in_browser.post(f"/ui/jobs/{job_id}/stop").headers["location"] == f"/ui/jobs/{job_id}"
    assert client.get(f"/jobs/{job_id}").json()["state"] == "Cancelled"
    assert wake_calls
    assert signed_in_browser.post(f"/ui/jobs/{job_id}/delete").headers["location"] == "/ui/jobs"
    assert signed_in_browser.get(f"/ui/jobs/{job_id}").status_code == 404


@pytest.mark.parametrize(
    ("given", "page"),
    [
        ("a123456789abcd", "/ui/jobs?q=array%3Aa123456789abcd&charts=1"),
        ("s123456789abcd", "/ui/jobs?q=sweep%3As123456789abcd&charts=1"),
    ],
)
def test_the_page_of_an_array_is_the_list_of_its_members(signed_in_browser, given, page):
    answer = signed_in_browser.get(f"/ui/jobs/{given}")
    assert (answer.status_code, answer.headers["location"]) == (307, page)


def test_a_refused_edit_is_shown_again_with_the_reason(client, signed_in_browser, anonymous_client):
    job_id = made(client, name="first", tags=['say "x"', '"b"', "a,b"])
    page = f"/ui/jobs/{job_id}"
    typed = html.unescape(re.search('<input name="tags" value="([^"]*)"', signed_in_browser.get(page).text)[1])
    assert typed == 'say "x", """b""", "a,b"'
    for field, text, wrong in (
        ("name", "x" * 201, "201 characters"),
        ("tags", f"{typed}, {'t' * 101}", "101 characters"),
        ("note", f"<b>\n{'n' * 2000}", "2,004 characters"),
    ):
        refused = signed_in_browser.post(page, data={field: text})
        assert (refused.status_code, wrong in refused.text) == (400, True)
        assert f'id="edit-{field}" open>' in refused.text
        assert (text in html.unescape(refused.text), "<b>\n" in refused.text) == (True, False)
    job = client.get(f"/jobs/{job_id}").json()
    assert (job["name"], job["note"], job["tags"]) == ("first", None, ['say "x"', '"b"', "a,b"])
    for change in ({"tags": f"{typed},new , "}, {"note": "see\r\nhttps://example.org/<b>"}, {"name": " "}):
        saved = signed_in_browser.post(page, data=change, follow_redirects=False)
        assert (saved.status_code, saved.headers["location"]) == (303, page)
    job = client.get(f"/jobs/{job_id}").json()
    assert (job["note"], job["tags"]) == ("see\nhttps://example.org/<b>", ['say "x"', '"b"', "a,b", "new"])
    assert job["name"] != "first"
    assert "see\n<a" in signed_in_browser.get(page).text
    foreign = {"Origin": "https://elsewhere.example"}
    assert signed_in_browser.post(page, data={"note": "x"}, headers=foreign).status_code == 403
    assert anonymous_client.post(page, data={"note": "x"}).status_code == 401
