"""`gradient-cli mcp` with a real client of the protocol, from a folder to a finished training; and the agent skill."""

import asyncio

import pytest
from mcp import Client, StdioServerParameters
from support.deployment import CLI_PROGRAM

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


def converse(service, talk, *options, legacy=False, **variables):
    """Run a conversation with the tools; `talk(call)` awaits `call(tool, **arguments)`."""

    async def run():
        parameters = StdioServerParameters(
            command=str(CLI_PROGRAM), args=["mcp", *options], env=service.client_environment(**variables)
        )
        async with Client(parameters, mode="legacy" if legacy else "auto") as client:
            tools = (await client.list_tools()).tools

            async def call(tool, *, refused=False, **arguments):
                result = await client.call_tool(tool, arguments)
                assert result.is_error is refused, result.content
                return result.content[0].text if refused else result.structured_content

            return await talk(call, {tool.name: tool for tool in tools})

    return asyncio.run(run())


async def finish(call, submitted):
    job = submitted
    while "finishedAt" not in job:
        job = await call("show_job", job_id=submitted["id"], wait_seconds=20)
    return job


@pytest.mark.parametrize("legacy", [False, True])
def test_an_agent_repairs_a_failed_training_and_reads_what_it_left(service, tmp_path, legacy):
    (tmp_path / "train.py").write_text(TRAINING.replace("gradient_jobs.log", "gradient_jobs.lg"))
    job = {"command": "python train.py", "machine_type": "CPU", "folder": str(tmp_path)}

    async def submit(call):
        preview = await call("preview_job", **job)
        assert preview["would_happen"]["pricePerHour"] > 0
        return await call("submit_job", **job, confirm_token=preview["confirm_token"])

    async def talk(call, _tools):
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

    converse(service, talk, "--write", legacy=legacy)


def test_only_what_was_previewed_is_submitted(service, tmp_path):
    (tmp_path / "a.py").write_text("print(1)\n")
    job = {"command": "sleep 600", "machine_type": "CPU", "folder": str(tmp_path)}

    async def talk(call, tools):
        assert set(tools) == READING | {"submit_job", "stop_job"}
        assert tools["stop_job"].annotations.destructive_hint
        for tool in READING:
            assert tools[tool].annotations.read_only_hint
            assert tools[tool].output_schema
        token = (await call("preview_job", **job))["confirm_token"]
        for changed in ({"command": "rm -r /"}, {"machine_type": "TPU"}, {"options": {"name": "x"}}, {"folder": None}):
            assert "of something else" in await call(
                "submit_job", refused=True, **{**job, **changed}, confirm_token=token
            )
        assert "expired" in await call("submit_job", refused=True, **job, confirm_token="none")
        assert "expired" in await call("submit_job", refused=True, **job, confirm_token=f"1.{token.partition('.')[2]}")
        (tmp_path / "a.py").write_text("print(2)\n")
        assert "of something else" in await call("submit_job", refused=True, **job, confirm_token=token)
        token = (await call("preview_job", **job))["confirm_token"]
        running = await call("submit_job", **job, confirm_token=token)
        asked = await call("stop_job", job_id=running["id"])
        assert service.job(running["id"])["state"] != "Cancelled"
        assert "of something else" in await call("stop_job", refused=True, job_id=running["id"], confirm_token=token)
        await call("stop_job", job_id=running["id"], confirm_token=asked["confirm_token"])
        assert (await finish(call, running))["state"] == "Cancelled"

    converse(service, talk, "--write")


def test_without_write_nothing_changes_and_errors_name_the_next_step(service):
    async def talk(call, tools):
        assert set(tools) == READING
        assert "Next: " in await call("show_job", refused=True, job_id="jnone")
        unknown = await call("preview_job", refused=True, command="true", machine_type="CPU", options={"nam": "x"})
        assert "Did you mean name?" in unknown
        refused = await call("preview_job", refused=True, command="true", machine_type="GPU9")
        assert "machineType" in refused
        assert (await call("whoami"))["scope"] == "submit"

    converse(service, talk)


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
