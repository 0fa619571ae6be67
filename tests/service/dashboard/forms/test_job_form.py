"""The form of a new job, as a browser without scripts uses it."""

import html
import io
import re
import zipfile

import pytest
from support.live_service import make_job_body

from core.jobs import queries
from core.jobs.templates.sweeps import sweeps
from service.dashboard.forms.job_fields import FIELDS

PAGE = "/ui/jobs/new"


def send(browser, action="submit", files=(), **fields):
    """Send the form as a browser does: the text fields, then the files."""
    parts = [(name, (None, text)) for name, text in {"action": action, **fields}.items()]
    parts += [("files", file) for file in files] or [("files", ("", b""))]
    return browser.post(PAGE, files=parts)


def field_error(page, name):
    found = re.search(rf'<small class="field-error" id="{name}-error">(.*?)</small>', page.text, re.DOTALL)
    return found and html.unescape(re.sub(r"<[^>]+>", "", found[1]))


def value_of(page, name):
    found = re.search(rf'<(?:input|textarea) id="{name}" name="{name}"[^>]*>\n?([^<]*)', page.text)
    value = re.search(r' value="([^"]*)"', found[0])
    return html.unescape(value[1] if value else found[1])


def text_of_plan(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.text.partition('<dl id="plan">')[2].partition("</dl>")[0]))


def changed_fields(page):
    return re.findall(r'class="field changed"[^>]* data-field="(\w+)"', page.text)


def job_at(client, answer):
    assert answer.status_code == 303, answer.text
    return client.get(f"/jobs/{answer.headers['location'].rpartition('/')[2]}").json()


def test_a_filled_form_submits_a_job_and_leads_to_it(signed_in_browser, client):
    answer = send(
        signed_in_browser,
        machineType="CPU",
        command="echo one\r\necho two",
        name="from a form",
        project="forms",
        envVars='A=1\r\n# not this\r\nB="two\\nlines"',
        tags='x, "y, z"',
        timeLimit="1h30m",
        maxAttempts="2",
        cpus="1.5",
        outputs="out/**",
    )
    job = job_at(client, answer)
    assert (job["name"], job["project"], job["command"]) == ("from a form", "forms", "echo one\necho two")
    assert (job["envVars"], job["tags"]) == ({"A": "1", "B": "two\nlines"}, ["x", "y, z"])
    assert (job["timeLimit"], job["maxAttempts"], job["cpus"], job["outputs"]) == (5400, 2, 1.5, ["out/**"])


def test_a_mistake_keeps_what_was_typed_and_is_explained_at_its_field(signed_in_browser, client):
    page = send(
        signed_in_browser,
        machineType="Abacus",
        command="python main.py",
        envVars="no value",
        timeLimit="soon",
        priority="1000",
        name="kept <b>",
    )
    assert page.status_code == 422
    assert "Abacus" in field_error(page, "machineType")
    assert field_error(page, "envVars") == "Line 1: 'no value' has no value. Write NAME=VALUE."
    assert field_error(page, "timeLimit") == "'soon' is not a duration. Write 90m, 1h30m, 2d, or seconds."
    assert "0 to 100" in field_error(page, "priority")
    assert "refused for 4 reasons" in page.text
    assert [value_of(page, name) for name in ("command", "envVars", "timeLimit", "priority", "name")] == [
        "python main.py",
        "no value",
        "soon",
        "1000",
        "kept <b>",
    ]
    assert client.get("/jobs").json()["jobs"] == []


def test_a_check_shows_price_ceiling_and_place_and_submits_nothing(signed_in_browser, client, worker):
    worker.register()
    client.post("/jobs", json=make_job_body())
    page = send(
        signed_in_browser, "check", machineType="CPU", command="true", timeLimit="2h", maxAttempts="3", project="new"
    )
    assert page.status_code == 200
    plan = text_of_plan(page)
    price = client.get("/machine-types").json()["machineTypes"]
    per_hour = next(one["pricePerHour"] for one in price if one["name"] == "CPU")
    assert f"Maximum cost ${per_hour * 6:.2f} " in plan or f"Maximum cost ${per_hour * 6:.4f} " in plan
    assert "place 2" in plan
    assert len(client.get("/jobs").json()["jobs"]) == 1


def test_an_empty_form_says_what_is_required(signed_in_browser):
    page = send(signed_in_browser)
    assert (field_error(page, "machineType"), field_error(page, "command")) == ("Required.", "Required.")


@pytest.mark.parametrize("what", ["archive", "files", "folder"])
def test_uploaded_files_are_the_workspace_and_are_kept_after_a_mistake(signed_in_browser, client, stores, what):
    if what == "archive":
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("main.py", "print(1)")
            archive.writestr("data/x.txt", "x")
        files = [("code.zip", packed.getvalue())]
    else:
        top = "code/" if what == "folder" else ""
        files = [(f"{top}main.py", b"print(1)"), (f"{top}data/x.txt" if top else "x.txt", b"x")]
        files += [(f"{top}.git/config", b"secret")] if top else []
    page = send(signed_in_browser, machineType="CPU", command="true", priority="x", files=files)
    assert page.status_code == 422
    chosen = send(signed_in_browser, "check", machineType="CPU", command="true", source="files", chosen="1")
    assert "In the folder of your files" in chosen.text
    for element in ("command-line", "project-file"):
        assert "workspace" not in re.search(rf'id="{element}"[^>]*>([^<]*)', chosen.text)[1]
    assert "Uploaded:" in page.text
    sha256 = re.search(r'name="workspaceSha256" value="(\w{64})"', page.text)[1]
    job = job_at(
        client, send(signed_in_browser, machineType="CPU", command="true", source="files", workspaceSha256=sha256)
    )
    assert job["workspaceSha256"] == sha256
    files = stores.workspaces.list_files(stores.workspaces.stat(sha256))
    assert files.keys() == {"main.py", "x.txt" if what == "files" else "data/x.txt"}


@pytest.mark.parametrize(
    ("fields", "files", "words"),
    [
        ({"source": "files"}, [], "Choose files"),
        ({"source": "git"}, [], "address of the repository"),
        ({"source": "git", "workspace": "ftp://x/y"}, [], "not a git address"),
        ({"source": "job", "workspaceOf": "jnone"}, [], "No such job"),
        ({"workspace": "https://example.org/x.git"}, [], "None is selected"),
        ({}, [("a.zip", b"not a zip")], "zip"),
        ({}, [("a/../../b", b"x")], ".."),
        ({}, [("a", b"x"), ("a", b"y")], "Two files"),
        ({}, [(f"f{n}", b"") for n in range(1001)], "Too many files"),
    ],
)
def test_a_workspace_that_cannot_be_used_is_explained(signed_in_browser, client, fields, files, words):
    page = send(signed_in_browser, machineType="CPU", command="kept", files=files, **fields)
    assert page.status_code == 422
    assert words in field_error(page, "workspace")
    assert value_of(page, "command") == "kept"
    assert client.get("/jobs").json()["jobs"] == []


def test_a_clone_opens_filled_and_marks_what_differs(signed_in_browser, client):
    body = make_job_body(
        name="first", command="echo one\necho two", envVars={"LR": "0.1", "API_TOKEN": "hush"}, timeLimit=5400
    )
    parent = client.post("/jobs", json=body).json()["id"]
    assert f'href="/ui/jobs/new?from={parent}"' in signed_in_browser.get(f"/ui/jobs/{parent}").text
    page = signed_in_browser.get(f"{PAGE}?from={parent}")
    texts = {name: value_of(page, name) for name in ("name", "command", "envVars", "timeLimit", "project")}
    assert texts["command"] == "echo one\necho two"
    assert (texts["timeLimit"], texts["project"]) == ("1h30m", "default")
    assert "hush" not in page.text
    assert not changed_fields(page)
    changed = texts | {"envVars": texts["envVars"].replace("0.1", "0.2"), "machineType": "CPU", "from": parent}
    page = send(signed_in_browser, "check", **changed)
    assert changed_fields(page) == ["envVars"]
    assert "was <code>LR=0.1" in page.text
    job = job_at(client, send(signed_in_browser, **changed))
    assert (job["parentJobId"], job["envVars"]["LR"], job["command"]) == (parent, "0.2", "echo one\necho two")


def test_hidden_values_are_those_of_the_cloned_job(signed_in_browser, client, stores):
    parent = client.post("/jobs", json=make_job_body(envVars={"API_TOKEN": "hush"})).json()["id"]
    texts = {"machineType": "CPU", "command": "true", "from": parent}
    page = signed_in_browser.get(f"{PAGE}?from={parent}")
    job = job_at(client, send(signed_in_browser, **texts, envVars=value_of(page, "envVars")))
    with stores.database.read() as session:
        assert queries.get(session, job["id"]).spec.env_vars == {"API_TOKEN": "hush"}
    assert "hush" not in send(signed_in_browser, "check", **texts, envVars=value_of(page, "envVars")).text


def test_a_workspace_of_an_earlier_job_is_used_again(signed_in_browser, client):
    earlier = client.post("/jobs", json=make_job_body(workspace="https://example.org/x.git#main")).json()["id"]
    job = job_at(client, send(signed_in_browser, machineType="CPU", command="true", source="job", workspaceOf=earlier))
    assert job["workspace"] == "https://example.org/x.git#main"


@pytest.mark.parametrize(
    ("files", "given"),
    [
        ([("main.py", b"print()")], {"source": "files"}),
        ([], {"source": "git", "workspace": "https://example.org/x.git"}),
        ([], {"source": "none"}),
    ],
    ids=lambda value: value["source"] if isinstance(value, dict) else "",
)
def test_a_clone_marks_its_workspace_if_that_differs(signed_in_browser, files, given):
    fields = {"machineType": "CPU", "command": "true", "project": "default"}
    parent = send(signed_in_browser, files=files, **fields, **given).headers["location"].rpartition("/")[2]
    same = fields | {"from": parent} | ({"source": "job", "workspaceOf": parent} if files else given)
    assert not changed_fields(signed_in_browser.get(f"{PAGE}?from={parent}"))
    assert changed_fields(send(signed_in_browser, "check", **same)) == []
    other = {"source": "git", "workspace": "https://example.org/other.git"}
    assert changed_fields(send(signed_in_browser, "check", **same | other)) == ["workspace"]


def test_a_chosen_secret_is_an_environment_variable(signed_in_browser, client):
    client.put("/secrets/HF_TOKEN", json={"value": "hidden-value"})
    assert "<code>HF_TOKEN</code>" in signed_in_browser.get(PAGE).text
    job = job_at(client, send(signed_in_browser, machineType="CPU", command="true", secret="HF_TOKEN"))
    assert job["envVars"] == {"HF_TOKEN": "secret:HF_TOKEN"}
    page = send(signed_in_browser, machineType="CPU", command="true", envVars="X=secret:NONE")
    assert "No secret named 'NONE'" in field_error(page, "envVars")


def test_sent_twice_it_makes_one_job_and_changed_it_is_asked_again(signed_in_browser, client):
    key = re.search(r'name="key" value="([^"]+)"', signed_in_browser.get(PAGE).text)[1]
    first, second = (send(signed_in_browser, machineType="CPU", command="true", key=key) for _ in range(2))
    assert first.headers["location"] == second.headers["location"]
    page = send(signed_in_browser, machineType="CPU", command="false", key=key)
    assert "already submitted" in page.text
    fresh = re.search(r'name="key" value="([^"]+)"', page.text)[1]
    assert fresh != key
    assert job_at(client, send(signed_in_browser, machineType="CPU", command="false", key=fresh))["command"] == "false"
    assert len(client.get("/jobs").json()["jobs"]) == 2


SWEEP = {"kind": "sweep", "space": "lr=0.1,0.2\r\nopt=adam,sgd", "metric": "loss:min", "trials": "3"}
SCHEDULE = {"kind": "schedule", "cron": "0 3 * * *", "timezone": "Europe/Berlin", "onOverlap": "skip"}
COMPARISON = {"kind": "comparison", "machineTypes": "CPU", "repeats": "2", "serial": "on", "metric": "acc:max"}


@pytest.mark.parametrize(
    ("fields", "plan", "path", "made"),
    [
        (
            SWEEP,
            "Trials 3",
            "/sweeps",
            {"maxTrials": 3, "metric": "loss", "space": {"lr": "0.1,0.2", "opt": "adam,sgd"}},
        ),
        (SCHEDULE, "03:00 CE", "/schedules", {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "onOverlap": "skip"}),
        (COMPARISON, "Jobs 2", "/comparisons", {"jobs": 2, "metric": "acc"}),
    ],
    ids=["sweep", "schedule", "comparison"],
)
def test_the_form_checks_and_makes_what_has_several_jobs(signed_in_browser, client, fields, plan, path, made):
    fields = {
        "machineType": "CPU",
        "command": "true",
        "name": "of jobs",
        "project": "forms",
        "timeLimit": "2h",
    } | fields
    page = send(signed_in_browser, "check", **fields)
    assert plan in text_of_plan(page)
    assert "Maximum cost $" in text_of_plan(page)
    assert client.get(path).json()[path[1:]] == []
    key = re.search(r'name="key" value="([^"]+)"', page.text)[1]
    first, second = (send(signed_in_browser, **fields, key=key) for _ in range(2))
    assert first.status_code == 303, field_error(first, "") or first.text
    assert first.headers["location"] == second.headers["location"]
    shown = client.get(first.headers["location"].removeprefix("/ui")).json()
    assert {name: shown[name] for name in made} == made
    assert shown["name"] == "of jobs"


@pytest.mark.parametrize(
    ("fields", "errors"),
    [
        ({"kind": "sweep"}, {"space": "Required", "metric": "Give metric", "trials": "Nothing ends this sweep"}),
        ({**SWEEP, "space": "lr=1..x", "trials": "9"}, {"space": "not a range"}),
        ({**SWEEP, "array": "0-9"}, {"array": "Only a single job can be an array"}),
        ({"kind": "schedule"}, {"cron": "Required"}),
        (
            {**SCHEDULE, "timezone": "Mars", "timeLimit": "soon"},
            {"timezone": "not a time zone", "timeLimit": "duration"},
        ),
        ({**SCHEDULE, "after": "jnone"}, {"after": "decides when its jobs start"}),
        ({**COMPARISON, "repeats": "1"}, {"machineType": "a comparison has 2"}),
        ({"kind": "comparison"}, {"machineType": "Required"}),
        ({**COMPARISON, "envVars": "SEED=x"}, {"envVars": "whole number"}),
    ],
)
def test_each_mistake_in_what_has_several_jobs_is_explained_at_its_field(signed_in_browser, client, fields, errors):
    page = send(signed_in_browser, **{"machineType": "CPU", "command": "kept"} | fields)
    assert page.status_code == 422
    assert {name for name in FIELDS if field_error(page, name)} == errors.keys()
    for name, words in errors.items():
        assert words in field_error(page, name)
    assert value_of(page, "command") == "kept"
    assert f'id="kind-{fields["kind"]}" name="kind" value="{fields["kind"]}" checked' in page.text
    assert client.get("/jobs").json()["jobs"] == []
    page = send(signed_in_browser, "typing", **{"machineType": "CPU", "command": "kept"} | fields)
    filled = {name for name in errors if fields.get(name) or fields.get(f"{name}s")}
    assert {name for name in FIELDS if field_error(page, name)} == filled, "nothing is said of what may be typed yet"
    assert ("would be refused" in page.text) == bool(filled)


def test_a_sweep_like_a_job_gets_its_hidden_values(signed_in_browser, client, stores):
    parent = client.post("/jobs", json=make_job_body(envVars={"API_TOKEN": "hush"})).json()["id"]
    page = signed_in_browser.get(f"{PAGE}?from={parent}&kind=sweep")
    fields = {"machineType": "CPU", "command": "true", "from": parent, "envVars": value_of(page, "envVars"), **SWEEP}
    answer = send(signed_in_browser, **fields)
    assert answer.status_code == 303, answer.text
    with stores.database.read() as session:
        sweep = sweeps.get(session, answer.headers["location"].rpartition("/")[2])
        assert sweep.spec.env_vars == {"API_TOKEN": "hush"}


@pytest.mark.parametrize(
    ("params", "others", "said"),
    [
        ("lr=0.003\r\nseed=1", {"command": "x --lr 0.1 --seed 1.0"}, {"lr": "the command says 0.1"}),
        ("batch-size=8", {"command": "x --batch-size=16"}, {"batch-size": "the command says 16"}),
        ("LR=1", {"command": "x", "envVars": "LR=2"}, {"LR": "the environment variable says 2"}),
        ("lr=0.003", {"command": "x", **SWEEP}, {"lr": "the sweep tries values of it"}),
        ("lr=0.003", {"command": "x --lr 3e-3 --wd 0", "envVars": "wd=1"}, {}),
    ],
)
def test_a_recorded_parameter_that_something_contradicts_can_be_dropped(signed_in_browser, params, others, said):
    fields = {"machineType": "CPU", "params": params} | others
    page = send(signed_in_browser, "check", **fields)
    notes = re.findall(r'<small class="conflict"><code>(.*?)</code> is recorded as .*?, but (.*?)\. <button', page.text)
    assert dict(notes) == said
    for name in said:
        assert f'name="drop" value="{name}"' in page.text
        page = send(signed_in_browser, "", drop=name, **fields)
        assert page.status_code == 200
        assert 'class="conflict"' not in page.text
        assert f"{name}=" not in value_of(page, "params")
    assert ("seed=1" in value_of(page, "params")) == ("seed=1" in params)


def test_advanced_options_are_unfolded_if_they_have_values_or_errors(signed_in_browser, client):
    folded = '<details id="other-options" class="section">'
    assert folded in signed_in_browser.get(f"{PAGE}?params=seed=1").text.partition('id="params"')[2], "shown always"
    assert folded not in signed_in_browser.get(f"{PAGE}?outputs=out").text
    assert folded not in send(signed_in_browser, machineType="CPU", command="true", nodes="0").text
    client.post("/jobs", json=make_job_body(command="echo again"))
    assert 'data-fill="command" value="echo again"' in signed_in_browser.get(PAGE).text


@pytest.mark.parametrize("query", ["clone=x", "from=jnone", "kind=array", "colour=red"])
def test_the_form_of_what_does_not_exist_is_not_found(signed_in_browser, query):
    assert signed_in_browser.get(f"{PAGE}?{query}").status_code == 404
