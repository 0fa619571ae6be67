"""uv's list of a lock file's requirements, without a look at any other file of the project."""

import sys
from pathlib import Path

import pytest

from core.settings.network import EgressSettings
from core.system.egress import Egress
from worker.environments.declared_requirements import find_declared
from worker.environments.installer import UvError
from worker.environments.requirements_file import RequirementsReader

pytestmark = pytest.mark.integration

PYTHON = Path(sys.executable).resolve()
PROJECT = '[project]\nname = "My.Proj"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["locked"]\n'
LOCK = """version = 1
requires-python = ">=3.11"

[[package]]
name = "locked"
version = "1.5"
source = { registry = "https://pypi.org/simple" }
wheels = [{ url = "https://example.org/locked-1.5-py3-none-any.whl", hash = "sha256:DIGEST" }]

[[package]]
name = "my-proj"
version = "1"
source = { virtual = "." }
dependencies = [{ name = "locked" }]
""".replace("DIGEST", "a" * 64)


@pytest.fixture
def export(cache, tmp_path):
    """Export the lock file of a folder of the workspace."""

    def run(folder, lock=LOCK):
        workspace = tmp_path / "workspace"
        (folder / "uv.lock").write_text(lock)
        found = find_declared(RequirementsReader(workspace, Egress(EgressSettings())), workspace, folder, "true")
        scratch = tmp_path / "scratch"
        scratch.mkdir(exist_ok=True)
        try:
            return cache.installer.export_lock(found.locked, scratch, PYTHON, lambda: None)
        finally:
            assert list(scratch.iterdir()) == []

    return run


def test_no_other_project_is_read_through_a_link(export, tmp_path):
    """uv would read the workspace of a parent folder, and the members of one, and quote what is no TOML."""
    secret = tmp_path / "secret"
    secret.write_text("root:not for jobs:1\n")
    project = tmp_path / "workspace" / "project"
    (project / "member").mkdir(parents=True)
    for one in (project.parent, project / "member"):
        (one / "pyproject.toml").symlink_to(secret)
    for tables in ("", f'[tool.uv.workspace]\nmembers = ["member", "{project}/member"]\n'):
        (project / "pyproject.toml").write_text(PROJECT + tables)
        assert export(project) == ["locked==1.5"]


def test_no_project_of_the_scratch_folders_parents_is_read(export, tmp_path):
    (tmp_path / "pyproject.toml").write_text("not for jobs")
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "pyproject.toml").write_text(PROJECT)
    assert export(tmp_path / "workspace") == ["locked==1.5"]


def test_a_lock_file_of_another_project_is_refused(export, tmp_path):
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "pyproject.toml").write_text(PROJECT.replace("My.Proj", "other"))
    with pytest.raises(UvError) as refused:
        export(tmp_path / "workspace")
    assert "uv.lock" in refused.value.output


def test_members_of_a_workspace_are_listed_as_the_folders_that_they_are(export, tmp_path):
    """The reader refuses such a line, and says how to install it."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "pyproject.toml").write_text(PROJECT)
    member = '\n[[package]]\nname = "mem"\nversion = "1"\nsource = { editable = "mem" }\n'
    lock = f'{LOCK}{member}[manifest]\nmembers = ["mem", "my-proj"]\n'
    lock = lock.replace('[{ name = "locked" }]', '[{ name = "locked" }, { name = "mem" }]')
    assert export(tmp_path / "workspace", lock) == ["-e ./mem", "locked==1.5"]
