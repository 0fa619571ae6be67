"""Requirements as people write them: built by the real uv where jobs run, as root and as an ordinary user."""

import signal
from pathlib import Path

import pytest
from support.deployment import ORDINARY, WITHOUT_TUN
from support.servers.git_server import GitServer, commit_files
from support.servers.package_index import PackageIndex, source_files

pytestmark = [pytest.mark.usefixtures("bubblewrap")]

# What a package does while it is built: its result is the name of a module that the job imports.
ATTACK = """
import socket

def reaches(host, port):
    try:
        socket.create_connection((host, port), 5).close()
    except OSError:
        return False
    return True

def writes(path):
    try:
        with open(path, "a") as file:
            file.write("x")
    except OSError:
        return False
    return True

found = [one for one in {addresses} if reaches(*one)]
found += [one for one in {paths} if writes(one) and not one.startswith("/tmp/")]
found += [one for one in {unseen} if os.path.exists(one)]
pathlib.Path("hostile.py").write_text(f"FOUND = {{found!r}}\\n")
"""
INDEX_REACHED = """
import os, urllib.request
print(urllib.request.urlopen(os.environ["INDEX"] + "/plain/").status)
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    served = PackageIndex(tmp_path_factory.mktemp("packages") / "index")
    yield served
    served.close()


@pytest.fixture
def git(tmp_path):
    server = GitServer(tmp_path / "served")
    yield server
    server.close()


@pytest.fixture(params=["linked", pytest.param("relayed", marks=pytest.mark.slow)])
def service(request, deployment, index, git):
    """A worker that is root, and one that is not, each with jobs in networks of their own."""
    deployment.start_api()
    deployment.start_worker(
        "w1",
        inside={"linked": (), "relayed": ORDINARY}[request.param],
        UV_DEFAULT_INDEX=index.url,
        UV_EXTRA_INDEX_URL=f"http://{git.address}/simple",  # so that it is reached, though it is on this machine
        UV_PYTHON_DOWNLOADS="never",
        GRADIENT_PROCESS__SANDBOX="require",
        GRADIENT_PROCESS__NETWORK="require",
    )
    return deployment


def run(service, files, command="python main.py", **spec):
    job_id = service.submit(command, files=files, **spec)
    return service.wait_ended(job_id), service.raw_log(job_id).decode()


def version_of(*names):
    return f"python -c 'import {', '.join(names)}; print({', '.join(f'{name}.VERSION' for name in names)})'"


def test_the_newest_release_is_installed_though_it_needs_a_build(service, index):
    """As `hydra-core`, of which an old release needs none, and `rouge-score`, which has never had a wheel."""
    index.add_wheel("hydra", "0.11")
    index.add_wheel("hydra", "1.3", requires=("antlr",))
    index.add_source("antlr")
    index.add_source("rouge")
    job, log = run(service, {"requirements.txt": "hydra\nrouge\n"}, version_of("hydra", "antlr", "rouge"))
    assert (job["state"], log) == ("Stopped", "1.3 1.0 1.0\n")


def test_no_pre_release_is_installed_where_pip_takes_none(service, index):
    index.add_wheel("early", "1.0")
    index.add_wheel("early", "2.0rc1")
    job, log = run(service, {"requirements.txt": "early\n"}, version_of("early"))
    assert (job["state"], log) == ("Stopped", "1.0\n"), job["message"]


def test_the_projects_own_code_is_installed(service, index):
    index.add_wheel("plain")
    files = {**source_files("ours", requires=("plain",)), "requirements.txt": "-e .\n", "src/x": ""}
    look = "cd / && python -c 'import ours, plain; print(ours.__file__)'"
    assert run(service, files, look)[1] == "/paperspace/ours.py\n"
    del files["requirements.txt"]
    job, log = run(service, {**files, "ours.py": "VERSION = 'changed'\n"}, version_of("ours", "plain"))
    assert (job["state"], log) == ("Stopped", "changed 1.0\n"), "by pyproject.toml, and not that of another job"


def test_requirements_in_any_encoding_that_pip_reads(service, index):
    index.add_wheel("plain")
    job, log = run(service, {"requirements.txt": "# für alle\r\nplain\r\n".encode("utf-16")}, version_of("plain"))
    assert (job["state"], log) == ("Stopped", "1.0\n")


def test_a_line_that_conda_wrote_is_explained(service):
    job, _ = run(service, {"requirements.txt": "numpy @ file:///croot/numpy_1/work\n"})
    assert job["reason"] == "requirements_install"
    assert "as `pip freeze` writes under conda: use `pip list --format=freeze`" in job["message"]


def test_a_build_that_takes_its_version_from_git_has_the_commit_of_the_folder(service):
    """As setuptools-scm: there is no .git, but a file of what the client has told."""
    build = "PROJECT_VERSION = open('../.git_archival.txt').read().partition('describe-name: v')[2].partition('-')[0]"
    files = {f"lib/{name}": text for name, text in source_files("ours", build=build).items()}
    files["lib/pyproject.toml"] = files["lib/pyproject.toml"].replace('version = "1.0"', 'dynamic = ["version"]')
    files["requirements.txt"] = "-e ./lib/\n"
    look = "python -c 'import importlib.metadata; print(importlib.metadata.version(\"ours\"))'"
    job, log = run(service, files, look, codeCommit="a" * 40, codeDescribe="v1.4.2-1-gaaaaaaa")
    assert (job["state"], log) == ("Stopped", "1.4.2\n"), job["message"]


def test_a_line_of_git_is_installed(service, git, tmp_path):
    commit_files(tmp_path / "served" / "tool.git", source_files("tool"))
    line = f"tool @ git+http://{git.address}/tool.git\n"
    job, log = run(service, {"requirements.txt": line}, version_of("tool"))
    assert (job["state"], log) == ("Stopped", "1.0\n")


def test_what_is_built_is_isolated_as_the_job_is(service, index, tmp_path):
    """It reaches neither the service nor metadata, sees no other job, and writes to nothing outside."""
    home = service.home
    url = service.cli_json["url"].removeprefix("http://").partition(":")
    addresses = [(url[0], int(url[2])), ("127.0.0.1", int(url[2])), ("169.254.169.254", 80)]
    victims = [home / "victim", tmp_path / "victim", home / "environments" / "victim"]
    paths = [*map(str, victims), "/etc/passwd", "/usr/victim"]
    unseen = [str(home / "gradient.db"), f"{home}/attempts", "/etc/shadow"]
    index.add_source("hostile", build=ATTACK.format(addresses=addresses, paths=paths, unseen=unseen))
    command = "python -c 'import hostile; print(hostile.FOUND)'"
    job, log = run(service, {"requirements.txt": "hostile\n"}, command)
    # The folders of temporary files are its own, although they have the same names here.
    assert (job["state"], log) == ("Stopped", "[]\n")
    assert not any(one.exists() for one in (*victims, Path("/usr/victim")))


def test_lines_hidden_in_strings_and_behind_hashes_find_nothing_of_the_host(service, index, tmp_path):
    """uv takes them for lines of their own: what they name is not there."""
    index.add_wheel("plain")
    secret = tmp_path / "secret.txt"
    secret.write_text("not-for-jobs\n")
    for files in (
        {"requirements.txt": f"plain --hash=sha256:aa --requirement={secret}\n"},
        {"requirements.txt": f"plain\n-r {secret}\n"},
        {"pyproject.toml": f'[project]\nname = "p"\nversion = "1"\ndependencies = ["plain\\n-r {secret}"]\n'},
        {"main.py": f'# /// script\n# dependencies = ["plain @ file://{secret}"]\n# ///\n'},
    ):
        job, log = run(service, files)
        assert (job["state"], job["reason"]) == ("Error", "requirements_install"), files
        assert "not-for-jobs" not in log + job["message"]


def test_the_index_on_the_workers_machine_is_reached_by_builds_alone(service, index):
    index.add_wheel("plain")
    files = {"main.py": INDEX_REACHED, "requirements.txt": "plain\n"}
    command = f"{version_of('plain')} && ! python main.py 2>/dev/null"
    job, log = run(service, files, command, envVars={"INDEX": index.url})
    assert (job["state"], log) == ("Stopped", "1.0\n")


@pytest.mark.parametrize("keys", [1, 2])
def test_builds_and_git_where_no_network_can_be_made(deployment, index, git, tmp_path, keys):
    """They have the host's network while one key is valid; then only an index of this machine, and say so."""
    index.add_wheel("plain")
    commit_files(tmp_path / "served" / "tool.git", {"name": "tool"})
    deployment.start_api()
    for number in range(1, keys):
        assert deployment.start("keys", "create", f"key{number}").wait() == 0
    settings = {"UV_PYTHON_DOWNLOADS": "never", "GRADIENT_PROCESS__SANDBOX": "require"}
    worker = deployment.start_worker("w1", inside=WITHOUT_TUN, UV_DEFAULT_INDEX=index.url, **settings)
    job, log = run(deployment, {"requirements.txt": "plain\n"}, version_of("plain"))
    assert (job["state"], log) == ("Stopped", "1.0\n")
    fetched = deployment.submit("cat name", workspace=f"http://{git.address}/tool.git")
    assert (deployment.wait_ended(fetched)["state"], deployment.raw_log(fetched)) == ("Stopped", b"tool")
    worker.signal(signal.SIGTERM)
    worker.wait()
    deployment.start_worker("w2", inside=WITHOUT_TUN, UV_DEFAULT_INDEX="http://index.invalid/simple", **settings)
    job, log = run(deployment, {"requirements.txt": "other\n"}, version_of("other"))
    assert (job["state"], job["reason"]) == ("Error", "requirements_install")
    fetched = deployment.wait_ended(deployment.submit("true", workspace="https://git.invalid/tool.git"))
    for failed in (job, fetched):
        assert ("Installations and git have no network on the worker's machine" in failed["message"]) == (keys > 1)


def test_jobs_of_a_project_share_what_was_installed_and_none_can_change_it(service, index):
    index.add_wheel("shared")
    where = "import shared; print(shared.__file__)"
    write = f"{where}; open(shared.__file__, 'a')"
    first, log = run(service, {"requirements.txt": "shared\n"}, f'python -c "{where}"')
    asked = len(index.requests)
    second, again = run(service, {"requirements.txt": "shared\n"}, f'python -c "{where}"')
    assert (first["state"], second["state"], log) == ("Stopped", "Stopped", again)
    assert len(index.requests) == asked
    job, log = run(service, {"requirements.txt": "shared\n"}, f'python -c "{write}"')
    assert (job["state"], "Read-only file system" in log or "Permission denied" in log) == ("Failed", True)
    job, log = run(service, {"requirements.txt": "shared\n"}, f'python -c "{where}"', project="other")
    assert (job["state"], log != again) == ("Stopped", True), "another project has its own"
