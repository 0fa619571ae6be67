"""GRADIENT_HOME at any path: it works there wholly, or is refused in a sentence."""

import pytest
from support.client_shell import ClientShell
from support.deployment import Deployment, Process

pytestmark = pytest.mark.integration

ODD = 'a b#1?x=1&y %41ü it\'s "quoted" $HOME `id` \\ *;|& %2F%00 a=b,c'


@pytest.mark.parametrize(
    ("name", "sandbox"),
    [
        (ODD, "auto"),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((ODD, "off"), ("é" * 60, "auto"), ("-rf", "auto"))),
    ],
)
def test_a_service_works_in_a_folder_of_any_name(tmp_path, name, sandbox):
    home = tmp_path / "data" / name
    home.parent.mkdir()
    deployment = Deployment(home, GRADIENT_PROCESS__SANDBOX=sandbox)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "main.py").write_text(
        "import os; open(os.environ['GRADIENT_ARTIFACTS_DIR'] + '/kept', 'w').write('yes'); print('said')"
    )
    try:
        deployment.start_up()
        shell = ClientShell(deployment, folder, tmp_path)
        done = shell("jobs", "run", "-m", "CPU", "main.py")
        assert "said" in done.stdout, done.stderr
        job_id = deployment.request("GET", "/jobs").json()["jobs"][0]["id"]
        assert deployment.artifact(job_id, "kept") == b"yes"
        assert [one.name for one in home.parent.iterdir() if one.is_dir()] == [name]
        assert (home / "gradient.db").stat().st_mode & 0o777 == 0o600
        assert not any("gradient.db" in other.name for other in home.parent.iterdir())
        for command in (["prune", "--dry-run"], ["doctor"], ["disk"], ["workers"]):
            process = deployment.start(*command)
            process.wait()
            assert "Traceback" not in process.read_log()
            for word in ("empty", "does not exist"):
                assert word not in process.read_log(), process.read_log()
    finally:
        deployment.stop()


@pytest.mark.parametrize("name", ["a:b", "line\nbreak", "bell\a", "latin-\udce9"])
def test_a_folder_that_cannot_work_is_refused_in_a_sentence(tmp_path, name):
    deployment = Deployment(tmp_path / name)
    log = tmp_path / "log"
    process = Process(["up", "--port", "0"], deployment.environment(), log)
    assert process.wait() == 2
    assert log.read_text().startswith("error: GRADIENT_HOME: ")
    assert len(log.read_text().splitlines()) == 1
    assert not (tmp_path / name).exists()
