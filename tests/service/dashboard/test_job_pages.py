"""The list of jobs and the page of one, as a browser without scripts sees them."""

import json
import re
import threading
from html.parser import HTMLParser

from support.live_service import make_job_body

from core.jobs import metrics

EVIL = "<script>alert('x')</script>\" onload=alert(1) 🚀"


def made(client, **fields) -> str:
    answer = client.post("/jobs", json=make_job_body(**fields))
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def badges(page) -> list[str]:
    return re.findall(r'<span class="badge \w+"><span class="dot" aria-hidden="true"></span>(\w+)</span>', page.text)


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
    """Return whether a page's only script is our file; fail on a handler, style or foreign address in its markup."""
    markup = Markup(page.text)
    assert markup.risky == []
    return len(markup.scripts) == 1 and re.fullmatch(r"/ui/static/\w+/page\.js", markup.scripts[0]) is not None


def test_before_the_first_job_the_page_says_how_to_submit_one(signed_in_browser):
    page = signed_in_browser.get("/ui/jobs")
    assert "No jobs yet" in page.text
    assert "gradient-cli jobs create --machineType CPU" in page.text
    assert 'data-live="yes"' in page.text


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
    assert badges(page) == ["Pending", "Running", "Cancelled", "Error", "Failed", "Stopped"]
    assert "Exit code 137: the command was killed" in page.text
    assert "The workspace could not be unpacked: no such file" in page.text
    assert "Waiting for a free machine." in page.text
    assert no_script(page)
    for job in client.get("/jobs").json()["jobs"]:
        shown = signed_in_browser.get(f"/ui/jobs/{job['id']}")
        assert (shown.status_code, badges(shown)) == (200, [job["state"]])
        assert ('data-live="yes"' in shown.text) == (job["state"] in {"Pending", "Running"})
        assert ('action="/ui/jobs/' + job["id"] + '/stop"' in shown.text) == (job["state"] in {"Pending", "Running"})
        assert no_script(shown)


def test_the_list_is_narrowed_and_paged_without_scripts(signed_in_browser, client, monkeypatch):
    monkeypatch.setattr("service.dashboard.job_pages.PAGE_JOBS", 2)
    names = [f"job-{number}" for number in range(5)]
    for name in names:
        made(client, name=name, project="vision" if name in {"job-1", "job-3"} else "default")
    client.post(f"/jobs/{made(client, name='job-5')}/stop")
    seen, address = [], "/ui/jobs?state=Pending"
    while address:
        page = signed_in_browser.get(address)
        seen += re.findall(r">(job-\d)</a>", page.text)
        following = re.search(r'<a href="([^"]+)" rel="next">', page.text)
        address = following[1].replace("&amp;", "&") if following else None
    assert seen == names[::-1]
    vision = signed_in_browser.get("/ui/jobs?project=vision&state=Pending,Running")
    assert re.findall(r">(job-\d)</a>", vision.text) == ["job-3", "job-1"]
    assert '<option value="vision" selected>vision (2)</option>' in vision.text
    assert "No jobs here." in signed_in_browser.get("/ui/jobs?state=Error").text


def test_a_state_or_page_that_cannot_be_is_explained(signed_in_browser):
    for query in ("state=Nonsense", "after=nonsense"):
        answer = signed_in_browser.get(f"/ui/jobs?{query}")
        assert (answer.status_code, "<h1>That cannot be done</h1>" in answer.text) == (400, True)


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
    for address in ("/ui/jobs", f"/ui/jobs/{job_id}", f"/ui/jobs/{job_id}/artifacts"):
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
        "2 h 00 min",
        "nightly",
        "1 of 3",
        "The command ended with exit code 0.",
        "epoch 1\nepoch 2\n",
        "<code>WANDB_API_KEY</code>",
        "••••••",
        "0.5</td>",
    ):
        assert text in page.text, text
    assert "abcdef" not in page.text
    phases = re.findall(r'<rect class="p\d ([\w-]+)" x=', page.text)
    assert phases == ["queued", "provisioning", "running", "collecting"]
    events = client.get(f"/jobs/{job_id}/events").json()["events"]
    assert page.text.count("<time ") >= len(events)


def test_a_time_is_exact_without_scripts(signed_in_browser, client):
    job = client.get(f"/jobs/{made(client)}").json()
    created = job["createdAt"]
    day, second = created[:10], created[11:19]
    text = f'<time datetime="{created}" title="{day} {second} UTC">{day} {second[:5]} UTC</time>'
    assert text in signed_in_browser.get("/ui/jobs").text


def test_attempts_are_told_apart(signed_in_browser, client, worker):
    job_id = made(client, maxAttempts=2)
    worker.end(worker.start(), "killed", exit_code=137)
    with_retry = signed_in_browser.get(f"/ui/jobs/{job_id}")
    assert badges(with_retry) == ["Pending"]
    client.post(f"/jobs/{job_id}/stop")
    assert "was killed (SIGKILL)" in signed_in_browser.get(f"/ui/jobs/{job_id}").text


def test_what_a_script_fetches_anew_leaves_out_the_log(signed_in_browser, client, worker, stores):
    job_id = made(client)
    worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"spoken words\n", 1000)
    assert "spoken words" in signed_in_browser.get(f"/ui/jobs/{job_id}").text
    assert "spoken words" not in signed_in_browser.get(f"/ui/jobs/{job_id}?part=live").text


def test_a_long_log_shows_its_end(signed_in_browser, client, worker, stores):
    job_id = made(client)
    worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"".join(b"line %d\n" % number for number in range(1, 601)), 1000)
    page = signed_in_browser.get(f"/ui/jobs/{job_id}").text
    assert "line 600\n" in page
    assert "line 101\n" in page
    assert "line 100\n" not in page
    assert "The last 500 lines." in page


def test_stop_clone_and_delete_are_forms(signed_in_browser, client, wake_calls):
    job_id = made(client, name="first")
    wake_calls.clear()
    assert signed_in_browser.post(f"/ui/jobs/{job_id}/stop").headers["location"] == f"/ui/jobs/{job_id}"
    assert client.get(f"/jobs/{job_id}").json()["state"] == "Cancelled"
    assert wake_calls
    key = re.search(r'name="key" value="([^"]+)"', signed_in_browser.get(f"/ui/jobs/{job_id}").text)[1]
    clone = signed_in_browser.post(f"/ui/jobs/{job_id}/clone", data={"key": key}).headers["location"]
    assert clone != f"/ui/jobs/{job_id}"
    assert f'href="/ui/jobs/{job_id}"' in signed_in_browser.get(clone).text
    assert signed_in_browser.post(f"/ui/jobs/{job_id}/delete").headers["location"] == "/ui/jobs"
    assert signed_in_browser.get(f"/ui/jobs/{job_id}").status_code == 404


def test_a_double_click_on_clone_makes_one_job(signed_in_browser, client):
    job_id = made(client)
    key = re.search(r'name="key" value="([^"]+)"', signed_in_browser.get(f"/ui/jobs/{job_id}").text)[1]
    answers = []

    def click():
        answers.append(signed_in_browser.post(f"/ui/jobs/{job_id}/clone", data={"key": key}).headers["location"])

    clicks = [threading.Thread(target=click) for _ in range(4)]
    for one in clicks:
        one.start()
    for one in clicks:
        one.join()
    assert len(set(answers)) == 1
    assert len(client.get("/jobs").json()["jobs"]) == 2


def test_the_log_is_followed_with_the_cookie_alone(signed_in_browser, client, worker, stores):
    job_id = made(client)
    job = worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"hello\n", 1000)
    worker.end(job, exit_code=0)
    with signed_in_browser.stream("GET", f"/jobs/{job_id}/logs", headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200
        data = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert "hello" in [one.get("message") for one in data]
    assert data[-1]["state"] == "Stopped"
