"""PyPI's `gradient` 1.11.0: every command that speaks to the service. It exits with 0 whatever the API says."""

import re

import pytest
from support.deployment import wait_until

TABLE_LINE = re.compile(r"^\|(.*)\|$", re.MULTILINE)


def rows(said):
    """The cells of a table, line by line."""
    return [[cell.strip() for cell in line.split("|")] for line in TABLE_LINE.findall(said.out)]


@pytest.fixture
def project(gradient, request):
    said = gradient("projects", "create", "--name", f"p-{request.node.name}"[:190])
    found = re.search(r"Project created with ID: (pr[a-z0-9]{13})\n(\S+)", said.out)
    assert found, said
    assert found[2].endswith(f"/ui/projects/{found[1]}")
    return found[1]


@pytest.fixture
def created(gradient, project):
    def create(command, *more):
        return gradient(
            *("jobs", "create", "--machineType", "TPU", "--container", "tensorflow/tensorflow:2.21.0"),
            *("--command", command, "--projectId", project, *more),
        )

    return create


@pytest.fixture
def ended(created, service):
    job = created("python main.py", "--workspace", ".", "--name", "gj", "--tag", "one", "--tag", "two").job_id
    assert service.wait_ended(job)["exitCode"] == 0
    return job


def test_a_job_is_created_and_its_address_leads_to_its_page(created, service, gradient):
    said = created("python main.py", "--workspace", ".")
    assert f"New job created with ID: {said.job_id}\n" in said.out, said
    address = said.out.split()[-1]
    assert address == f"{gradient.env['PAPERSPACE_WEB_URL']}/ui/jobs/{said.job_id}"
    assert "Can't connect" not in said.out + said.err
    page = service.request("GET", f"/ui/jobs/{said.job_id}")
    assert (page.status_code, said.job_id in page.text) == (200, True)
    job = service.wait_ended(said.job_id)
    assert (job["state"], job["command"]) == ("Stopped", "python main.py")


def test_logs_are_followed_to_their_end_and_read_afterwards(gradient, created):
    job = created("for i in 1 2 3; do echo line $i; sleep 0.3; done").job_id
    followed = gradient("jobs", "logs", "--id", job, "--follow", "true")
    assert re.findall(r"line \d", followed.out) == ["line 1", "line 2", "line 3"], followed
    assert rows(gradient("jobs", "logs", "--id", job, "--line", "1")) == [
        ["LINE", "MESSAGE"],
        ["2", "line 2"],
        ["3", "line 3"],
        ["4", "PSEOF"],
    ]


@pytest.mark.slow
def test_jobs_are_listed_by_project_and_by_tag(gradient, ended, project):
    [head, job] = rows(gradient("jobs", "list", "--projectId", project))
    assert head == ["ID", "Name", "Project", "Cluster", "Machine Type", "Created"]
    assert job[:2] + job[3:5] == [ended, "gj", "Gradient Jobs", "TPU"]
    assert [row[0] for row in rows(gradient("jobs", "list", "--tag", "two", "--tag", "none"))][-1] == ended
    nothing = gradient("jobs", "list", "--projectId", "prnone")
    assert "No data found" in nothing.out + nothing.err


@pytest.mark.slow
def test_tags_are_added_and_removed(gradient, ended, service):
    assert "Tags added to job" in gradient("jobs", "tags", "add", "--id", ended, "--tag", "three").out
    assert "Tags removed from job" in gradient("jobs", "tags", "remove", "--id", ended, "--tag", "one").out
    assert sorted(service.job(ended)["tags"]) == ["three", "two"]


@pytest.mark.slow
def test_a_running_job_is_stopped(gradient, created, service):
    job = created("sleep 300").job_id
    wait_until(lambda: service.job(job)["state"] == "Running", "the job to run")
    assert f"Job {job} stopped" in gradient("jobs", "stop", "--id", job).out
    assert service.wait_ended(job)["state"] == "Cancelled"


def test_artifacts_are_listed_downloaded_bare_and_destroyed(gradient, ended, tmp_path):
    listed = rows(gradient("jobs", "artifacts", "list", "--id", ended, "--size"))
    assert listed[1:] == [["out.txt", "3"], ["sub/a b & ü.txt", "2"]]
    got = tmp_path / "got"
    gradient("jobs", "artifacts", "download", "--id", ended, "--destinationDir", str(got))
    assert {str(path.relative_to(got)): path.read_text() for path in got.rglob("*.txt")} == {
        "out.txt": "42\n",
        "sub/a b & ü.txt": "x\n",
    }
    assert f"folder:\n  {ended}\n" in gradient("jobs", "artifacts", "get", "--id", ended).out
    assert "deleted" in gradient("jobs", "artifacts", "destroy", "--id", ended, "--files", "sub/*").out
    assert rows(gradient("jobs", "artifacts", "list", "--id", ended))[1:] == [["out.txt", "None"]]


@pytest.mark.slow
def test_a_deleted_job_is_gone(gradient, ended):
    assert f"Job {ended} deleted" in gradient("jobs", "delete", "--id", ended).out
    for command, words in [
        (("jobs", "delete"), "Failed to delete resource: No such job"),
        (("jobs", "stop"), "Unable to stop instance: No such job"),
        (("jobs", "logs"), "Failed to fetch data: No such job"),
        (("jobs", "artifacts", "list"), "Failed to fetch data: No such job"),
    ]:
        said = gradient(*command, "--id", ended)
        assert (said.code, words in said.out + said.err) == (0, True), said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--machineType", "Bogus"), "Invalid machine type. There is no machine type 'Bogus'"),
        (("--ports", "5000:70000"), "'5000:70000'"),
        (("--registryPassword", "hunter2"), "A registry login needs both"),
        (("--workingDirectory", "/somewhere"), "Machine types are simulated on this server"),
        (("--useDockerfile", "true"), "Machine types are simulated here, so images cannot be built"),
        (("--clusterId", "clelse"), "No such cluster"),
    ],
)
def test_what_cannot_be_is_refused_by_name(created, arguments, words):
    said = created("true", *arguments)
    assert (said.code, f"Failed to create resource: {words}" in said.out + said.err) == (0, True), said


@pytest.mark.slow  # service/original has the options
def test_options_of_the_container_are_honoured(created, service, gradient):
    said = created("pwd; sleep 60", "--workspace", ".", "--ports", "0:5000", "--workingDirectory", "/paperspace/data")
    wait_until(lambda: service.job(said.job_id)["state"] == "Running", "the job to run")
    job = service.job(said.job_id)
    assert job["workingDir"] == "/paperspace/data"
    assert (job["ports"][0]["internal"], job["ports"][0]["url"].startswith("http://")) == (5000, True)
    gradient("jobs", "stop", "--id", said.job_id)
    service.wait_ended(said.job_id)
    assert b"/data\n" in service.raw_log(said.job_id)


def test_a_bad_key_is_refused(gradient):
    said = gradient("jobs", "list", PAPERSPACE_API_KEY="bad")
    assert "Failed to fetch data: Invalid API token" in said.out + said.err


@pytest.mark.slow
def test_metrics_say_that_they_are_not_offered(gradient, ended):
    said = gradient("jobs", "metrics", "list", "--id", ended)
    assert "Metrics API url not found" in said.out + said.err


@pytest.mark.slow
def test_projects_are_listed_shown_tagged_and_deleted(gradient, project, ended):
    assert project in [row[0] for row in rows(gradient("projects", "list"))]
    details = dict(row[:2] for row in rows(gradient("projects", "details", "--id", project)))
    assert details["ID"] == project
    assert "Tags added to project" in gradient("projects", "tags", "add", "--id", project, "--tag", "blue").out
    assert [row[0] for row in rows(gradient("projects", "list", "--tag", "blue"))][1:] == [project]
    assert "Project deleted" in gradient("projects", "delete", "--id", project).out
    said = gradient("projects", "delete", "--id", project)
    assert "Failed to delete resource: Project not found" in said.out + said.err
    assert "No such job" in (said := gradient("jobs", "logs", "--id", ended)).out + said.err


@pytest.mark.slow
def test_a_project_with_a_job_that_runs_is_not_deleted(gradient, project, created, service):
    job = created("sleep 300").job_id
    said = gradient("projects", "delete", "--id", project)
    assert "1 jobs of this project have not ended" in said.out + said.err
    service.request("POST", f"/jobs/{job}/stop")


@pytest.mark.slow
def test_clusters_and_machine_types_are_listed(gradient):
    [_, cluster] = rows(gradient("clusters", "list"))
    assert cluster[:2] == ["clgradientjobs", "Gradient Jobs"]
    machines = {row[0]: row for row in rows(gradient("clusters", "machineTypes", "list"))}
    assert machines["TPU"][1:5] == ["Google TPU v2", "None", "None", "4"]
    assert machines["CPU"][5] == "N/A"
    only = gradient("clusters", "machineTypes", "list", "--clusterId", "clelse")
    assert len(rows(only)) < 2
    available = gradient("machines", "availability", "--region", "NY2", "--machineType", "P4000")
    assert "True" in available.out + available.err or "available" in available.out.lower()
