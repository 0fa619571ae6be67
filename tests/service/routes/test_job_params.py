"""Parameters of jobs: given, read from commands and variables, searched, sorted, cloned, and shown."""

import pytest
from support.live_service import make_job_body

from core.jobs.tracking import params


@pytest.fixture
def submit(client):
    def submit(name, **fields):
        answer = client.post("/jobs", json=make_job_body(name=name, **fields))
        assert answer.status_code == 201, answer.text
        return answer.json()

    return submit


@pytest.fixture
def sweep(submit):
    """Three jobs by the ways in which parameters are given, and one without any."""
    submit("given", params={"lr": 0.01, "opt": "adam", "amp": True})
    submit("named", command="python train.py --lr 1e-3 --opt=sgd --batch-size 32")
    submit("variable", envVars={"lr": "0.1", "API_KEY": "hidden", "FROM": "secret-free"})
    submit("none")


def names(client, **query):
    answer = client.get("/jobs", params=query)
    assert answer.status_code == 200, answer.text
    return [job["name"] for job in answer.json()["jobs"]]


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python t.py --lr 0.01 --opt adam", {"lr": 0.01, "opt": "adam"}),
        ("python t.py --lr=1e-4 --seed=7", {"lr": 0.0001, "seed": 7}),
        ("python t.py --batch-size 32 --optim.lr .5", {"batch_size": 32, "optim.lr": 0.5}),
        ("python t.py --momentum -0.9 --amp --lr 2", {"momentum": -0.9, "lr": 2}),
        ("python t.py --note 'two words' --flag", {"note": "two words"}),
        ("python t.py \\\n  --lr 0.1 \\\n  --epochs 3", {"lr": 0.1, "epochs": 3}),
        ("python a.py --quiet && python b.py --lr 3; echo --x", {"lr": 3}),
        ("python a.py --flag\npython b.py --lr 3", {"lr": 3}),
        ("python a.py --lr 1; python a.py --lr 2", {"lr": 2}),
        ("python a.py --lr 0.1 >log --depth 4", {"lr": 0.1, "depth": 4}),
        ('python a.py --out $HOME --lr "$LR" --n `nproc`', {}),
        ("python -c 'print(\"--lr 3\")' -v -x 4", {}),
        ("python a.py --lr 3 'open", {"lr": 3}),
        ("python a.py --wd 1 --- --1 2 -- x --note=", {"wd": 1}),
        (f"python a.py --long {'x' * 501} --lr 1", {"lr": 1}),
        ("python a.py --hf-token abc --api-key=x1 --tokenizer bpe --max-token 7", {"tokenizer": "bpe", "max_token": 7}),
        ("echo --", {}),
    ],
)
def test_a_command_names_parameters(client, submit, command, found):
    job = submit("a", command=command)
    assert job["params"] == found
    assert names(client, q=" ".join(f'{name}="{value}"' for name, value in found.items())) == ["a"]


def test_what_is_given_goes_before_the_command_and_that_before_variables(client, submit):
    variables = {"lr": "1", "wd": "2", "seed": "3", "API_TOKEN": "hidden", "KEEP": "x" * 600}
    job = submit("a", command="t --lr 10 --wd 20", envVars=variables, params={"lr": 100})
    assert job["params"] == {"lr": 100, "wd": 20, "seed": 3}
    assert client.get(f"/jobs/{job['id']}").json()["params"] == job["params"]
    dry = client.post("/jobs?dryRun=true", json=make_job_body(command="t --lr 10")).json()
    assert dry["job"]["params"] == {"lr": 10}


def test_values_keep_their_types(client, submit):
    given = {"a": 1, "b": 2.5, "c": "1e-3", "d": "text", "e": True, "f": "false", "g/h-i.j": "", "n": -3}
    job = submit("a", params=given)
    assert client.get(f"/jobs/{job['id']}").json()["params"] == given | {"c": 0.001, "f": False}


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("lr=0.01", ["given"]),
        ("lr=1e-2", ["given"]),
        ("lr<1e-2", ["named"]),
        ("params.lr<=0.01", ["named", "given"]),
        ("lr>0.001 lr<0.1", ["given"]),
        ("opt=adam", ["given"]),
        ("params.opt=sgd batch_size=32", ["named"]),
        ("amp=true", ["given"]),
        ("FROM=secret-free", ["variable"]),
        ("opt=Adam", []),
        ("metric.lr>0", []),
    ],
)
def test_jobs_are_found_by_parameters(client, query, found):
    assert names(client, q=query) == found


def test_a_name_may_be_a_parameter_and_a_metric(client, submit, train):
    submit("trained")
    job_id = train(11, [0.5], "completed")
    submit("asked", params={"accuracy": 0.5})
    assert names(client, q="accuracy=0.5") == ["asked", "trained"]
    assert names(client, q="params.accuracy=0.5") == ["asked"]
    assert names(client, q="metric.accuracy=0.5") == ["trained"]
    assert names(client, q=f"id:{job_id} accuracy=0.5") == ["trained"]


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize(
    ("query", "words"),
    [
        (
            "lrr=0.01",
            "No job has a parameter or metric 'lrr'. Jobs have: lr. To search for the text, write \"lrr=0.01\".",
        ),
        ("LR=0.01", "Jobs have: lr."),
        ("params.batch-size=32", "No job has a parameter or metric 'params.batch-size'. Jobs have: params.batch_size."),
        ("metric.lr=1", "No job has a parameter or metric 'metric.lr'. Jobs have none yet."),
        ("state:pending xyzzy>3", "Jobs have: FROM, amp, batch_size, lr, opt."),
        ("xyzzy=text", "No job has a parameter or metric 'xyzzy'"),
    ],
)
def test_a_search_that_can_find_nothing_says_so(client, query, words):
    answer = client.get("/jobs", params={"q": query}).json()
    assert answer["jobs"] == []
    [note] = answer["notes"]
    assert words in note
    assert client.get("/jobs", params={"q": "lr=77"}).json()["notes"] == [], "the name exists"


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("state=failed", "Write state:failed, or params.state for a parameter."),
        ("lr>high", "'high' is not a number"),
        ("metric.lr=high", "'high' is not a number"),
    ],
)
def test_a_wrong_term_is_refused(client, query, words):
    answer = client.get("/jobs", params={"q": query})
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, "q")
    assert words in answer.json()["error"]["message"]


def test_many_jobs_with_a_parameter_are_found(client, submit, monkeypatch):
    monkeypatch.setattr("core.search.conditions.FEW", 2)
    for lr in (1, 2, 3, 4):
        submit(f"j{lr}", params={"lr": lr})
    assert names(client, q="lr>=2") == ["j4", "j3", "j2"]
    assert names(client, q="lr=2") == ["j2"]


@pytest.mark.usefixtures("sweep")
@pytest.mark.parametrize(
    ("sort", "found"),
    [
        ("params.lr", ["named", "given", "variable", "none"]),
        ("-lr", ["variable", "given", "named", "none"]),
        ("params.opt", ["given", "named", "none", "variable"]),
    ],
)
def test_jobs_are_sorted_by_a_parameter(client, sort, found):
    assert names(client, sort=sort) == found
    first = client.get("/jobs", params={"sort": sort, "limit": 1}).json()
    second = client.get("/jobs", params={"sort": sort, "limit": 3, "after": first["next"]}).json()
    assert [job["name"] for page in (first, second) for job in page["jobs"]] == found


@pytest.mark.usefixtures("sweep")
def test_a_sort_by_an_unknown_parameter_offers_the_near_one(client):
    error = client.get("/jobs", params={"sort": "params.lrr"}).json()["error"]
    assert (error["status"], error["field"]) == (400, "sort")
    assert "Did you mean params.lr?" in error["message"]


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ({"a b": 1}, 400, "'a b' is not a name for a parameter"),
        ({"": 1}, 400, "'' is not a name"),
        ({"x" * 101: 1}, 400, "at most 100 characters"),
        ({"a": "x" * 501}, 400, "at most 500 printable characters"),
        ({"a": "two\nlines"}, 400, "one line"),
        ({"a": 10**301}, 400, "finite number"),
        ({f"p{n}": n for n in range(201)}, 400, "201 parameters; at most 200"),
        ({"a": [1]}, 422, "must be a string, a number, true or false"),
        ({"a": None}, 422, "must be a string, a number, true or false"),
        ({"a": {"b": 1}}, 422, "must be a string, a number, true or false"),
    ],
)
def test_what_cannot_be_a_parameter_is_refused(client, given, status, words):
    answer = client.post("/jobs", json=make_job_body(params=given))
    error = answer.json()["error"]
    assert (answer.status_code, error["field"].split(".")[0]) == (status, "params")
    assert words in error["message"]


def test_parameters_of_the_command_beyond_the_limit_are_left_out(submit):
    command = "t " + " ".join(f"--c{n} {n}" for n in range(150))
    job = submit("a", command=command, params={f"p{n}": n for n in range(100)})
    assert len(job["params"]) == 200
    assert {f"p{n}" for n in range(100)} < job["params"].keys()


def test_a_clone_keeps_parameters_and_changes_some(client, submit):
    job = submit("a", command="t --seed 1", params={"lr": 1, "opt": "adam"})
    kept = client.post(f"/jobs/{job['id']}/clone").json()
    assert kept["params"] == {"lr": 1, "opt": "adam", "seed": 1}
    changes = {"params": {"lr": 2}, "command": "t --seed 5"}
    changed = client.post(f"/jobs/{job['id']}/clone", json=changes).json()
    assert changed["params"] == {"lr": 2, "opt": "adam", "seed": 5}
    diff = client.get(f"/jobs/{job['id']}/diff", params={"other": changed["id"]}).json()["differences"]
    assert diff["params.lr"] == {"first": 1, "second": 2}


def test_logged_parameters_do_not_replace_given_ones(client, submit, worker, database):
    submit("a", command="t --wd 1 --seed 3", params={"lr": 1})
    job = worker.start()
    with database.write() as session:
        params.add_logged(session, job, {"lr": 9, "wd": 8, "depth": "deep", "amp": False})
        params.add_logged(session, job, {"depth": "deeper"})
    shown = client.get(f"/jobs/{job.id}").json()["params"]
    assert shown == {"amp": "false", "depth": "deeper", "lr": 1, "seed": 3, "wd": 8}
    assert client.post(f"/jobs/{job.id}/clone").json()["params"] == {"lr": 1, "seed": 3, "wd": 1}
