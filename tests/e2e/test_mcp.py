"""`gradient-cli mcp` with a real client of the protocol, from a folder to a finished training; and the agent skill."""

import asyncio
import contextlib

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from support.deployment import CLI_PROGRAM

from gradient_jobs.options import JobOptions

READING = {
    *("whoami", "list_machine_types", "list_jobs", "show_job", "read_log", "read_metrics", "list_artifacts"),
    *("read_artifact", "preview_job"),
}
TRAINING = """\
import os, gradient_jobs
for step in range(3):
    gradient_jobs.log(step=step, loss=1 / (step + 1))
print("done")
open(os.environ["GRADIENT_ARTIFACTS_DIR"] + "/model.txt", "w").write("weights" * 20_000)
"""


@contextlib.asynccontextmanager
async def open_http(service, *, write, key=None):
    headers = {"Authorization": f"Bearer {key or service.cli_json['apiKey']}"}
    url = f"{service.cli_json['url']}/mcp{'?write=true' * write}"
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as client,
        streamable_http_client(url, http_client=client) as streams,
    ):
        yield streams


def open_stdio(service, *, write, key=None):
    variables = {} if key is None else {"GRADIENT_API_KEY": key, "GRADIENT_URL": service.cli_json["url"]}
    arguments = ["mcp", *["--write"] * write]
    return stdio_client(
        StdioServerParameters(command=str(CLI_PROGRAM), args=arguments, env=service.client_environment(**variables))
    )


@pytest.fixture(scope="module")
def service_settings():
    return {"GRADIENT_API__PROCESSES": "2"}


TRANSPORTS = {"stdio": open_stdio, "http": open_http}


@pytest.fixture(params=TRANSPORTS)
def transport(request):
    return request.param


def converse(service, transport, talk, *, write=False, legacy=False, key=None):
    """Run a conversation with the tools; `talk(call)` awaits `call(tool, **arguments)`."""

    async def run():
        opened = TRANSPORTS[transport](service, write=write, key=key)
        async with Client(opened, mode="legacy" if legacy else "auto") as client:
            tools = (await client.list_tools()).tools

            async def call(tool, *, refused=False, **arguments):
                result = await client.call_tool(tool, arguments)
                assert result.is_error is refused, result.content
                return result.content[0].text if refused else result.structured_content

            return await talk(call, {tool.name: tool for tool in tools})

    return asyncio.run(run())


def as_sent(transport, folder):
    """The argument by which a folder's files are sent."""
    if transport == "stdio":
        return {"folder": str(folder)}
    return {"files": {path.name: path.read_text() for path in folder.glob("*.py")}}


def create_key(service, *options):
    return service.cli("keys", "create", "agent", *options).stdout.strip()


async def finish(call, submitted):
    job = submitted
    while "finishedAt" not in job:
        job = await call("show_job", job_id=submitted["id"], wait_seconds=20)
    return job


@pytest.mark.parametrize("legacy", [False, True])
def test_an_agent_repairs_a_failed_training_within_its_budget(service, tmp_path, transport, legacy):
    key = create_key(service, "--budget", "1/month")
    (tmp_path / "train.py").write_text(TRAINING.replace("gradient_jobs.log", "gradient_jobs.lg"))

    async def submit(call):
        job = {"command": "python train.py", "machine_type": "CPU", **as_sent(transport, tmp_path)}
        job["options"] = {"time_limit": "10m"}
        preview = await call("preview_job", **job)
        assert preview["would_happen"]["pricePerHour"] > 0
        return await call("submit_job", **job, confirm_token=preview["confirm_token"])

    async def talk(call, _tools):
        costly = {"command": "true", "machine_type": "CPU", "options": {"time_limit": "100h"}}
        refused = await call("preview_job", refused=True, **costly)
        assert "has $1.00 left and it resets at" in refused
        assert "Next: preview_job with a smaller time_limit" in refused
        failed = await finish(call, await submit(call))
        assert (failed["state"], failed["next"][:8]) == ("Failed", "read_log")
        log = await call("read_log", job_id=failed["id"], tail=1)
        assert "has no attribute 'lg'" in log["lines"][0]
        (tmp_path / "train.py").write_text(TRAINING)
        done = await finish(call, await submit(call))
        assert (done["state"], done["exitCode"]) == ("Stopped", 0)
        assert {job["id"] for job in (await call("list_jobs"))["jobs"]} >= {failed["id"], done["id"]}
        assert [job["id"] for job in (await call("list_jobs", query=f"id:{done['id']}"))["jobs"]] == [done["id"]]
        first = await call("read_log", job_id=done["id"], limit=1)
        rest = await call("read_log", job_id=done["id"], after_line=first["last_line"])
        assert [*first["lines"], *rest["lines"]][-1] == "done"
        assert rest["ended"]
        metrics = await call("read_metrics", job_id=done["id"], name="loss")
        assert "loss" in str(metrics)
        [file] = (await call("list_artifacts", job_id=done["id"]))["files"]
        part = await call("read_artifact", job_id=done["id"], path=file["path"])
        text = part["text"]
        while part["next_offset"] is not None:
            part = await call("read_artifact", job_id=done["id"], path=file["path"], offset=part["next_offset"])
            text += part["text"]
        assert text == "weights" * 20_000

    converse(service, transport, talk, write=True, legacy=legacy, key=key)


def test_only_what_was_previewed_is_submitted(service, tmp_path, transport):
    (tmp_path / "a.py").write_text("print(1)\n")
    job = {"command": "sleep 600", "machine_type": "CPU", **as_sent(transport, tmp_path)}
    nothing = dict.fromkeys(as_sent(transport, tmp_path))

    async def talk(call, tools):
        assert set(tools) == READING | {"submit_job", "stop_job"}
        assert tools["stop_job"].annotations.destructive_hint
        for tool in READING:
            assert tools[tool].annotations.read_only_hint
            assert tools[tool].output_schema
        token = (await call("preview_job", **job))["confirm_token"]
        for changed in ({"command": "rm -r /"}, {"machine_type": "TPU"}, {"options": {"name": "x"}}, nothing):
            assert "of something else" in await call(
                "submit_job", refused=True, **{**job, **changed}, confirm_token=token
            )
        assert "expired" in await call("submit_job", refused=True, **job, confirm_token="none")
        for token_of_nothing in (f"{10**14}.\xe9", "9" * 5000):
            refused = await call("submit_job", refused=True, **job, confirm_token=token_of_nothing)
            assert "of something else" in refused
        for path in ("x" * 70_000, "/a", "a/../b", ""):
            refused = await call("preview_job", refused=True, **{**job, **nothing, "files": {path: ""}})
            assert "is no path of a file" in refused
        assert "expired" in await call("submit_job", refused=True, **job, confirm_token=f"1.{token.partition('.')[2]}")
        (tmp_path / "a.py").write_text("print(2)\n")
        job.update(as_sent(transport, tmp_path))
        assert "of something else" in await call("submit_job", refused=True, **job, confirm_token=token)
        token = (await call("preview_job", **job))["confirm_token"]
        running = await call("submit_job", **job, confirm_token=token)
        assert (await call("submit_job", **job, confirm_token=token))["id"] == running["id"]
        other = await call("submit_job", **job, confirm_token=(await call("preview_job", **job))["confirm_token"])
        assert other["id"] != running["id"]
        service.cli("jobs", "stop", other["id"])
        asked = await call("stop_job", job_id=running["id"])
        assert service.job(running["id"])["state"] != "Cancelled"
        assert "of something else" in await call("stop_job", refused=True, job_id=running["id"], confirm_token=token)
        await call("stop_job", job_id=running["id"], confirm_token=asked["confirm_token"])
        assert (await finish(call, running))["state"] == "Cancelled"

    converse(service, transport, talk, write=True)


def test_without_write_nothing_changes_and_errors_name_the_next_step(service, transport):
    async def talk(call, tools):
        assert set(tools) == READING
        assert "Next: " in await call("show_job", refused=True, job_id="jnone")
        unknown = await call("preview_job", refused=True, command="true", machine_type="CPU", options={"nam": "x"})
        assert "Did you mean name?" in unknown
        refused = await call("preview_job", refused=True, command="true", machine_type="GPU9")
        assert "machineType" in refused
        assert (await call("whoami"))["scope"] == "submit"

    converse(service, transport, talk)


def test_without_the_library_the_command_says_what_is_missing(service, tmp_path):
    (tmp_path / "mcp.py").write_text("raise ImportError('not installed', name='mcp')\n")
    done = service.cli("mcp", code=None, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "pip install 'gradient-jobs-client[mcp]'" in done.stderr


def test_the_skill_names_every_command_and_only_those_there_are(service, tmp_path):
    assert "wrote" in service.cli("skill", "install", folder=tmp_path).stderr
    skill = (tmp_path / ".agents/skills/gradient-jobs/SKILL.md").read_text()
    assert skill.startswith("---\nname: gradient-jobs\ndescription: ")
    assert "`gradient-cli jobs logs`" in skill
    service.cli("skill", "install", "--global", HOME=str(tmp_path / "home"))
    assert (tmp_path / "home/.agents/skills/gradient-jobs/SKILL.md").read_text() == skill


def post(service, method="tools/list", key=None, query="", **params):
    """Send one message of the protocol by hand."""
    headers = {"Accept": "application/json, text/event-stream"}
    if key != "":
        headers["x-api-key"] = key or service.cli_json["apiKey"]
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return service.client.post(f"{service.cli_json['url']}/mcp{query}", headers=headers, json=body)


def call_by_hand(service, tool, key=None, query="", **arguments):
    answer = post(service, "tools/call", key, query, name=tool, arguments=arguments)
    return answer.json()["result"]["content"][0]["text"]


def test_a_key_gets_the_tools_of_its_rights_alone(service):
    reading = create_key(service, "--scope", "read")
    assert {tool["name"] for tool in post(service, key=reading).json()["result"]["tools"]} == READING
    refused = post(service, key=reading, query="?write=true")
    assert (refused.status_code, refused.json()["error"]["name"]) == (403, "KeyRefused")
    assert "may only read" in call_by_hand(service, "preview_job", reading, command="true", machine_type="CPU")
    assert "stop_job" in call_by_hand(service, "stop_job", job_id="j")
    assert post(service, key="").status_code == post(service, key="gj_unknown").status_code == 401
    assert post(service, query="?wirte=true").status_code == 422
    bound = create_key(service, "--machineTypes", "CPU")
    assert "may not use" in call_by_hand(service, "preview_job", bound, command="true", machine_type="V100")


@pytest.mark.parametrize(
    "given",
    [
        {"folder": "/"},
        {"options": {"workspace": "/etc"}},
        {"options": {"env_file": ["/etc/hostname"]}},
        {"options": {"include": ["/etc"]}},
        {"options": {"array": "/etc/hostname"}},
        {"options": {"command": "id"}},
        {"options": {"machine_type": "TPU"}},
        {"files": {"a": ""}, "options": {"workspace": "none"}},
        {"options": {"env_vars": ["SECRET_OF_THE_SERVICE"]}},
        {"options": {"requirements_file": "/etc/hostname"}},
        {"files": {"../train.py": ""}},
        {"files": {"/tmp/train.py": ""}},
        {"files": {"a\0b": ""}},
        {"files": {"": "x"}},
    ],
)
def test_the_server_gives_nothing_of_its_own_machine_to_a_caller(service, given):
    answer = call_by_hand(service, "preview_job", command="true", machine_type="CPU", **given)
    assert "Next: " in answer or "options" in answer
    assert "confirm_token" not in answer


@pytest.mark.parametrize("job_id", [".", ".."])
def test_an_id_leads_to_no_other_address(service, job_id):
    answer = call_by_hand(service, "show_job", job_id=job_id)
    assert f"{job_id!r} is neither an id nor a name" in answer


@pytest.mark.parametrize("name", sorted(JobOptions.__annotations__))
def test_no_option_reads_files_or_variables_of_the_server(service, tmp_path, name):
    (tmp_path / "own.txt").write_text("own=secret-of-the-file\n")
    file = str(tmp_path / "own.txt")
    for value in (file, [file], "SECRET_OF_THE_SERVICE", ["SECRET_OF_THE_SERVICE"]):
        job = {"command": "true", "machine_type": "CPU", "options": {name: value}}
        answer = call_by_hand(service, "preview_job", **job)
        assert "secret-of-the-file" not in answer
        assert "not for jobs" not in answer


def test_no_call_waits_for_ever_and_many_leave_room_for_others(service):
    assert service.client.get(f"{service.cli_json['url']}/mcp").status_code == 405
    streamed = post(service, "subscriptions/listen")
    assert streamed.headers["content-type"] == "application/json"
    assert post(service, x="x" * 2**20).status_code == 413
    job_id = service.cli(
        "jobs", "create", "-m", "CPU", "-d", "--workspace", "none", "--", "sleep", "600"
    ).stdout.strip()

    async def run():
        headers = {"Accept": "application/json, text/event-stream", "x-api-key": service.cli_json["apiKey"]}
        params = {"name": "show_job", "arguments": {"job_id": job_id, "wait_seconds": 50}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(headers=headers, timeout=100, limits=limits) as client:
            url = f"{service.cli_json['url']}/mcp"
            waiting = [asyncio.ensure_future(client.post(url, json=body)) for _ in range(210)]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            assert {answer.result().status_code for answer in done} == {429}
            await asyncio.to_thread(service.cli, "jobs", "stop", job_id)
            return [answer.status_code for answer in await asyncio.gather(*waiting)]

    statuses = asyncio.run(run())
    assert statuses.count(200) >= 100
    assert set(statuses) == {200, 429}
