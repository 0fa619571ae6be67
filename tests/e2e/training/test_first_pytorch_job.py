"""The page on the first PyTorch job, as a reader would go through it."""

import os
import re
import subprocess

import pytest
from support.deployment import CLI_PROGRAM, Deployment
from support.documents import ROOT, blocks
from support.job_packages import share_environments

pytestmark = [pytest.mark.usefixtures("bubblewrap"), pytest.mark.timeout(600)]
PAGE = "docs/pytorch.md"


@pytest.fixture
def service(tmp_path):
    deployment = Deployment(tmp_path / "home")
    deployment.start_up(GRADIENT_PROCESS__SANDBOX="require", **share_environments(deployment.home))
    yield deployment
    deployment.stop()


@pytest.mark.slow  # packages of hundreds of megabytes
@pytest.mark.parametrize("_packages", ["pytorch"])
def test_every_command_of_the_page_does_what_it_says(service, tmp_path, _packages):
    script = "set -e\n"
    for path, language, text in blocks():
        if path == PAGE:
            script += f"cat >{text.split()[1]} <<'END'\n{text}END\n" if language else text
    assert script.count("gradient-cli") == 9
    [requirement] = re.findall(r"torch==[0-9.]+", script)
    assert requirement in (ROOT / "examples/pytorch/requirements.txt").read_text(), "the one that tests can install"
    env = {**service.environment(), "PATH": f"{CLI_PROGRAM.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash"], input=script, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [file.name for file in (tmp_path / "sine").glob("artifacts-*/*")] == ["model.pt"]
    assert re.search(r"cpu: loss 0\.\d+", done.stdout)
    assert re.search(r"^params\.lr .*0\.03$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"trials +4 of 4: 4 complete", done.stdout), done.stdout
