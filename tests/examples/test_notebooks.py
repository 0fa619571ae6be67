"""The notebooks, run as a user would, against a real service."""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples").rglob("*.ipynb"))

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.slow
def test_a_notebook_runs_from_top_to_bottom(path, deployment, tmp_path, monkeypatch):
    deployment.start_up(GRADIENT_WORKER__SLOTS="3")
    monkeypatch.setenv("GRADIENT_URL", deployment.cli_json["url"])
    monkeypatch.setenv("GRADIENT_API_KEY", deployment.cli_json["apiKey"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shutil.copytree(path.parent, tmp_path / "work")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear its outputs"
    done = NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path / "work")}}).execute()
    shown = "".join(output.get("text", "") for cell in done.cells for output in cell.get("outputs", []))
    assert "step 50  loss 0." in shown
    assert "points are inside" in shown
    assert "RemoteTraceback ends with: TypeError: " in shown
    assert len(deployment.request("GET", "/jobs", params={"tag": "notebook"}).json()["jobs"]) == 6
