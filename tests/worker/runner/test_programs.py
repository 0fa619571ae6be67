"""The programs of a TPU VM, written there as by its start-up script."""

import subprocess
import sys
from zipfile import ZipFile

import pytest

from worker.backends.tpu.provisioning.startup_parts import write_programs

pytestmark = pytest.mark.integration


def test_they_fit_into_a_startup_script():
    assert len(write_programs()) < 200 << 10, "Google allows 256 KiB, with the rest of the script"


def test_they_need_the_standard_library_alone(tmp_path):
    subprocess.run(["bash", "-c", write_programs()], env={"place": str(tmp_path)}, check=True)
    packed = str(tmp_path / "runner.pyz")
    modules = [name.removesuffix(".py").replace("/", ".") for name in ZipFile(packed).namelist()]
    assert {"on_vm.__main__", "worker.runner.__init__", "core.jobs.exec.channel"} <= set(modules)
    program = f"import importlib, sys; sys.path.insert(0, {packed!r})\n"
    program += "for name in sys.argv[1:]: importlib.import_module(name.removesuffix('.__init__'))"
    subprocess.run([sys.executable, "-I", "-S", "-c", program, *modules], check=True)
