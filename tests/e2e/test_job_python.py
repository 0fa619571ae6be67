"""The Python of a job: its requirements are installed before it starts, and what it installs ends with it."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.deployment import CLI_PROGRAM, wait_until
from support.servers.package_index import PackageIndex

MAIN = "import tiny, sys\nprint('tiny', tiny.VERSION)\n"


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    served = PackageIndex(tmp_path_factory.mktemp("packages") / "index")
    yield served
    served.close()


@pytest.fixture(scope="module")
def service_settings(index):
    index.add_wheel("common")
    packages = {"UV_DEFAULT_INDEX": index.url, "UV_PYTHON_DOWNLOADS": "never"}
    return packages | {"GRADIENT_ENVIRONMENTS__DEFAULT": '["common"]', "GRADIENT_WORKER__SLOTS": "2"}


def run(service, files, command="python main.py", **spec):
    job_id = service.submit(command, files=files, **spec)
    return service.wait_ended(job_id), service.raw_log(job_id).decode()


def phases(service, job_id):
    return [event.get("phase") for event in service.events(job_id)]


def test_a_folder_brings_its_requirements_and_the_second_job_starts_at_once(service, index, tmp_path):
    index.add_wheel("tiny", requires=("inner",))
    index.add_wheel("inner")
    (tmp_path / "requirements.txt").write_text("tiny==1.0  # the newest\n")
    (tmp_path / "main.py").write_text(MAIN)
    words = [str(CLI_PROGRAM), "jobs", "create", "--machineType", "CPU", "--command", "python main.py && tiny"]

    def create():
        env = service.environment(HOME=str(tmp_path.parent))
        return subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)

    first = create()
    assert "tiny 1.0\n" in first.stdout
    assert "installing: 2 packages for requirements.txt" in first.stderr
    assert "2 packages installed in " in first.stderr
    requested = len(index.requests)
    second = create()
    assert "tiny 1.0\n" in second.stdout
    assert "install" not in second.stderr
    assert len(index.requests) == requested


def test_a_lock_file_decides_the_versions(service, index, tmp_path):
    index.add_wheel("locked")
    project = '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["locked"]\n'
    (tmp_path / "pyproject.toml").write_text(project)
    env = service.environment(UV_DEFAULT_INDEX=index.url, UV_CACHE_DIR=str(tmp_path / "cache"))
    words = [sys.executable, "-m", "uv", "lock", "--quiet", "--python", sys.executable]
    subprocess.run(words, cwd=tmp_path, env=env, check=True)
    index.add_wheel("locked", "2.0")
    files = {name: (tmp_path / name).read_text() for name in ("pyproject.toml", "uv.lock")}
    job, log = run(service, {**files, "main.py": "import locked\nprint(locked.VERSION)\n"})
    assert (job["state"], log) == ("Stopped", "1.0\n")


def test_uv_run_uses_what_was_installed(service, index):
    index.add_wheel("chosen")
    index.add_wheel("added")
    index.add_wheel("devtool")
    project = '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["chosen"]\n'
    project += '[dependency-groups]\ndev = ["devtool"]\n'
    look = "import chosen, added, devtool, sys\nprint(chosen.VERSION, added.VERSION, sys.prefix.rpartition('/')[2])\n"
    files = {"pyproject.toml": project, ".python-version": "3.8\n", "main.py": look}
    command = "uv run python main.py; uv run main.py; python main.py; ls -d .venv"
    job, log = run(service, files, command, packages=["added"])
    assert log.count("1.0 1.0 python\n") == 3, log
    assert "No such file" in log, "no second environment is made"
    assert ".python-version asks for Python 3.8" in str(job["notes"])
    job, log = run(service, files, "test -e .venv/bin/python || echo ${UV_PROJECT_ENVIRONMENT-made by the command}")
    assert log == "made by the command\n", "who names .venv makes it"


def test_a_lock_file_of_poetry_and_a_project_without_its_package(service, index):
    for version in ("1.0", "2.0"):
        index.add_wheel("poetic", version)
    table = '[tool.poetry]\nname = "p"\nversion = "1"\n[tool.poetry.dependencies]\npoetic = "*"\n'
    build = '[build-system]\nrequires = ["poetry-core"]\nbuild-backend = "poetry.core.masonry.api"\n'
    lock = '[[package]]\nname = "poetic"\nversion = "1.0"\n'
    files = {"pyproject.toml": table + build, "poetry.lock": lock, "a.py": "import poetic\nprint(poetic.VERSION)\n"}
    job, log = run(service, files, "python a.py")
    assert (job["state"], log) == ("Stopped", "1.0\n"), job["message"]
    assert "no module p" in str(job["notes"])
    job, _ = run(service, {**files, "pyproject.toml": table.replace('"*"', '">1"')}, "python a.py")
    assert "pyproject.toml and poetry.lock: " in job["message"]


@pytest.mark.parametrize(
    ("address", "more", "works"),
    [
        ("u:${TOK}@", {"envVars": {"TOK": "tok"}}, True),
        ("", {"netrc": "machine 127.0.0.1 login u password tok\n"}, True),
        ("u:wrong-one@", {}, False),
        ("u:${TOK}@", {}, False),
    ],
)
def test_a_private_index_gets_its_login(service, index, address, more, works):
    name = f"private{len(address)}{len(more)}"
    index.add_wheel(name)
    url = index.url.replace("http://", f"http://{address}").replace("/simple", "/private/simple")
    files = {"requirements.txt": f"--extra-index-url {url}\n{name}\n", ".netrc": more.pop("netrc", "")}
    job, log = run(service, files, f"python -c 'import {name}'", **more)
    assert job["state"] == ("Stopped" if works else "Error"), job["message"]
    if not works:
        assert "refused the login (401)" in job["message"]
        assert "wrong-one" not in job["message"] + log


def test_indexes_of_the_jobs_variables_are_asked(service, index):
    index.add_wheel("private")
    url = index.url.replace("/simple", "/private/simple")
    files = {"requirements.txt": "private\n", "main.py": "import private\n"}
    more = {"PIP_INDEX_URL": url.replace("http://", "http://u:tok@"), "PIP_CONFIG_FILE": "pip.conf"}
    job, _ = run(service, files, envVars=more)
    assert job["state"] == "Stopped", job["message"]
    assert "PIP_CONFIG_FILE: only the command itself" in str(job["notes"])
    job, _ = run(service, files, envVars={"PIP_INDEX_URL": url})
    assert "refused the login (401)" in job["message"]
    assert "The job's variables PIP_INDEX_URL were used" in job["message"]


@pytest.mark.parametrize(
    ("files", "command", "says"),
    [
        (
            {"a/main.py": "import lib", "lib/x.py": ""},
            "python a/main.py",
            "lib is in the uploaded folder, but not on this program's search path",
        ),
        ({"a/main.py": "import lib", "lib/x.py": ""}, "python a/main.py", "with -e PYTHONPATH=."),
        ({"a/main.py": "import lib", "b/lib.py": ""}, "cd a && python main.py", "PYTHONPATH=$GRADIENT_WORKSPACE_DIR/b"),
        (
            {"main.py": "import lib.sub", "lib/x.py": ""},
            "python main.py",
            "lib is in the uploaded folder but lacks sub",
        ),
        (
            {
                "Makefile": "train:\n\tpython3 s.py",
                "s.py": "# /// script\n# dependencies = ['nowhere']\n# ///\nimport nowhere",
            },
            "make train",
            "s.py declares it in its metadata (# /// script): submit with --requirements s.py",
        ),
        ({"main.py": "import nowhere"}, "bash -c 'python main.py'", "or use a --container that has it"),
    ],
)
def test_a_missing_module_of_the_workspace_is_named_as_such(service, files, command, says):
    job, log = run(service, files, command)
    assert (job["state"], says in job["message"]) == ("Failed", True), f"{job['message']}\n{log}"


def test_a_build_for_gpus_is_named_where_there_is_none(service, index):
    index.add_wheel("torch", "2.0", requires=("nvidia_cublas",))
    index.add_wheel("nvidia_cublas")
    job, _ = run(service, {"requirements.txt": "torch==2.0\n"}, "true")
    assert ("-e UV_TORCH_BACKEND=cpu" in str(job["notes"])) != Path("/proc/driver/nvidia").exists()


def test_what_is_installed_under_another_name_is_not_called_undeclared(service, index):
    index.add_wheel("accelerate")
    index.add_wheel("torch", "3.0", requires=("accelerate",))
    index.add_wheel("transformers", requires=("torch",))
    files = {
        "requirements.txt": "transformers\n",
        "main.py": "import transformers\nif 0:\n    from transformers import Trainer\n",
    }
    job, _ = run(service, files)
    assert job["state"] == "Stopped"
    assert "declared" not in str(job["notes"])


@pytest.mark.parametrize(
    ("files", "reason", "says", "log_says"),
    [
        ({"requirements.txt": "absent>=3\n"}, "requirements_install", "absent", "absent"),
        ({"environment.yml": "dependencies: [numpy]\n"}, "requirements_invalid", "requirements.txt", ""),
    ],
)
def test_requirements_that_cannot_be_installed_say_why(service, files, reason, says, log_says):
    job, log = run(service, {**files, "main.py": "print('ran')\n"})
    assert (job["state"], job["exitCode"], job["reason"]) == ("Error", None, reason)
    assert says in job["message"]
    assert log_says in log
    assert "ran" not in log


def test_what_a_job_installs_ends_with_it(service, index):
    wheel = index.add_wheel("passing")
    look = "import passing; print(passing.__file__)"
    install = f"pip install --quiet --no-index --find-links '{wheel.parent}' passing && python -c '{look}'"
    job, log = run(service, {}, install)
    assert job["state"] == "Stopped", log
    assert f"{job['id']}-1/python/" in log
    again, log = run(service, {}, f"python -c '{look}'")
    assert (again["state"], "ModuleNotFoundError" in log) == ("Failed", True)
    assert subprocess.run([sys.executable, "-c", look], capture_output=True, check=False).returncode == 1


def test_while_the_default_packages_cannot_be_installed_jobs_have_none_and_say_so(deployment):
    nowhere = {"UV_DEFAULT_INDEX": "http://127.0.0.1:9/simple", "UV_HTTP_RETRIES": "0"}
    api = deployment.start_up(GRADIENT_ENVIRONMENTS__DEFAULT='["common"]', **nowhere)
    job_id = deployment.submit("echo ran; python -c 'import common'")
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["exitCode"]) == ("Failed", 1)
    assert b"ran\n" in deployment.raw_log(job_id)
    assert "default packages" in str(job["notes"])
    assert "http://127.0.0.1:9/simple" in str(job["notes"]), "the note names the index"
    assert "default_packages_missing" in api.read_log()


def test_packages_of_the_job_are_added_and_those_of_a_clone_too(service, index):
    index.add_wheel("base")
    index.add_wheel("added")
    files = {"requirements.txt": "base\n", "main.py": "import base, added\nprint(base.VERSION, added.VERSION)\n"}
    job, log = run(service, files, packages=["added==1.0"])
    assert (job["state"], job["packages"], log) == ("Stopped", ["added==1.0"], "1.0 1.0\n")
    clone = service.request("POST", f"/jobs/{job['id']}/clone", json={}).json()
    assert (service.wait_ended(clone["id"])["state"], clone["packages"]) == ("Stopped", ["added==1.0"])
    assert "installing" not in phases(service, clone["id"])
    job, log = run(service, files)
    assert (job["state"], "No module named 'added'" in log) == ("Failed", True), "not those of another job"


@pytest.mark.parametrize(
    ("files", "options", "names"),
    [
        (
            {"more/gpu.txt": "chosen\n", "requirements.txt": "absent\n"},
            {"requirementsFile": "more/gpu.txt"},
            ["chosen"],
        ),
        (
            {
                "pyproject.toml": '[dependency-groups]\ng = ["grouped"]\n[project]\nname = "p"\nversion = "1"\n'
                '[project.optional-dependencies]\nx = ["extra"]\n'
            },
            {"extras": ["x"], "groups": ["g"]},
            ["extra", "grouped"],
        ),
        ({"pyproject.toml": '[tool.poetry.dependencies]\npoetic = "^1"\n'}, {}, ["poetic"]),
        ({"Pipfile": '[packages]\npiped = "*"\n'}, {}, ["piped"]),
        ({"environment.yml": "dependencies:\n- cuda\n- pip:\n  - of_conda\n"}, {}, ["of_conda"]),
        ({"a/requirements.txt": "above\n", "a/b/x": ""}, {"workingDir": "a/b"}, ["above"]),
    ],
)
def test_requirements_as_people_keep_them(service, index, files, options, names):
    for name in names:
        index.add_wheel(name)
    command = f"python -c 'import {', '.join(names)}; print({', '.join(f'{name}.VERSION' for name in names)})'"
    job, log = run(service, files, command, **options)
    assert (job["state"], log) == ("Stopped", " ".join(["1.0"] * len(names)) + "\n"), job["message"]
    assert ("cuda" in str(job["notes"])) == ("environment.yml" in files), "what is not installed is said"


def test_an_import_that_nothing_declares_is_named_before_the_job_runs_and_installed_on_request(service, index):
    index.add_wheel("opencv_python_headless", module="cv2")
    files = {"main.py": "import tool\n", "tool.py": "import cv2\nprint(cv2.VERSION)\n"}
    job_id = service.submit("python main.py", files=files)
    job = service.wait_ended(job_id)
    told = [event["message"] or "" for event in service.events(job_id)]
    named = next(number for number, text in enumerate(told) if "cv2 (tool.py, line 1)" in text)
    began = next(number for number, one in enumerate(service.events(job_id)) if one["kind"] == "started")
    assert (job["state"], named < began) == ("Failed", True), told
    assert "--with opencv-python-headless" in job["message"], "and at the end"
    job, log = run(service, files, packages=["auto"])
    assert (job["state"], log) == ("Stopped", "1.0\n")
    assert "cv2" not in str(job["notes"])


def test_all_that_is_wrong_with_requirements_is_told_at_once(service, index):
    index.add_wheel("well")
    index.add_source("unbuilt", build="raise RuntimeError('needs a compiler')\n")
    text = "well\nabsent\nwell==99\nunbuilt\n-e ./lib\nsklearn\n???\n"
    job, _ = run(service, {"requirements.txt": text, "main.py": ""})
    assert (job["state"], job["reason"]) == ("Error", "requirements_install")
    for words in (
        "6 of 7 requirements",
        "absent: the index has no package of this name: check its spelling.",
        "well==99: the index does not have this version",
        "unbuilt: its build failed (RuntimeError: needs a compiler): choose a version that has a wheel",
        "-e ./lib: it is not in the uploaded folder",
        "sklearn: the module sklearn is in the distribution scikit-learn",
        "???: it is not a requirement",
        "The others can be installed: well.",
    ):
        assert words in job["message"]


def test_a_job_that_runs_no_python_does_not_wait_for_the_default_packages(deployment, index):
    index.opened.clear()
    try:
        deployment.start_up(GRADIENT_ENVIRONMENTS__DEFAULT='["common"]', UV_DEFAULT_INDEX=index.url)
        assert deployment.wait_ended(deployment.submit("echo hi"))["state"] == "Stopped"
        waiting = deployment.submit("python -c 'import common'")
        wait_until(lambda: "installing" in phases(deployment, waiting), "a job that needs them to wait")
    finally:
        index.opened.set()
    assert deployment.wait_ended(waiting)["state"] == "Stopped"


def test_a_dry_run_tells_what_will_be_installed_from_where_and_whether_it_is_here(service, index, tmp_path):
    index.add_wheel("planned")
    (tmp_path / "requirements.txt").write_text("planned\n")
    (tmp_path / "main.py").write_text("import planned, yaml\n")
    (tmp_path.parent / "outside.txt").write_text("planned<2  # of a folder above\n")

    def client(*words):
        command = [str(CLI_PROGRAM), "jobs", "run", "--machineType", "CPU", *words, "main.py"]
        env = service.environment(HOME=str(tmp_path.parent))
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    first = client("--dry-run").stdout
    assert "requirements.txt: planned\n" in first
    assert f"to be installed, from {index.url}" in first
    assert "yaml (main.py, line 1)" in first
    client()
    assert "installed already" in client("--dry-run").stdout
    plan = json.loads(client("--dry-run", "--json", "--with", "six", "--requirements", "../outside.txt").stdout)
    assert (plan["requirements"]["lines"], plan["requirementsInstalled"]) == (["planned", "planned<2", "six"], False)
    (tmp_path / "requirements.txt").rename(tmp_path / "environment.yml")
    refused = client("--dry-run")
    assert (refused.returncode, "environment.yml" in refused.stderr) == (2, True)


def test_the_version_of_python_is_the_services_or_one_that_is_found(service):
    wanted = "{}.{}".format(*sys.version_info[:2])
    job, log = run(service, {}, "python -V", python=wanted)
    assert (job["state"], job["python"], log.startswith(f"Python {wanted}.")) == ("Stopped", wanted, True)
    job, _ = run(service, {}, "python -V", python="3.99")
    assert (job["state"], job["reason"]) == ("Error", "python_unavailable")
    assert "3.99" in job["message"]


def test_a_download_of_python_shows_that_it_goes_on_and_obeys_a_stop(deployment):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mirror = f"http://127.0.0.1:{silent.getsockname()[1]}"
        deployment.start_up(UV_PYTHON_INSTALL_MIRROR=mirror, UV_HTTP_TIMEOUT="600", GRADIENT_ENVIRONMENTS__DEFAULT="[]")
        job_id = deployment.submit("python -V", files={}, python="3.8")
        wait_until(
            lambda: "downloading Python 3.8, " in json.dumps([deployment.job(job_id), deployment.events(job_id)]),
            "seconds of the download",
        )
        deployment.request("POST", f"/jobs/{job_id}/stop").raise_for_status()
        assert deployment.wait_ended(job_id)["state"] == "Cancelled"
