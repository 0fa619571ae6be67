"""Many clients at once on each route that reads: all are answered soon, and a stop beside them, too."""

import asyncio
import json
import statistics
import time
from urllib.parse import urlsplit

import pytest
from fastapi.routing import iter_route_contexts
from support.deployment import Deployment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LATEST_SECONDS = 5.0
"""Or, on a busy machine, the time that so many requests would take one after the other, three times."""
STOP_SECONDS = 1.0
"""Or, likewise, the time of so many stops."""
OUTPUTS = """
echo "a line"; echo '{"step": 1, "loss": 0.5}' >> $GRADIENT_METRICS_FILE; echo text > $GRADIENT_ARTIFACTS_DIR/a.txt
"""
QUERIES = {
    "/jobs/{job_id}/diff": "other={job_id}",
    "/jobs/{job_id}/logs/search": "query=line",
    "/jobs/{job_id}/artifacts/lines": "path=a.txt",
    "/jobs/{job_id}/artifacts/lines/search": "path=a.txt&query=text",
    "/ui/jobs/{job_id}/diff": "other={job_id}",
    "/ui/compare": "ids={job_id},{other_id}",
    "/ui/runs/series": "ids={job_id},{other_id}",
    "/ui/jobs/{job_id}/artifacts/selected": "path=a.txt",
    "/ui/jobs/{job_id}/artifacts/view": "path=a.txt",
    "/ui/jobs/{job_id}/artifacts/frame": "path=a.txt",
    "/original/jobs/getJob": "jobId={job_id}",
    "/original/jobs/logs": "jobId={job_id}",
    "/original/jobs/artifactsList": "jobId={job_id}",
    "/original/jobs/artifactsListV2": "jobId={job_id}",
    "/original/jobs/artifactsGet": "jobId={job_id}",
    "/original/machines/getAvailability": "machineType=CPU",
    "/original/entityTags/getTags": "entity=job&entityIds={job_id}",
}


class Client:
    """A connection of its own, of somebody with a key who has also signed in."""

    def __init__(self, key, cookie):
        self._program = f"x-api-key: {key}\r\n"
        self._page = f"cookie: {cookie}\r\n"

    async def connect(self, host, port):
        self._reader, self._writer = await asyncio.open_connection(host, port)
        return self

    async def request(self, method, path, body=""):
        """Send a request; return the status of its answer and the seconds until its last byte."""
        began = time.perf_counter()
        headers = self._page if path.startswith("/ui") else self._program
        head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        self._writer.write((head + body).encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head.split(b" ", 2)[1])
        _, has_length, rest = head.partition(b"content-length: ")
        if has_length:
            await self._reader.readexactly(int(rest.split(b"\r\n")[0]))
        while b"transfer-encoding: chunked" in head:
            size = int(await self._reader.readuntil(b"\r\n"), 16)
            await self._reader.readexactly(size + 2)
            if not size:
                break
        return status, time.perf_counter() - began

    async def close(self):
        self._writer.close()
        await self._writer.wait_closed()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def service(request, tmp_path):
    settings = {"GRADIENT_LIMITS__REQUESTS_PER_MINUTE": "0"}
    if request.param == "postgresql":
        postgres = request.getfixturevalue("postgres")
        settings["GRADIENT_DATABASE__URL"] = postgres.new_database(request.getfixturevalue("migrated_postgres"))
    deployment = Deployment(tmp_path / "service", **settings)
    deployment.start_up()
    yield deployment
    deployment.stop()


@pytest.fixture
def paths(app, service):
    """The paths of all routes that read, of things that are there as far as they have any."""
    job_id, other_id = jobs = [service.submit(OUTPUTS) for _ in range(2)]
    for job in jobs:
        service.wait_ended(job)
    (project,) = service.request("GET", "/projects").json()["projects"]
    values = {"job_id": job_id, "other_id": other_id, "project_id": project["id"]}
    values |= {"path:file": "a.txt", "name:path": project["name"], "sweep_id": create_loop(service)}
    values["schedule_id"] = create(service, "/schedules", machineType="CPU", command="true", cron="0 3 * * *")
    values["comparison_id"] = create(service, "/comparisons/from-jobs", jobs=jobs, metric="loss")
    found = []
    for route in iter_route_contexts(app.routes):
        if "GET" not in (getattr(route.original_route, "methods", None) or ()):
            continue
        path = f"{route.path}?{QUERIES[route.path]}" if route.path in QUERIES else route.path
        for name, value in values.items():
            path = path.replace(f"{{{name}}}", value)
        found.append(path.replace("{", "").replace("}", "").replace(":file", ""))
    return job_id, found


def create(service, path, **fields):
    made = service.request("POST", path, json=fields)
    assert made.status_code == 201, made.text
    return made.json()["id"]


def create_loop(service):
    """Create a sweep whose trials are asked for, and return its id."""
    return create(service, "/sweeps", space={"lr": "log:1e-5..1e-1"}, metric="loss:min", trials=1000, method="random")


def sign_in(service):
    """Return the cookie of a new browser session of the service's key."""
    origin = {"sec-fetch-site": "same-origin"}
    signed_in = service.request("POST", "/ui/login", data={"key": service.cli_json["apiKey"]}, headers=origin)
    return signed_in.headers["set-cookie"].split(";")[0]


# The application answers as many at once as it has threads, 40.
@pytest.mark.parametrize("clients", [45, pytest.param(200, marks=pytest.mark.slow)])
def test_many_at_once_are_answered_on_every_route_and_a_stop_beside_them(service, paths, clients):
    job_id, reads = paths
    assert len(reads) > 80
    late, others = asyncio.run(read_all(service, clients, reads, f"/jobs/{job_id}/stop"))
    assert others == {}, "other answers than to one request alone"
    assert late == {}, "seconds of the last answer and of the slowest stop, and their bounds"


async def read_all(service, clients, reads, stop):
    """Return the paths whose answers came late, or a stop beside them, thrice; and those with other answers."""
    *readers, stopper = clients = await connect(service, clients + 1)
    late, others = {}, {}
    for path in reads:
        for _ in range(3):  # again if something else on the machine was in the way
            expected, found, figures = await read_at_once(readers, path, stopper, stop)
            late[path] = figures
            if all(seconds <= bound for seconds, bound in figures):
                del late[path]
                break
        if found != {expected} or expected >= 500 or (expected == 401 and path.startswith("/ui")):
            others[path] = expected, found
    for client in clients:
        await client.close()
    return late, others


async def connect(service, count):
    address, cookie = urlsplit(service.cli_json["url"]), sign_in(service)
    clients = [Client(service.cli_json["apiKey"], cookie) for _ in range(count)]
    return [await client.connect(address.hostname, address.port) for client in clients]


@pytest.mark.parametrize("clients", [45, pytest.param(200, marks=pytest.mark.slow)])
def test_many_ask_for_trials_at_once_and_each_gets_its_own(service, clients):
    sweep_id = create_loop(service)

    async def ask_all():
        connected = await connect(service, clients)
        asked = (
            client.request("POST", f"/sweeps/{sweep_id}/trials", json.dumps({"key": f"of program {number:06}"}))
            for number, client in enumerate(connected)
        )
        answers = [status for status, _ in await asyncio.gather(*asked)]
        for client in connected:
            await client.close()
        return answers

    assert set(asyncio.run(ask_all())) == {200}
    trials = service.request("GET", f"/sweeps/{sweep_id}").json()["trials"]
    assert sorted(trial["number"] for trial in trials) == list(range(clients))


async def read_at_once(readers, path, stopper, stop):
    """Return the status that one request gets alone, those of all at once, and the times of the last answers."""
    alone = [await readers[0].request("GET", path) for _ in range(3)]
    stops_alone = [await stopper.request("POST", stop) for _ in range(3)]
    reading = asyncio.gather(*(client.request("GET", path) for client in readers))
    stops = []
    while not reading.done():
        stops.append(await stopper.request("POST", stop))
    answers = await reading
    assert {status for status, _ in stops} == {200}
    last = max(seconds for _, seconds in answers)
    bound = max(LATEST_SECONDS, 3 * len(readers) * statistics.median(seconds for _, seconds in alone))
    stop_bound = max(STOP_SECONDS, len(readers) * statistics.median(seconds for _, seconds in stops_alone))
    slowest_stop = max(seconds for _, seconds in stops)
    return alone[-1][0], {status for status, _ in answers}, ((last, bound), (slowest_stop, stop_bound))
