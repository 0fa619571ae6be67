"""npm's `paperspace`: every command that speaks to the service."""

import json
import subprocess
from pathlib import Path

import pytest
from support.deployment import SERVER_PROGRAM, wait_until

REDIRECT = Path(__file__).parent.parent.parent / "deploy" / "original" / "s3redirect.js"
NO_CODE = ("--container", "tensorflow/tensorflow:2.21.0", "--workspace", "none")


@pytest.fixture
def ended(paperspace):
    """A job that has ended well, in the project of the folder."""
    created = paperspace(
        *("jobs", "create", "--machineType", "TPU", "--container", "c", "--command", "python main.py"),
        *("--name", "first"),
    )
    assert created.out.endswith("Job Stopped, exitCode 0\n"), created
    return created.job_id


@pytest.fixture
def running(paperspace):
    command = "echo begun; sleep 300"
    return paperspace("jobs", "create", *NO_CODE, "--command", command, "--json").json["id"]


def test_the_line_of_the_original_article_runs_the_job_to_its_end(paperspace, service):
    said = paperspace(
        *("jobs", "create", "--machineType", "TPU", "--container", "tensorflow/tensorflow:2.21.0"),
        *("--command", "python main.py"),
    )
    job = service.job(said.job_id)
    lines = [line for line in said.out.splitlines() if "Zipping" not in line and "Uploading" not in line]
    assert (said.code, lines) == (
        0,
        [
            "New project name: my-project",
            f"New jobId: {job['id']}",
            "Cluster: Gradient Jobs",
            "Job Pending",
            "Waiting for job to run...",
            lines[5],
            "Storage Region: local",
            "Awaiting logs...",
            "hello from the workspace",
            "Job Stopped, exitCode 0",
        ],
    )
    assert lines[5] in {"Job Running", "Job Stopped"}
    assert (job["project"], job["machineType"], job["container"], job["command"]) == (
        "my-project",
        "TPU",
        "tensorflow/tensorflow:2.21.0",
        "python main.py",
    )
    saved = json.loads((paperspace.folder / ".ps_project" / "config.json").read_text())
    assert saved["project"] == "my-project"


def test_a_job_that_fails_says_its_code_and_why(paperspace):
    said = paperspace("jobs", "create", *NO_CODE, "--command", "echo so far; exit 3")
    assert said.code == 0  # as it always was
    assert said.out.splitlines()[-3:] == [
        "so far",
        "Job Failed, exitCode 3",
        "Error: The command ended with exit code 3. See the end of its log.",
    ]


def test_modes_and_links_of_the_folder_arrive(paperspace):
    said = paperspace("jobs", "create", "--machineType", "CPU", "--container", "c", "--command", "./run.sh")
    assert "\nthe workspace\nJob Stopped, exitCode 0\n" in said.out


@pytest.mark.parametrize("packer", ["zip", pytest.param("tar.gz", marks=pytest.mark.slow)])
def test_an_archive_that_is_packed_already_goes_up_as_it_is(paperspace, packer, tmp_path):
    archive = tmp_path / f"code.{packer}"
    program = ["tar", "czf", archive, "."]
    if packer == "zip":
        program = ["python3", "-c", "import shutil,sys; shutil.make_archive(sys.argv[1], 'zip')", tmp_path / "code"]
    subprocess.run(program, cwd=paperspace.folder, check=True)
    said = paperspace(
        *("jobs", "create", "--machineType", "CPU", "--container", "c", "--command", "cat data/words.txt"),
        *("--workspace", str(archive)),
    )
    assert "\nthe workspace\nJob Stopped, exitCode 0\n" in said.out, said


def test_commands_that_are_valid_base64_themselves_arrive_as_they_are(paperspace, service):
    job = paperspace("jobs", "create", *NO_CODE, "--command", "date", "--json").json
    assert (job["entrypoint"], job["state"], job["project"]) == ("date", "Pending", "my-project")
    assert service.job(job["id"])["command"] == "date"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--machineType", "Bogus"), 400, "Invalid machine type. There is no machine type 'Bogus'."),
        (("--project", "a", "--projectId", "b"), 422, "Incompatible parameters: project and projectId cannot both be"),
        (("--projectId", "prnone"), 404, "Project not found."),
        (("--cluster", "elsewhere"), 400, "No such cluster: 'elsewhere'."),
        (("--isPreemptible", "true"), 400, "`isPreemptible` is not supported"),
        (("--dataset", "mnist"), 400, "`dataset` is not supported"),
    ],
)
def test_what_cannot_be_is_refused_by_name(paperspace, arguments, status, message):
    said = paperspace("jobs", "create", *NO_CODE, "--command", "date", *arguments)
    assert (said.code, said.json["status"]) == (1, status), said
    assert said.json["error"].startswith(message)


def test_a_bad_key_is_refused(paperspace):
    said = paperspace("jobs", "list", PAPERSPACE_API_KEY="bad")
    assert (said.code, said.json["status"]) == (1, 401)
    assert said.json["error"].startswith("Invalid API token.")


@pytest.mark.slow  # service/original has the lists
def test_a_job_is_shown_and_found_in_lists(paperspace, ended):
    job = paperspace("jobs", "show", "--jobId", ended).json
    assert (job["state"], job["exitCode"], job["jobError"]) == ("Stopped", 0, None)
    assert job["dtCreated"] <= job["dtStarted"] <= job["dtFinished"]
    all_of_it = ("--state", "Stopped", "--machineType", "TPU", "--container", "c", "--name", "first")
    for arguments in ((), ("--project", "all"), ("--projectId", job["projectId"], *all_of_it)):
        assert ended in [one["id"] for one in paperspace("jobs", "list", *arguments).json], arguments
    for arguments in (("--project", "another"), ("--state", "Failed", "--dataset", "mnist")):
        assert ended not in [one["id"] for one in paperspace("jobs", "list", *arguments).json], arguments
    assert paperspace("jobs", "show", "--jobId", "jnone").json == {
        "error": "No such job: 'jnone'. `gradient-cli jobs list` lists the ids.",
        "status": 404,
    }


def test_a_running_job_is_waited_for_and_stopped(paperspace, running):
    assert paperspace("jobs", "waitfor", "--jobId", running, "--state", "Running").json["state"] == "Running"
    assert paperspace("jobs", "stop", "--jobId", running).code == 0
    assert paperspace("jobs", "waitfor", "--jobId", running, "--state", "Stopped").json["state"] == "Cancelled"
    assert paperspace("jobs", "stop", "--jobId", running).code == 0
    assert paperspace("jobs", "logs", "--jobId", running, "--tail").out == "begun\nTerminated\n"
    assert paperspace("jobs", "stop", "--jobId", "jnone").json["status"] == 404


def test_a_job_that_waits_and_is_cancelled_ends_its_log(paperspace, service):
    """Its machine type is one that no worker offers."""
    job = service.submit("true", cpus=4000, waitAnyway=True)
    assert paperspace("jobs", "stop", "--jobId", job).code == 0
    assert paperspace("jobs", "logs", "--jobId", job, "--tail").out == ""


def test_a_destroyed_job_is_gone_and_no_longer_runs(paperspace, running, service):
    wait_until(lambda: service.find_job_processes(running), "the job to run")
    assert paperspace("jobs", "destroy", "--jobId", running).code == 0
    assert paperspace("jobs", "show", "--jobId", running).json["status"] == 404
    wait_until(lambda: not service.find_job_processes(running), "the job to be stopped")


@pytest.mark.slow  # test_gradient.py does
def test_artifacts_are_listed_linked_and_destroyed(paperspace, ended):
    listed = paperspace("jobs", "artifactsList", "--jobId", ended, "--json").json
    assert listed == [{"file": "out.txt"}, {"file": "sub/a b & ü.txt"}]
    sized = paperspace(
        "jobs", "artifactsList", "--jobId", ended, "--files", "sub/*", "--size", "--links", "--json"
    ).json
    assert [(one["file"], one["size"], "stamp=" in one["url"]) for one in sized] == [("sub/a b & ü.txt", 2, True)]
    assert paperspace("jobs", "artifactsDestroy", "--jobId", ended, "--files", "*.txt,nothing").code == 0
    assert paperspace("jobs", "artifactsList", "--jobId", ended, "--json").json == []


def test_artifacts_are_downloaded_by_the_client_s_own_s3_code(paperspace, ended, tmp_path):
    redirected = {
        "S3_ENDPOINT": paperspace.env["PAPERSPACE_CONFIG_HOST"] + "/_s3",
        "NODE_OPTIONS": f'--require "{REDIRECT}"',
    }
    got = tmp_path / "got"
    said = paperspace("jobs", "artifactsGet", "--jobId", ended, "--dest", str(got), **redirected)
    assert said.out.splitlines()[-1] == "Downloads finished", said
    assert {str(path.relative_to(got)): path.read_text() for path in got.rglob("*.txt")} == {
        "out.txt": "42\n",
        "sub/a b & ü.txt": "x\n",
    }
    some = tmp_path / "some"
    paperspace("jobs", "artifactsGet", "--jobId", ended, "--dest", str(some), "--files", "out*", **redirected)
    assert [path.name for path in some.rglob("*.txt")] == ["out.txt"]


@pytest.mark.slow  # service/original has the answer
def test_machine_types_say_whether_a_job_would_wait(paperspace):
    rows = paperspace("jobs", "machineTypes", "--machineType", "TPU").json
    assert [(row["machineType"], row["cluster"], row["region"]) for row in rows] == [("TPU", "Gradient Jobs", "local")]
    assert len(paperspace("jobs", "machineTypes").json) > 10
    assert paperspace("jobs", "machineTypes", "--region", "elsewhere").json == []
    available = paperspace("machines", "availability", "--region", "local", "--machineType", "P5000")
    assert available.json == {"available": True}


@pytest.mark.slow  # service/original signs in
def test_somebody_signs_in_with_a_password_and_gets_a_key_of_their_own(paperspace, service):
    email, password = "Ann@example.org", "correct horse battery"
    server = [str(SERVER_PROGRAM), "users"]
    made = subprocess.run(
        [*server, "create", email], input=f"{password}\n", env=service.environment(), capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert made.stdout == "ann@example.org can now log in: paperspace login --email ann@example.org\n"
    wrong = paperspace("login", "--email", email, "--password", "something else", PAPERSPACE_API_KEY="")
    assert (wrong.code, "The e-mail address or the password is wrong." in wrong.out + wrong.err) == (1, True)
    said = paperspace("login", "--email", email, "--password", password, "--apiToken", "laptop", PAPERSPACE_API_KEY="")
    assert said.code == 0, said
    saved = json.loads((Path(paperspace.env["HOME"]) / ".paperspace" / "config.json").read_text())
    assert saved["name"] == "laptop"
    assert isinstance(paperspace("jobs", "list", PAPERSPACE_API_KEY="").json, list)
    removed = subprocess.run(
        [*server, "remove", email], env=service.environment(), capture_output=True, text=True, check=True
    )
    assert removed.stdout == f"{email} can no longer log in; 1 keys were revoked.\n"
    wait_until(
        lambda: paperspace("jobs", "list", PAPERSPACE_API_KEY="").out.find("was revoked") > 0, "the key to be refused"
    )
