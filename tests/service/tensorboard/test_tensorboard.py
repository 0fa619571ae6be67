"""The real TensorBoard behind the service: who may read it, what it reads, and when it ends."""

import shutil
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from support.deployment import EMPTY_SSL_CONTEXT
from support.event_files import write_scalars
from support.live_service import FakeWorker, LiveServer, make_job_body, wait_until

from core.settings import Settings
from core.settings.api import ApiSettings
from core.settings.cloud import StoreSettings
from core.settings.network import PortSettings, TensorBoardSettings
from core.settings.worker import ProcessSettings
from service.main import create_app
from service.tensorboard import routes
from service.tensorboard.board_process import sandbox_problem
from service.tensorboard.boards import Boards
from service.tensorboard.routes import unavailable

PAGE = {"Accept": "text/html"}
NAVIGATION = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
SAME = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}
SCALARS = "data/plugin/scalars/scalars"


@pytest.fixture
def tensorboard():
    """Settings and limits of the server's TensorBoards."""
    return {}


@pytest.fixture
def server(settings, database, api_key, tensorboard):
    limits = {name: tensorboard[name] for name in tensorboard.keys() & {"idle_seconds", "max_boards"}}
    options = {name: tensorboard[name] for name in tensorboard.keys() - limits}
    process = ProcessSettings(sandbox=options.pop("sandbox", "auto"))
    settings = settings.model_copy(update={"tensorboard": TensorBoardSettings(**options), "process": process})
    app = create_app(settings, database=database, wake=lambda: None)
    app.state.app_state.boards = Boards(settings, **limits)
    server = LiveServer(app, api_key)
    server.app = app
    yield server
    server.stop()


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


@pytest.fixture
def visitor():
    """A browser's HTTP, without a session."""
    with httpx.Client(timeout=60, verify=EMPTY_SSL_CONTEXT) as client:
        yield client


@pytest.fixture
def trained(server, client, tmp_path):
    """A function that makes a job which ran and stored these losses; `tmp_path/ID` is the folder that it writes to."""
    state = server.app.state.app_state
    worker = FakeWorker(state)

    def train(name: str, losses: list[float], *, running: bool = False) -> str:
        client.post("/jobs", json=make_job_body(name=name)).raise_for_status()
        worker.register()
        job = worker.start()
        source = tmp_path / job.id
        source.mkdir()
        if losses:
            write_scalars(source / "train", "loss", losses)
        state.artifacts.sync(job.id, job.attempt, source)
        if not running:
            state.artifacts.close(job.id, job.attempt, source)
            worker.end(job)
        return job.id

    return train


def opened(client, *ids):
    answer = client.post("/tensorboards", json={"ids": list(ids)})
    assert answer.status_code == 201, answer.text
    return answer.json()


def let_in(visitor, url):
    """Follow a ticket's link; returns the address of the board."""
    answer = visitor.get(url, headers=NAVIGATION)
    assert answer.status_code == 200, answer.text
    assert urlsplit(url).path in answer.headers["refresh"]
    return url.partition("?")[0]


def losses(visitor, board, run):
    rows = visitor.get(board + SCALARS, params={"run": run, "tag": "loss"}, headers=SAME).raise_for_status().json()
    return [(step, round(value, 3)) for _, step, value in rows]


def runs(visitor, board):
    return visitor.get(board + "data/runs", headers=SAME).raise_for_status().json()


def board_processes():
    """The processes of the boards of the server in this process, and of no other one that a test has started."""
    found = []
    for board in filter(is_board, psutil.Process().children()):
        with suppress(psutil.NoSuchProcess):
            found += [one.pid for one in (board, *board.children(recursive=True)) if is_board(one)]
    return found


def is_board(process):
    try:
        return any("board_program.py" in word for word in process.cmdline())
    except psutil.Error:  # it has ended
        return False


@pytest.mark.integration
def test_scalars_are_read_with_the_session_of_a_ticket(client, server, visitor, trained):
    job_id = trained("mnist cnn", [1.0, 0.5])
    given = opened(client, job_id)
    assert given["runs"] == [f"mnist_cnn-{job_id}"]
    assert urlsplit(given["url"]).hostname == "127.0.0.2" != urlsplit(server.url).hostname
    board = let_in(visitor, given["url"])
    page = visitor.get(board, headers=NAVIGATION | {"Sec-Fetch-Site": "same-origin"})
    assert "<title>TensorBoard" in page.text
    wait_until(lambda: runs(visitor, board))
    assert losses(visitor, board, f"mnist_cnn-{job_id}/train") == [(0, 1.0), (1, 0.5)]
    assert visitor.get(board + "data/runs").headers["x-content-type-options"] == "nosniff"
    assert [one.path for one in visitor.cookies.jar] == [urlsplit(board).path]


@pytest.mark.integration
def test_everybody_else_is_refused(client, server, visitor, trained):
    url = opened(client, trained("a", [1.0]))["url"]
    board = url.partition("?")[0]
    assert visitor.get(board + "data/runs", headers=SAME).status_code == 401
    assert visitor.get(f"{board}?ticket=wrong", headers=NAVIGATION).status_code == 401
    let_in(visitor, url)
    assert visitor.get(board + "data/runs", headers=SAME).status_code == 200
    assert visitor.get(url, headers=NAVIGATION).status_code == 401, "the ticket was used"
    for other in (
        {"Origin": server.url},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ):
        assert visitor.get(board + "data/runs", headers=other).status_code == 403
    assert visitor.get(board + "data/runs", headers=SAME | {"Host": "evil.example"}).status_code == 421
    port = urlsplit(board).port
    under_other_name = f"http://127.0.0.1:{port}{urlsplit(board).path}data/runs"
    with pytest.raises(httpx.ConnectError):
        visitor.get(under_other_name)
    assert visitor.get(f"http://127.0.0.2:{port}/x/data/runs").status_code == 404


@pytest.mark.integration
def test_one_who_signs_out_sees_no_more(server, visitor, trained):
    job_id = trained("a", [1.0])
    dashboard = {"Accept": "text/html", "Origin": server.url}
    with httpx.Client(base_url=server.url, headers=dashboard, timeout=30, verify=EMPTY_SSL_CONTEXT) as browser:
        browser.post("/ui/login", data={"key": server.api_key})
        page = browser.post("/ui/tensorboard", data={"ids": job_id})
        url = page.text.partition("0; url=")[2].partition('"')[0].replace("&amp;", "&")
        board = let_in(visitor, url)
        assert visitor.get(board + "data/runs", headers=SAME).status_code == 200
        browser.post("/ui/logout")
        assert visitor.get(board + "data/runs", headers=SAME).status_code == 401
        assert browser.post("/ui/tensorboard", data={"ids": job_id}).status_code == 401


@pytest.mark.integration
def test_a_form_of_another_site_starts_nothing(server, trained):
    job_id = trained("a", [1.0])
    with httpx.Client(base_url=server.url, headers=PAGE, timeout=30, verify=EMPTY_SSL_CONTEXT) as browser:
        browser.post("/ui/login", data={"key": server.api_key}, headers={"Origin": server.url})
        answer = browser.post("/ui/tensorboard", data={"ids": job_id}, headers={"Origin": "http://127.0.0.2:20000"})
    assert answer.status_code == 403
    assert board_processes() == []


@pytest.mark.integration
@pytest.mark.parametrize(
    "tensorboard",
    [pytest.param({"sandbox": "off"}, marks=pytest.mark.slow), {"sandbox": "auto"}],
    ids=["plain", "sandboxed"],
)
def test_a_running_job_is_followed_and_others_are_not_seen(client, visitor, trained, tmp_path):
    running, ended = trained("now", [1.0], running=True), trained("before", [3.0])
    trained("not selected", [9.0])
    board = let_in(visitor, opened(client, running, ended)["url"])
    names = [f"before-{ended}/train", f"now-{running}/train"]
    wait_until(lambda: sorted(runs(visitor, board)) == names)
    write_scalars(tmp_path / running / "train", "loss", [0.5], first_step=1)
    wait_until(lambda: losses(visitor, board, names[1]) == [(0, 1.0), (1, 0.5)])


@pytest.mark.integration
@pytest.mark.skipif(sandbox_problem() is not None, reason="bubblewrap does not work here")
def test_it_runs_with_the_selected_folders_and_no_secrets(client, visitor, trained, settings):
    job_id = trained("a", [1.0])
    board = let_in(visitor, opened(client, job_id)["url"])
    assert visitor.get(board, headers=SAME).status_code == 200, "it has started"
    inside = next(one for one in board_processes() if psutil.Process(one).cmdline()[1] == "-I")
    root = Path(f"/proc/{inside}/root")
    assert [one.name for one in (root / "runs").iterdir()] == [f"a-{job_id}"]
    assert not (root / settings.root.relative_to("/")).exists()
    environment = psutil.Process(inside).environ()
    assert not [name for name in environment if name.startswith("GRADIENT")]
    fields = dict(line.split(":\t", 1) for line in Path(f"/proc/{inside}/status").read_text().splitlines())
    assert int(fields["CapEff"], 16) == 0
    assert fields["NoNewPrivs"].strip() == "1"
    assert Path(f"/proc/{inside}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()


@pytest.mark.integration
@pytest.mark.parametrize("tensorboard", [{"idle_seconds": 2.5}])
def test_it_ends_when_nobody_uses_it(client, visitor, trained):
    board = let_in(visitor, opened(client, trained("a", [1.0]))["url"])
    assert board_processes()
    wait_until(lambda: not board_processes())
    answer = visitor.get(board, headers=NAVIGATION)
    assert answer.status_code == 404
    assert "it was not used" in answer.text


@pytest.mark.integration
@pytest.mark.parametrize("tensorboard", [{"max_boards": 1}])
def test_their_number_is_limited(client, trained):
    first, second = trained("a", [1.0]), trained("b", [1.0])
    address = opened(client, first)["url"].partition("?")[0]
    assert opened(client, first)["url"].partition("?")[0] == address, "one for the same jobs"
    refused = client.post("/tensorboards", json={"ids": [second]})
    assert refused.status_code == 429
    assert "1 TensorBoards are in use" in refused.json()["error"]["message"]


@pytest.mark.integration
@pytest.mark.parametrize("tensorboard", [{"max_boards": 1, "idle_seconds": 2.0}])
def test_a_new_one_takes_the_place_of_one_that_is_not_used(client, visitor, trained):
    first, second = trained("a", [1.0]), trained("b", [1.0])
    board = let_in(visitor, opened(client, first)["url"])
    wait_until(lambda: client.post("/tensorboards", json={"ids": [second]}).status_code == 201)
    assert visitor.get(board, headers=NAVIGATION).status_code == 404


@pytest.mark.integration
@pytest.mark.parametrize("tensorboard", [{"idle_seconds": 2.0}])
def test_a_request_that_it_does_not_answer_before_its_end_is_told_so(client, visitor, trained):
    board = let_in(visitor, opened(client, trained("a", [1.0]))["url"])
    answer = visitor.get(board, headers=NAVIGATION)
    if answer.status_code == 200:  # else it ended while it started
        for pid in board_processes():
            psutil.Process(pid).suspend()
        answer = visitor.get(board, headers=NAVIGATION)
    assert answer.status_code == 404
    assert "it was not used" in answer.text


@pytest.mark.parametrize("tensorboard", [{"sandbox": "off"}])
def test_folders_that_were_deleted_meanwhile_are_said(client, server, trained):
    job_id = trained("a", [1.0])
    folder = server.app.state.app_state.artifacts.folder(job_id, 1)
    assert folder is not None
    shutil.rmtree(folder)
    answer = client.post("/tensorboards", json={"ids": [job_id]})
    assert answer.status_code == 409, answer.text
    assert "No such file or directory" in answer.json()["error"]["message"]
    assert str(folder) not in answer.text


@pytest.mark.integration
def test_one_that_is_killed_is_started_again(client, visitor, trained):
    job_id = trained("a", [1.0])
    board = let_in(visitor, opened(client, job_id)["url"])
    for pid in board_processes():
        with suppress(psutil.NoSuchProcess):  # a sandbox's processes end with its first
            psutil.Process(pid).kill()
    wait_until(lambda: visitor.get(board, headers=SAME).status_code == 404)
    again = let_in(visitor, opened(client, job_id)["url"])
    assert visitor.get(again, headers=SAME).status_code == 200


@pytest.mark.integration
def test_jobs_without_event_files_are_refused_with_what_to_do(client, trained):
    job_id = trained("a", [])
    answer = client.post("/tensorboards", json={"ids": [job_id]})
    assert answer.status_code == 404
    assert "no event files" in answer.json()["error"]["message"]
    assert "GRADIENT_ARTIFACTS_DIR" in answer.json()["error"]["message"]
    several = client.post("/tensorboards", json={"ids": [job_id, trained("b", [])]})
    assert several.json()["error"]["message"].startswith("None of these jobs has event files")
    assert client.post("/tensorboards", json={"ids": ["jx"]}).status_code == 404
    assert client.post("/tensorboards", json={"ids": []}).status_code == 422


@pytest.mark.integration
def test_a_server_without_the_extra_says_so_on_the_page(client, trained, monkeypatch):
    job_id = trained("a", [1.0])
    monkeypatch.setattr(routes, "find_spec", lambda _name: None)
    refused = client.post("/tensorboards", json={"ids": [job_id]})
    assert refused.status_code == 409
    assert "gradient-jobs[server,tensorboard]" in refused.json()["error"]["message"]
    page = client.get(f"/ui/jobs/{job_id}", headers=PAGE).text
    assert "TensorBoard is not installed on this server" in page
    assert 'action="/ui/tensorboard"' not in page


@pytest.mark.unit
@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, None),
        ({"store": StoreSettings(url="gs://bucket/x")}, "in a bucket"),
        (
            {"api": ApiSettings(public_url="https://jobs.example.com")},
            "which can only be reached from the server's machine",
        ),
        ({"tensorboard": TensorBoardSettings(url="http://127.0.0.1:9")}, "the dashboard's host name"),
        (
            {
                "api": ApiSettings(public_url="https://jobs.example.com"),
                "tensorboard": TensorBoardSettings(url="https://boards.example.com"),
            },
            None,
        ),
        ({"ports": PortSettings(bind="10.0.0.1")}, None),
    ],
)
def test_what_is_not_set_up_is_said(changed, says):
    found = unavailable(Settings().model_copy(update=changed))
    assert found is None if says is None else says in found
