"""The first page, the list of jobs and the page of machines, without scripts."""

import html
import re
from dataclasses import replace

import pytest
from support.job_table import columns, names
from support.live_service import OFFER, FakeWorker, make_job_body

from core.jobs.scheduling import workers
from core.jobs.tracking import metrics


@pytest.fixture
def submit(client):
    def submit(**fields):
        answer = client.post("/jobs", json=make_job_body(**fields))
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    return submit


def test_the_first_page_shows_what_runs_waits_and_failed(signed_in_browser, submit, worker, database, stores):
    assert "No jobs yet" in signed_in_browser.get("/ui").text
    submit(name="broken")
    failed = worker.start()
    with stores.logs.open_writer(failed.id, 1) as log:
        log.append(b'Traceback (most recent call last):\n  File "a.py", line 7, in <module>\n', 1_700_000_000_000)
        log.append(b"    f()\nValueError: bad <shape>\n", 1_700_000_000_000)
    worker.end(failed, "exit_nonzero", exit_code=1)
    submit(name="trains", timeLimit=600)
    running = worker.start()
    row = {"job_id": running.id, "attempt": 1, "source": "job", "at": running.created_at}
    with database.write() as session:
        values = [{"lr": 0.1, "val_accuracy": value} for value in (0.1, 0.5, 0.9)]
        metrics.add(session, [row | {"offset": n, "step": n, "values": one} for n, one in enumerate(values)])
    submit(name="waits", machineType="GPU+")
    page = signed_in_browser.get("/ui").text
    first, _, then = page.partition("ValueError")
    assert "The command ended with" not in first, "the error comes first"
    assert "line 7 of <code>a.py</code>" in then.partition("The command ended with")[0]
    assert '<span class="badge cannot-start">' in page, "no worker offers GPU+"
    assert "<title>1 running, 1 failed" in page
    assert "ValueError: bad &lt;shape&gt;" in page
    assert '<polyline points="0.0,22.0 60.0,12.0 120.0,2.0"/>' in page
    assert re.search(r"val_accuracy</span> 0.9<", page)
    assert re.search(r"at most 9 min \d+ s|at most 10 min 00 s", page)
    figures = dict(re.findall(r'id="n-(\w+)" href="[^"]+">([^<]+)<', page))
    assert figures == {"running": "1", "waiting": "0", "failed": "1", "stuck": "1"}, "what cannot start does not wait"
    assert "icon-failed.svg" in page
    assert 'data-live="yes"' in page


@pytest.mark.parametrize(
    ("printed", "reason", "line"),
    [
        ("epoch 1\nmain.py: error: unrecognized arguments: --rates\n", "exit_nonzero", "main.py: error: unrec"),
        ('  File "a.py", line 1, in <module>\n    raise Boom("x")\nBoom: x\nbye\n', "exit_nonzero", "Boom: x"),
        ("2026-01-01 12:00 [rank0] ERROR loss is nan\nbye\n", "exit_nonzero", "2026-01-01 12:00 [rank0] ERROR loss"),
        ("bash: line 1: ./run: Permission denied\n", "exit_nonzero", "bash: line 1: ./run: Permission"),
        ("shard 12\n", "exit_nonzero", None),
        ("error rate 0.25\nerror: 0.25\nval_error=0.1\n0 errors\n", "exit_nonzero", None),
        ("while True:\n  x.append(1)\nMemoryError\n", "out_of_memory", "MemoryError"),
        ("Terminated\n", "time_limit", None),
    ],
)
def test_a_line_of_the_log_is_the_cause_only_if_it_looks_like_an_error(
    signed_in_browser, submit, worker, stores, printed, reason, line
):
    submit(name="broken")
    failed = worker.start()
    with stores.logs.open_writer(failed.id, 1) as log:
        log.append(printed.encode(), 1_700_000_000_000)
    worker.end(failed, reason, exit_code=1)
    found = [
        re.search(r'<small class="why cause"><code>([^<]*)', signed_in_browser.get(page).text)
        for page in ("/ui", "/ui/jobs", f"/ui/jobs/{failed.id}")
    ]
    assert [one and one[1].startswith(line or "") for one in found] == [line and True] * 3
    last = re.search(r'why last">Last line: <code>([^<]*)', signed_in_browser.get("/ui").text)
    assert (last and last[1]) == (None if line else printed.splitlines()[-1])
    row = signed_in_browser.get("/ui/jobs").text.partition("<tbody>")[2]
    assert line is None or row.index("why cause") < row.index('class="why" title='), (
        "a list has room for the cause alone"
    )


def test_a_list_has_chips_states_and_sorted_columns(signed_in_browser, submit):
    submit(name="a", project="nlp", tags=["x"])
    submit(name="b", project="nlp")
    page = signed_in_browser.get("/ui/jobs", params={"q": "project:nlp state:pending", "sort": "name"})
    assert names(page.text) == ["a", "b"]
    assert 'value="project:nlp state:pending"' in page.text
    assert "2 jobs" in page.text
    chosen = '<a class="chip chosen" data-stay="load" href="/ui/jobs?q=project%3Anlp+state%3Apending&amp;sort=name">'
    assert f"{chosen}Pending 2" in page.text
    down = re.search(r'aria-sort="ascending"[^>]*><a data-stay href="([^"]+)">Job</a>', page.text)[1]
    assert names(signed_in_browser.get(html.unescape(down)).text) == ["b", "a"]
    assert columns(signed_in_browser.get("/ui/jobs?cols=nosuch,cost").text)["nosuch"] == ("\N{EN DASH}",) * 2


def test_an_array_is_a_row_with_its_best_value_and_opens_in_place(signed_in_browser, client, submit, worker, database):
    worker.register()
    array = client.post("/jobs", json=make_job_body(name="four", array="0,1,2,3")).json()["arrayId"]
    losses = [0.4, 0.1, 0.3]
    for loss in losses:
        job = worker.start()
        row = {"job_id": job.id, "attempt": 1, "source": "job", "at": job.created_at, "offset": 0, "step": 0}
        with database.write() as session:
            metrics.add(session, [row | {"values": {"val_loss": loss}}])
        worker.end(job, exit_code=0)
    submit(name="alone")
    folded = signed_in_browser.get("/ui/jobs")
    assert names(folded.text) == ["alone", "four"]
    assert "2 rows" in folded.text
    assert re.search(r"3/4</span>", folded.text)
    assert columns(folded.text)["val_loss"] == ("\N{EN DASH}", "0.1")
    best = client.get("/jobs", params={"q": "val_loss=0.1"}).json()["jobs"][0]["id"]
    assert f'data-run="{best}"' in signed_in_browser.get("/ui/jobs?charts=1").text, "the curve of the best member"
    opened = signed_in_browser.get(html.unescape(re.search(r'href="([^"]*open=[^"]*)"', folded.text)[1]))
    assert names(opened.text) == ["alone", "four", "four[3]", "four[2]", "four[1]", "four[0]"]
    assert f'name="ids" value="{array}"' in opened.text
    ordered = signed_in_browser.get("/ui/jobs?sort=metric.val_loss")
    assert names(ordered.text)[:3] == ["four[1]", "four[2]", "four[0]"], "an order by what members differ in shows them"


def test_a_page_of_a_phone_has_twenty_rows(signed_in_browser, submit):
    for number in range(21):
        submit(name=f"job-{number}")
    assert len(names(signed_in_browser.get("/ui/jobs").text)) == 21
    signed_in_browser.cookies.set("narrow", "1")
    page = signed_in_browser.get("/ui/jobs")
    assert len(names(page.text)) == 20
    assert "1\N{EN DASH}20 of 21 jobs" in page.text


def test_a_search_that_finds_nothing_says_what_would(signed_in_browser, submit, client):
    client.post(f"/jobs/{submit(name='resnet-1')}/stop")
    for query, meant in (
        ("cancelled", "state:cancelled (1)"),
        ("name:resnet*", "name:resnet (1)"),
        ("gpt OR name:resnet", "name:resnet (1)"),
    ):
        page = signed_in_browser.get("/ui/jobs", params={"q": query}).text
        assert re.findall(r'Did you mean <a class="chip" href="[^"]*">([^<]*)</a>', page) == [meant]
    assert "Did you mean" not in signed_in_browser.get("/ui/jobs", params={"q": "failed"}).text, "no job has"


def test_selected_jobs_are_stopped_tagged_deleted_and_compared(signed_in_browser, submit, client):
    ids = [submit(name=name) for name in ("a", "b")]
    form = {"ids": [*ids, "jnone"], "back": "/ui/jobs?q=tag%3Ax"}

    def act(action, **fields):
        answer = signed_in_browser.post("/ui/jobs/actions", data=form | {"action": action} | fields)
        return answer.status_code, answer.headers.get("location")

    assert act("tag", tag="x") == (303, "/ui/jobs?q=tag%3Ax&did=tag.2.1")
    page = signed_in_browser.get("/ui/jobs?q=tag%3Ax&did=tag.2.1").text
    assert "Tagged: 2 jobs. 1 could not be changed." in page
    assert act("stop", back="https://elsewhere.example") == (303, "/ui/jobs?did=stop.2.1")
    assert {client.get(f"/jobs/{one}").json()["state"] for one in ids} == {"Cancelled"}
    assert act("compare", ids=ids) == (303, f"/ui/jobs?ids={'%2C'.join(ids)}&charts=1")
    code, address = act("machines", ids=ids)
    assert (code, address[:16]) == (303, "/ui/comparisons/")
    assert signed_in_browser.get(address).status_code == 200
    assert act("delete")[0] == 303
    assert client.get("/jobs").json()["jobs"] == []
    for wrong in ({"ids": []}, {"tag": " ", "action": "tag"}, {"action": "dance"}):
        assert act(**({"action": "stop"} | wrong))[0] in {400, 422}


def test_a_worker_that_takes_no_jobs_says_why(signed_in_browser, database, submit):
    why = "The folder /srv <of this host> has no mark"
    with database.write() as session:
        workers.refuse(session, "gpu-box", why, host="gpu-box")
    submit(name="queued")
    page = signed_in_browser.get("/ui/machines").text
    assert re.search(r'gpu-box\s*<small class="why">The folder /srv &lt;of this host&gt; has no mark</small>', page)
    assert ">Refusing</span>" in page
    assert "does not take such jobs (The folder /srv &lt;of this host&gt; has no mark)." in page
    assert " of 0 slots" not in page


def test_figures_of_machine_types_are_written_out(signed_in_browser):
    page = signed_in_browser.get("/ui/machines").text
    assert ">18,000</td>" in page
    assert not re.search(r"\de\+\d", page)


def test_nodes_are_called_so(signed_in_browser, client):
    made = client.post("/jobs", json=make_job_body(nodes=2)).json()
    assert ">2 nodes</span>" in signed_in_browser.get("/ui/jobs").text
    assert "<dt>Nodes</dt>" in signed_in_browser.get(f"/ui/jobs/{made['id']}/config").text


def test_a_worker_is_drained_from_its_page(signed_in_browser, submit, client, worker, api_key):
    worker.register()
    name = client.get("/workers").json()["workers"][0]["name"]
    submit(name="queued")
    own_key = {"own_key": api_key}
    refused = signed_in_browser.post(f"/ui/machines/{name}/drain")
    assert (refused.status_code, "Enter the API key" in refused.text) == (403, True)
    assert client.get("/workers").json()["workers"][0]["state"] == "ready"
    page = signed_in_browser.get("/ui/machines").text
    assert f'action="/ui/machines/{name}/drain"' in page
    assert re.search(r"queued</a>", page)
    assert signed_in_browser.post(f"/ui/machines/{name}/drain", data=own_key).headers["location"] == "/ui/machines"
    assert client.get("/workers").json()["workers"][0]["state"] == "drained"
    assert f'action="/ui/machines/{name}/resume"' in signed_in_browser.get("/ui/machines").text
    assert signed_in_browser.post(f"/ui/machines/{name}/resume", data={"own_key": "gj_x"}).status_code == 403
    assert client.get("/workers").json()["workers"][0]["state"] == "drained"
    signed_in_browser.post(f"/ui/machines/{name}/resume", data=own_key)
    assert client.get("/workers").json()["workers"][0]["state"] == "ready"


@pytest.mark.parametrize("path", ["/ui/jobs/actions", "/ui/jobs/columns", "/ui/login"])
@pytest.mark.parametrize("bytes_of_other_codes", ["%ED%A0%80", "%FF", "x%C3"])
def test_a_form_that_is_not_utf_8_is_refused(signed_in_browser, path, bytes_of_other_codes):
    headers = {"content-type": "application/x-www-form-urlencoded"}
    answer = signed_in_browser.post(path, content=f"action=stop&name={bytes_of_other_codes}", headers=headers)
    assert answer.status_code == 400, answer.text
    assert "The form is not UTF-8" in answer.text


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/ui/jobs/actions", {"action": "stop", "ids": "a\0b"}),
        ("/ui/jobs/columns", {"columns": "\0"}),
        ("/ui/login", {"key": "a\0"}),
    ],
)
def test_a_nul_in_a_form_is_refused(signed_in_browser, path, fields):
    answer = signed_in_browser.post(path, data=fields)
    assert answer.status_code == 400, answer.text
    assert "the value contains a NUL character; remove it." in answer.text


def test_the_help_leads_to_the_description_of_the_api(signed_in_browser):
    [address] = re.findall(r'<a id="api" href="([^"]+)">', signed_in_browser.get("/ui").text)
    assert signed_in_browser.get(address).json()["openapi"]


def test_more_jobs_than_can_be_selected_are_said_to_be_too_many(signed_in_browser, submit, monkeypatch):
    monkeypatch.setattr("service.dashboard.runs_page.MOST_COUNTED", 2)
    submit(name="one")
    assert "narrow the query" not in signed_in_browser.get("/ui/jobs").text
    submit(name="two")
    assert "narrow the query" in signed_in_browser.get("/ui/jobs").text


def test_what_is_counted_and_sorted_of_a_part_says_so(signed_in_browser, submit, monkeypatch):
    """The counts and the cost of the newest jobs, an order of them, and the first members of an opened array."""
    monkeypatch.setattr("service.dashboard.runs_page.MOST_COUNTED", 4)
    monkeypatch.setattr("service.dashboard.runs_page.MOST_RUNS", 2)
    submit(array="a,b,c", name="three")

    def says():
        page = signed_in_browser.get("/ui/jobs?q=project:default+machine:CPU&sort=-cost").text
        return [text in page for text in ("cost of the newest 4 of these jobs", "Pending 4+", 'id="sorted-part"')]

    assert says() == [False] * 3
    address = re.search(r'data-stay href="([^"]*)" aria-label="Open three"', signed_in_browser.get("/ui/jobs").text)[1]
    assert "array of 3, 2 shown" in signed_in_browser.get(html.unescape(address)).text
    for _ in range(4):
        submit()
    assert says() == [True] * 3
    assert "sorted-part" not in signed_in_browser.get("/ui/jobs?sort=created").text, "in the order of the table"


def test_the_part_of_the_queue_in_which_the_pages_look_is_said(signed_in_browser, submit, stores, monkeypatch):
    monkeypatch.setattr("service.dashboard.lists.now_page._QUEUED_JOBS", 2)
    monkeypatch.setattr("service.dashboard.lists.machines._QUEUED_JOBS", 2)
    FakeWorker(stores, replace(OFFER, machine_types=("CPU",))).register()
    submit(machineType="V100")
    submit()

    def says():
        return [
            re.search(r'id="n-stuck"[^>]*>([^<]*)<', signed_in_browser.get("/ui").text)[1],
            "The first 2 jobs by priority and age." in signed_in_browser.get("/ui/machines").text,
        ]

    assert says() == ["1+", True]
    monkeypatch.setattr("service.dashboard.lists.now_page._QUEUED_JOBS", 3)
    monkeypatch.setattr("service.dashboard.lists.machines._QUEUED_JOBS", 3)
    assert says() == ["1", False]
