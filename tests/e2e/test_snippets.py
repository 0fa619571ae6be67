"""The documents' Python, run as it stands."""

import json
import subprocess
import sys

import pytest
from support.documents import NOT_RUN, python_blocks

# What the snippets take from their readers' programs.
PRELUDE = """
import gradient_jobs
def build(**params): return params
def train(model): return model["lr"]
"""
FILES = {
    "train.py": "import gradient_jobs, os\ngradient_jobs.log(step=1, loss=0.5)\n"
    "open(os.environ['GRADIENT_ARTIFACTS_DIR'] + '/best.pt', 'w').write('x')\n",
    "model.py": "def Network(rate): return rate\n",
    "data/values": "1\n",
}


@pytest.mark.parametrize(("path", "text"), python_blocks())
def test_the_python_of_documents_runs(service, tmp_path, path, text):
    compile(text, path, "exec")
    if any(part in text for part in NOT_RUN):
        return
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    (tmp_path / "snippet.py").write_text(PRELUDE + text)
    of_a_job = {"GRADIENT_METRICS_FILE": str(tmp_path / "metrics.jsonl"), "GRADIENT_ARTIFACTS_DIR": str(tmp_path)}
    env = service.client_environment(**of_a_job)
    done = subprocess.run(
        [sys.executable, "snippet.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    if (written := tmp_path / "metrics.jsonl").exists():
        assert all(
            "loss" in (line := json.loads(text)) or "params" in line for text in written.read_text().splitlines()
        )
