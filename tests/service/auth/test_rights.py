"""The table of rights: each role at every route, MCP tool and ssh user name of two closed projects of like content."""

import asyncio
import re
from functools import partial
from pathlib import Path

import asyncssh
import pytest
from fastapi.routing import iter_route_contexts
from sqlalchemy import update
from support.free_port import free_port
from support.live_service import make_form, make_job_body, make_zip, record_requests
from support.retention_jobs import RetentionJobs

from core.db.database import now
from core.db.models.credentials import ApiKey, SshKey
from core.jobs.tracking import metrics
from core.security import api_keys
from core.security.key_rights import KeyRights

RIGHTS = Path(__file__).with_name("rights.txt")
COLUMNS = (
    "nothing",
    "revoked",
    "expired",
    "stranger",
    "limited",
    "viewer",
    "reader",
    "submitter",
    "maintainer",
    "admin",
)
"""limited: a maintainer's key that is for another project; reader: one with the scope `read`."""
RULES = {
    "public": "ok " * 10,
    "token": "401 " * 10,  # of a worker, or of a signed link
    "any": "401 401 401 same same ok ok ok ok ok",
    "counts": "401 401 401 ok ok ok ok ok ok ok",  # of all jobs, and nothing else of them
    "own": "401 401 401 ok ok ok 403 ok ok ok",  # what only the caller has
    "found": "401 401 401 ok 403 ok 403 ok ok ok",  # a new project
    "each": "401 401 401 same same ok 403 ok ok ok",  # an answer for each of several
    "login": "any " * 10,
    "person": "401 401 401" + " 403" * 7,  # a session of a provider's user, and of no key
    "read": "401 401 401 missing missing ok ok ok ok ok",
    "submit": "401 401 401 missing missing 403 403 ok ok ok",
    "change": "401 401 401 missing missing 403 403 403 ok ok",  # what the author or a maintainer may
    "owner": "401 401 401 403 403 403 403 403 403 ok",  # what belongs to nobody's project: its owner and administrators
}
"""Answers that each column gets. same: what a made-up id gets; missing: that, and 404; ok: neither 401 nor 403."""
REFUSALS = {"403": "may only read|Only the owner", "404": "No such (job|project)"}
"""Errors of MCP tools by the status of the answer of which they tell."""
HANDSHAKE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
OTHERS = {
    "action": "stop",
    "session_id": "e1",
    "name": "TOKEN",
    "host": "r.example",
    "worker": "x",
    "attempt": "1",
    "path": "main.py",
    "number": "0",
    "delivery_id": "msg_1",
    "key_id": "k1",
    "version": "x",
    "bucket": "b",
    "key": "k",
    "part": "0" * 64,
    "member": "k1",
    "stamp": "x",
}
"""Other parameters of paths."""

ACTIONS = {
    "change_schedule": {"action": "suspend"},
    "change_sweep": {"action": "pause"},
    "change_worker": {"action": "drain"},
}


def submission(ids):
    return make_job_body(projectId=ids["project_id"])


def original(ids):
    return {"jobId": ids["job_id"]}


BODIES = {
    "submit_job": submission,
    "act_on_jobs": lambda ids: {"action": "tag", "ids": [ids["job_id"], ids["array_id"]], "add": ["x"]},
    "create_project": lambda _ids: {"name": "of mine"},
    "original_create_project": lambda _ids: {"name": "of mine"},
    "set_secret": lambda _ids: {"value": "x"},
    "set_registry": lambda _ids: {"username": "u", "password": "p"},
    "save_receiver": lambda _ids: {"url": "https://example.org"},
    "create_key": lambda _ids: {"name": "mine"},
    "add_ssh_keys": lambda _ids: {"publicKeys": ["x"]},
    "submit_schedule": lambda ids: {**submission(ids), "cron": "0 3 * * *"},
    "submit_sweep": lambda ids: {**submission(ids), "space": {"a": "1,2"}, "method": "grid"},
    "submit_comparison": lambda ids: {**submission(ids), "machineType": "CPU", "repeats": 2},
    "compare_jobs": lambda ids: {"jobs": [ids["job_id"], ids["other_id"]]},
    "rename_comparison": lambda _ids: {"name": "x"},
    "repeat_comparison": lambda _ids: {"machineTypes": ["CPU"]},
    "change_job": lambda _ids: {"add": ["x"]},
    "set_project_secret": lambda _ids: {"value": "x"},
    "set_project_registry": lambda _ids: {"username": "u", "password": "p"},
    "set_member": lambda _ids: {"role": "viewer"},
    "update_project": lambda _ids: {"maxRunning": 7},
    "request_trial": lambda _ids: {"key": "k" * 16},
    "report_trial": lambda _ids: {"key": "k" * 16},
    "open_tensorboard": lambda ids: {"ids": [ids["job_id"]]},
    "read_contents": lambda _ids: {"paths": ["main.py"]},
    "original_update_tags": lambda ids: {"entity": "job", "entityId": ids["job_id"], "tags": ["x"]},
    "original_create_job": lambda ids: {"projectId": ids["project_id"], "machineType": "CPU", "command": "true"},
    "original_get_public_job": original,
}
FORMS = {
    "change_secrets": lambda ids: {"project": ids["name"], "name": "TOKEN", "value": "x"},
    "change_registries": lambda ids: {"project": ids["name"], "host": "r.example", "username": "u", "password": "p"},
    "choose_columns": lambda _ids: {},
    "submit_form": lambda ids: {"project": ids["name"], "command": "true", "machineType": "CPU"},
}
QUERIES = {
    "diff_jobs": lambda ids: {"other": ids["job_id"]},
    "show_diff": lambda ids: {"other": ids["job_id"]},
    "search_log": lambda _ids: {"query": "line"},
    "read_lines": lambda _ids: {"path": "main.py"},
    "search_lines": lambda _ids: {"path": "main.py", "query": "0"},
    "show_file": lambda _ids: {"path": "main.py"},
    "show_html": lambda _ids: {"path": "main.py"},
    "download_selected": lambda _ids: {"path": "main.py"},
    "show_runs": lambda ids: {"ids": ids["job_id"]},
    "read_series": lambda ids: {"ids": ids["job_id"], "metrics": "loss"},
    **dict.fromkeys(("forward_port",), lambda _ids: {"port": 80}),
    **dict.fromkeys(
        ("original_get_job", "original_read_log", "original_list_artifacts", "original_list_artifacts_by_page"),
        original,
    ),
    "original_get_artifacts": original,
    "original_get_tags": lambda ids: {"entity": "job", "entityIds": ids["job_id"]},
    "original_machine_available": lambda _ids: {"machineType": "CPU"},
    "list_jobs": lambda ids: {"projectId": ids["project_id"]},
    "original_get_jobs": lambda ids: {"projectId": ids["project_id"]},
    "show_form": lambda ids: {"clone": ids["job_id"]},
}
NEW_JOB = ("preview_job", "submit_job")
TOOLS = {
    **dict.fromkeys(("whoami", "list_machine_types", "list_jobs"), lambda _ids: {}),
    **dict.fromkeys(("show_job", "read_log", "read_metrics", "list_artifacts"), lambda ids: {"job_id": ids["job_id"]}),
    "read_artifact": lambda ids: {"job_id": ids["job_id"], "path": "main.py"},
    "stop_job": lambda ids: {"job_id": ids["other_id"]},
    **dict.fromkeys(
        NEW_JOB,
        lambda ids: {"command": "true", "machine_type": "CPU", "options": {"project_id": ids["project_id"]}},
    ),
}
"""Arguments of the MCP tools."""
BESIDE_ROUTES = {"TOOL", "SSH"}  # rows of the table that are no routes


def routes(app):
    for route in iter_route_contexts(app.routes):
        for method in sorted(set(route.methods or {"WEBSOCKET"}) - {"HEAD"}):
            yield method, route.path_format, route.name


def table():
    rows = (line.rpartition(": ") for line in RIGHTS.read_text("utf-8").splitlines())
    return {tuple(route.split(" ", 1)): rule for route, _, rule in rows}


class World:
    """Closed projects with content, and the keys of all columns with their roles in the first."""

    def __init__(self, stores, database, worker, client, tmp_path):
        self._stores, self._worker, self._client = stores, worker, client
        self._outputs = RetentionJobs(stores, tmp_path)
        self._database = database
        self._count = 0
        self.keys = {"author": self._add_key("author")}
        worker.register()
        self.red, self.blue = (self.fill(name) for name in ("zinnober", "kobaltum"))
        made = {"stranger": None, "viewer": "viewer", "submitter": "submitter", "maintainer": "maintainer"}
        for column in (*made, "limited", "reader", "admin", "revoked", "expired"):
            rights = {"reader": KeyRights(scope="read"), "admin": KeyRights(scope="admin")}.get(column)
            limited = KeyRights(projects=(self.blue["project_id"],)) if column == "limited" else rights
            self.keys[column] = self._add_key(column, limited)
            role = made.get(column, "maintainer")
            self._set_member(self.blue if column in {"stranger", "limited"} else self.red, column, role or "maintainer")
        self._set_member(self.red, "limited", "maintainer")
        with database.write() as session:
            api_keys.revoke(session, self.id_of("revoked"))
            expired = update(ApiKey).where(ApiKey.id == self.id_of("expired"))
            session.execute(expired.values(expires_at=now(-1)))
            self._ssh_keys = {column: asyncssh.generate_private_key("ssh-ed25519") for column in COLUMNS}
            for column in self.keys.keys() & {*COLUMNS}:  # also those that may add none
                of = self._ssh_keys[column].get_fingerprint()
                session.add(SshKey(fingerprint=of, key_id=self.id_of(column), created_at=now()))
        self._stores.keys.clear()
        for project in (self.red, self.blue):
            self.close(project)

    def _add_key(self, name, rights=None):
        with self._database.write() as session:
            return api_keys.create(session, name, rights=rights)[1]

    def id_of(self, column):
        return self.keys[column].split("_")[1]

    def headers(self, column):
        return {"x-api-key": self.keys[column]} if column in self.keys else {}

    def _set_member(self, project, column, role):
        self.send(
            "author", "PUT", f"/projects/{project['project_id']}/members/{self.id_of(column)}", json={"role": role}
        )

    def close(self, project):
        self.send("author", "PATCH", f"/projects/{project['project_id']}", json={"closed": True})

    def send(self, column, method, path, **options):
        answer = self._client.request(method, path, headers=self.headers(column), **options)
        assert answer.status_code < 300, (method, path, answer.text)
        return answer.json() if answer.content else None

    def fill(self, name):
        """Make what a project may have, as its author, and return the ids by the parameter of a path."""
        spec = make_job_body(project=name, name=f"{name} run", tags=[f"{name}-tag"], params={f"{name}_lr": 0.1})
        archive = make_zip({"main.py": name.encode()})
        first = self.send("author", "POST", "/jobs", files=make_form({**spec, "priority": 100}, archive))
        job = self._worker.start()
        assert job.id == first["id"]
        with self._database.write() as session:
            row = {"job_id": job.id, "attempt": 1, "source": "job", "offset": 0, "step": 1.0, "at": job.created_at}
            metrics.add(session, [row | {"values": {f"{name}_loss": 0.5}}])
        self._outputs.write_outputs(job, b"a line of " + name.encode() + b"\n", ["main.py", f"{name}.txt"])
        self._worker.end(job)
        other = self.send("author", "POST", "/jobs", files=make_form(spec, archive))["id"]
        array = self.send("author", "POST", "/jobs", json={**spec, "array": "0-1"})["arrayId"]
        project_id, project = first["projectId"], f"/projects/{first['projectId']}"
        self.send("author", "PUT", f"{project}/secrets/TOKEN", json={"value": "x"})
        self.send("author", "PUT", f"{project}/registries/r.example", json={"username": name, "password": "p"})
        self.send("author", "PUT", f"{project}/storage/main.py", content=name.encode())
        comparison = self.send("author", "POST", "/comparisons/from-jobs", json={"jobs": [first["id"], other]})["id"]
        schedule = self.send("author", "POST", "/schedules", json={**spec, "cron": "0 3 * * *"})["id"]
        tried = {"space": {"a": "1,2"}, "method": "grid"}
        sweep = self.send("author", "POST", "/sweeps", json={**spec, **tried})["id"]
        told = {"url": "https://example.org", "jobs": [f"project:{name}"]}
        self.send("author", "PUT", f"/notifications/mail-{name[0]}", json=told)
        return {
            "job_id": first["id"],
            "other_id": other,
            "array_id": array,
            "project_id": project_id,
            "name": name,
            "comparison_id": comparison,
            "schedule_id": schedule,
            "sweep_id": sweep,
            "sha256": first["workspaceSha256"],
            "receiver": f"mail-{name[0]}",
        }

    def fill_again(self):
        """Make another closed project with the same content and the roles of the first, for what destroys some."""
        ids = self.fill(f"karmesin{self._count}")
        self._count += 1
        for column in ("submitter", "maintainer"):
            self._set_member(ids, column, column)
        self.close(ids)
        return ids

    def ask(self, column, method, path, name, ids):
        values = OTHERS | ids
        if "{name}" in path and not path.startswith("/ui/projects"):
            values = values | {"name": "TOKEN"}
        values |= ACTIONS.get(name, {})
        headers = self.headers(column) | {"sec-fetch-site": "same-origin"}
        return self._client.request(
            "GET" if method == "WEBSOCKET" else method,
            re.sub(r":\w+(?=})", "", path).format_map(values),
            headers=headers | (HANDSHAKE | {"origin": str(self._client.base_url)} if method == "WEBSOCKET" else {}),
            params=QUERIES[name](ids) if name in QUERIES else None,
            **({"data": FORMS[name](ids)} if name in FORMS else {"json": BODIES.get(name, lambda _ids: None)(ids)}),
        )

    def post_tool(self, column, write, method, **params):
        headers = self.headers(column) | {"accept": "application/json, text/event-stream"}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return self._client.post("/mcp", params={"write": write}, headers=headers, json=message)

    def call(self, column, tool, ids):
        """Call a tool, twice if it changes something; return the status that the answer amounts to, and the answer."""
        write, arguments = tool in {"submit_job", "stop_job"}, TOOLS[tool](ids)
        for step in [NEW_JOB[0], tool] if tool in NEW_JOB[1:] else [tool] * (1 + write):
            answer = self.post_tool(column, write, "tools/call", name=step, arguments=arguments)
            result = answer.json().get("result")
            if result is None or result["isError"]:
                break
            arguments = arguments | {"confirm_token": result["structuredContent"].get("confirm_token")}
        if result is None or not result["isError"]:
            return str(answer.status_code), answer
        [status] = [status for status, text in REFUSALS.items() if re.search(text, answer.text)] or [answer.text]
        return status, answer

    def enter(self, column, name):
        """Sign in by ssh as a user of this name; return the refusal, None: there is none."""

        async def connect():
            options = {"username": name, "client_keys": self._ssh_keys[column], "known_hosts": None, "config": None}
            async with asyncssh.connect("127.0.0.1", self._stores.settings.ssh.port, **options):
                pass

        try:
            asyncio.run(connect())
        except asyncssh.PermissionDenied as error:
            return str(error).replace(name, "NAME")
        return None


def made_up(ids):
    """Ids of the same shape that nothing has."""
    new = {name: value[:1] + re.sub("[a-z0-9]", "0", value[1:]) for name, value in ids.items()}
    return new | {"receiver": ids["receiver"]}  # which is of no project


def normal(answer, ids):
    """Return status, headers and body without the ids, and what differs from request to request."""
    text = answer.text
    for value in sorted(ids.values(), key=len, reverse=True):
        text = text.replace(value, "ID")
    text = re.sub(r"nonce[-=\"'\w]+|r[a-z0-9]{13}|\d{4}-\d\d-\d\d[T ][\d:.]+Z?|value=\"[-\w]{22}\"", "", text)
    changing = {"date", "x-request-id", "content-length", "content-security-policy", "retry-after"}
    headers = {name: value for name, value in answer.headers.items() if name not in changing}
    return answer.status_code, headers, text


@pytest.fixture
def settings(settings):
    settings.ssh.port = free_port()
    return settings


@pytest.fixture
def world(stores, database, worker, anonymous_client, tmp_path):
    return World(stores, database, worker, anonymous_client, tmp_path)


DESTROYING = re.compile("delete|destroy")


def check(world, route, column, expected):
    """Return what is wrong with the answer to one of the columns; None: nothing."""
    ids = world.red
    if expected == "ok" and DESTROYING.search(route[2]):
        ids = world.fill_again()
    answer = world.ask(column, *route, ids)
    got = str(answer.status_code)
    if expected in {"401", "403"}:
        return None if got == expected or (got in {"303", "403"} and expected == "401" and "_s3" in route[1]) else got
    if expected in {"same", "missing"}:
        invented = made_up(ids)
        other = world.ask(column, *route, invented)
        if leaks := [value for name, value in ids.items() if value in other.text and name != "receiver"]:
            return f"{leaks} in what is of others"
        if expected == "missing" and got != "404":
            return got
        return None if normal(answer, ids) == normal(other, invented) else f"{got} tells it from a made-up id"
    return got if expected == "ok" and got in {"401", "403"} else None


@pytest.mark.usefixtures("live_server")  # for the handshakes of WebSockets
def test_every_route_gives_each_role_what_the_table_of_rights_says(app, world):
    rights, wrong = table(), []
    every = sorted(routes(app), key=lambda route: (bool(DESTROYING.search(route[2])), route[0] != "GET"))
    rows = {row for row in rights if row[0] not in BESIDE_ROUTES}
    assert {(method, path) for method, path, _ in every} == rows, "a route without a row, or a row without one"
    for number, route in enumerate(every):
        columns = [*zip(COLUMNS, RULES[rights[route[:2]]].split(), strict=True)]
        # Of the three that are nobody, each route is asked by one: test_every_route.py asks for more of them.
        for column, outcome in [columns[number % 3], *columns[3:]]:
            if (problem := check(world, route, column, outcome)) is not None:
                wrong.append(f"{route[0]} {route[1]} {column}: {outcome} expected, but {problem}")
    assert not wrong, "\n".join(wrong)


SSH_NAMES = [name for method, name in table() if method == "SSH"]


def cells(kind):
    """Yield each row of the table of this kind with a column and what it gets."""
    for (method, name), rule in table().items():
        for column, expected in zip(COLUMNS, RULES[rule].split(), strict=True) if method == kind else ():
            yield name, column, expected


def test_every_tool_gives_each_role_what_the_table_of_rights_says(world):
    listed = world.post_tool("maintainer", "true", "tools/list").json()["result"]["tools"]
    assert {tool["name"] for tool in listed} == TOOLS.keys() == {name for name, *_ in cells("TOOL")}
    wrong, invented = [], made_up(world.red)
    for tool, column, expected in cells("TOOL"):
        got, answer = world.call(column, tool, world.red)
        if expected in {"same", "missing"}:
            same = normal(answer, world.red) == normal(world.call(column, tool, invented)[1], invented)
            leaks = [value for name, value in world.red.items() if name != "receiver" and value in answer.text]
            right = same and got == ("200" if expected == "same" else "404") and (not leaks or expected == "missing")
        else:
            right = got == {"ok": "200"}.get(expected, expected)
        if not right:
            wrong.append(f"{tool} {column}: {expected} expected, but {got} {answer.text}")
    assert not wrong, "\n".join(wrong)


def test_ssh_lets_each_role_into_the_jobs_that_the_table_of_rights_says(world):
    invented, wrong = made_up(world.red), []
    for name, column, expected in cells("SSH"):
        refusal = world.enter(column, name.format_map(world.red))
        if (refusal is None) != (expected == "ok"):
            wrong.append(f"{name} {column}: {expected} expected, but {refusal}")
        elif refusal is not None and refusal != world.enter(column, name.format_map(invented)):
            wrong.append(f"{name} {column}: {refusal} tells it from a made-up id")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("column", ["stranger", "limited"])
def test_what_is_hidden_costs_the_statements_of_a_made_up_id(app, world, database, column):
    rights, hidden, invented, differ = table(), world.red, made_up(world.red), []
    asked = [
        (route[:2], partial(world.ask, column, *route))
        for route in routes(app)
        if "missing" in RULES[rights[route[:2]]] and route[0] != "WEBSOCKET"
    ]
    asked += [(name, lambda ids, name=name: world.enter(column, name.format_map(ids))) for name in SSH_NAMES]
    for what, ask in asked:
        sent = []
        for ids in (invented, hidden, invented):  # the first one fills caches
            with record_requests(database) as statements:
                ask(ids)
            sent.append([text for text, _ in statements])
        if sent[1] != sent[2] or not sent[1]:
            differ.append(f"{what}: {sent[1]}, made up: {sent[2]}")
    assert len(asked) > len(SSH_NAMES)
    assert not differ, "\n".join(differ)
