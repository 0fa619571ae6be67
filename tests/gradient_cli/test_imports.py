"""The imports of the programs of a command, and the kept list of who publishes modules."""

import gc
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from gradient_cli.workspace.dependencies.imports import ProgramImports, distributions_of, remedy_for

pytestmark = pytest.mark.unit

FILES = {
    "main.py": "import os, numpy as np\nfrom pkg.model import Net\nimport helpers\nfrom google.cloud import storage\n",
    "pkg/__init__.py": "",
    "pkg/model.py": "from . import layers\nfrom .more.other import x\nimport cv2\n\ndef f():\n    import yaml\n",
    "pkg/layers.py": "import PIL.Image\n",
    "pkg/more/other.py": "import torch\nif TYPE_CHECKING:\n    import jax\n",
    "helpers.py": "try:\n    import apex\nexcept ImportError:\n    apex = None\ntry:\n    import six\nfinally:\n"
    "    pass\n",
    "run.sh": "#!/bin/bash\nset -e\ncd src && python train.py --x 1\n",
    "src/train.py": "import wandb\nimport mylib\n",
    "lib/mylib/a.py": "",
    "tool": "#!/usr/bin/env python3\nimport click\n",
    "nb.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": ["!pip install x\n", "import seaborn\n"]}]}),
    "broken.py": "import numpy\nprint 'Python 2'\n",
    "inline.py": "# /// script\n# dependencies = []\n# ///\nimport tinydb\n",
}
OF_MAIN = {"numpy", "google.cloud.storage", "cv2", "yaml", "PIL", "torch", "six"}


@pytest.fixture
def imports_of(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return lambda command, start=".": ProgramImports(tmp_path, tmp_path / start, command)


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python main.py --epochs 3", OF_MAIN),
        ("A=1 torchrun --nproc-per-node 2 main.py; echo done", OF_MAIN),
        ("bash -c 'python main.py'", OF_MAIN),
        ("python -m pkg.model", {"cv2", "yaml", "PIL", "torch"}),
        ("bash run.sh", {"wandb"}),
        ("./tool", {"click"}),
        ("cd src; python train.py", {"wandb"}),
        ("python -c 'import numpy, unheard_of'", {"numpy", "unheard_of"}),
        ("python - <<X\nimport scipy\nX", {"scipy"}),
        ("papermill nb.ipynb out.ipynb", {"seaborn"}),
        ("python -c 'import papermill' 2>/dev/null || pip install papermill", set()),
        ("python -m torch.distributed.run main.py", OF_MAIN),
        ("python broken.py", set()),
        ("echo hi", set()),
        ("set -e\ncd src  # it's there\npython train.py", {"wandb"}),
        ("pip install -q wandb && cd src && python train.py", set()),
        ("pip install -r more.txt && python src/train.py", set()),
        ("uv run --with wandb src/train.py", set()),
        ("uv run inline.py", set()),
        ("uv run python inline.py", {"tinydb"}),
        ("python 'unclosed", set()),
    ],
)
def test_imports_are_those_of_the_programs_that_a_command_names(imports_of, command, found):
    found_imports = imports_of(command)
    assert set(found_imports.undeclared) == found


@pytest.mark.parametrize(
    ("command", "others"),
    [
        ("uv run --extra a --group b python main.py --package x", False),
        ("uv run train --project wandb", False),
        ("uv run --package a train", True),
        ("uv run --all-extras main.py", True),
        ("uv sync --no-dev && uv run main.py", True),
        ("uv add six; python main.py", True),
        ("uv --project src run main.py", True),
        ("python main.py --package run", False),
    ],
)
def test_options_of_uv_that_choose_another_environment_are_left_to_it(imports_of, command, others):
    assert imports_of(command).uv.others == others


def test_an_import_has_its_place(imports_of):
    assert imports_of("python main.py").imports["cv2"] == "pkg/model.py, line 3"


def test_a_command_that_does_not_tell_its_programs_is_not_certain(imports_of):
    assert not imports_of("make train").certain
    assert imports_of("make train").imports_any("cv2")
    assert imports_of("python main.py").certain
    assert (imports_of("echo hi").runs_python, imports_of("make train").runs_python) == (False, True)


def test_a_program_outside_of_the_folder_is_not_read(imports_of, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}.py"
    outside.write_text("import numpy\n")
    (tmp_path / "link.py").symlink_to(outside)
    found_imports = imports_of(f"python ../{outside.name}; python link.py; python {outside}; python src/train.py")
    assert set(found_imports.imports) == {"wandb"}


@pytest.mark.parametrize("name", ["loop.py", "n" * 5000 + ".py", "'a\0b.py'", "tree.py", "closed.py"])
def test_what_cannot_be_read_is_left_to_the_command(imports_of, tmp_path, name):
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "tree.py").write_text("x = " + "(" * 5000 + ")" * 5000)
    (tmp_path / "closed.py").mkdir()
    assert imports_of(f"cd {name}; python {name}; python main.py").imports_any("numpy")


def test_a_module_has_the_distribution_that_its_authors_publish():
    usual = {"cv2": "opencv-python-headless", "PIL": "pillow", "sklearn": "scikit-learn", "yaml": "PyYAML"}
    usual |= {"google.cloud.storage.blob": "google-cloud-storage", "numpy": "numpy", "skimage": "scikit-image"}
    assert {module: distributions_of(module)[0] for module in usual} == usual
    assert distributions_of("unheard_of") == distributions_of("google") == ()
    assert "--with pillow" in remedy_for("PIL")
    assert "--with PACKAGE" in remedy_for("unheard_of")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from torch.utils.tensorboard import SummaryWriter", {"torch.utils.tensorboard", "tensorboard"}),
        ("from transformers import Trainer", {"transformers", "torch", "accelerate"}),
        ("import haiku as hk", {"haiku", "jax"}),
        ("import torch.utils.data", {"torch"}),
    ],
)
def test_a_module_brings_those_that_its_distribution_does_not_require(imports_of, tmp_path, text, found):
    (tmp_path / "one.py").write_text(f"{text}\n")
    assert set(imports_of("python one.py").imports) == found


@pytest.mark.parametrize(
    ("name", "text"), [("setup.py", ""), ("pyproject.toml", '[build-system]\nrequires = ["hatchling"]\n')]
)
def test_what_a_distribution_imports_now_and_then_is_left_to_it(imports_of, tmp_path, name, text):
    (tmp_path / "pkg" / "lazy.py").write_text("import numpy\nif numpy:\n    import wandb\n")
    (tmp_path / "one.py").write_text("import pkg.model, pkg.lazy\ndef main():\n    import click\n")
    command, always = "python one.py", {"cv2", "PIL", "torch", "numpy", "click"}
    assert set(imports_of(command).imports) == {*always, "yaml", "wandb"}
    (tmp_path / name).write_text(text)
    assert set(imports_of(command).imports) == always


class Garbage:
    """Garbage that ends by Python code, so that another thread may run while it is collected."""

    def __init__(self):
        self.itself = self

    def __del__(self):
        assert sum(range(50))


def test_programs_that_several_threads_read_at_once_are_read_whole(imports_of, tmp_path):
    functions = "".join(
        f"def f{number}(a, b=(1, [2, {{3: 4}}])):\n    return a + b * (c - d)\n" for number in range(200)
    )
    (tmp_path / "one.py").write_text(f"import numpy\n{functions}import cv2\n")

    def read(_):
        found = imports_of("python one.py").imports
        assert [Garbage() for _ in range(20)]
        return set(found)

    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(read, range(60))) == [{"numpy", "cv2"}] * 60
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
