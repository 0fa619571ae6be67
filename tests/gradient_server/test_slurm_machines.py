"""`gradient-server machines add --slurm`: the machine types of a cluster, as the service then offers them."""

import json
import stat
import tomllib

import pytest

from core.catalogue.machine_types import Catalogue
from core.settings import Settings
from gradient_server.main import main

PARTITIONS = """\
PartitionName=gpu Default=YES MaxTime=2-00:00:00 RootOnly=NO State=UP
PartitionName=admin MaxTime=UNLIMITED RootOnly=YES State=UP
"""


@pytest.fixture
def add(tmp_path, monkeypatch, capsys):
    """A function that runs the command; returns its exit code, its output and the errors."""
    monkeypatch.setenv("GRADIENT_HOME", str(tmp_path))

    def run(*options):
        code = main(["machines", "add", "--slurm", *options])
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def nodes(tmp_path, monkeypatch):
    """A function that puts up a cluster with these nodes, as `scontrol` prints them."""

    def put_up(*lines):
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        (folder / "node").write_text("".join(f"{line}\n" for line in lines))
        (folder / "partition").write_text(PARTITIONS)
        program = folder / "scontrol"
        program.write_text(f'#!/bin/sh\nfor word; do :; done\nexec cat "{folder}/$word"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("GRADIENT_SLURM__BIN", str(folder))

    return put_up


def _node(gres, cpus=64, memory=512000, features="(null)", name="g1"):
    shape = f"CPUTot={cpus} ActiveFeatures={features} Gres={gres} RealMemory={memory}"
    return f"NodeName={name} Arch=x86_64 {shape} State=IDLE Partitions=gpu,admin"


def test_the_types_of_a_real_cluster_are_offered(slurm, add, tmp_path):  # noqa: ARG001 - commands reach it
    code, _, errors = add()
    assert code == 0
    assert "partition 'main' does not name the model of its GPUs. Name the model with --gpu" in errors
    assert "Wrote 6 machine types" in errors
    code, output, errors = add("--gpu", "V100", "--json")
    assert (code, "Left out" in errors) == (0, False)
    written = tomllib.loads((tmp_path / "machines.toml").read_text())
    assert written == json.loads(output)
    short = ("short-a100", "short-a100x2")
    assert sorted(written) == [
        "closed-cpu4",
        "main-a100",
        "main-a100x2",
        "main-cpu4",
        "main-v100",
        "main-v100x2",
        *short,
    ]
    offered = Catalogue.offered(Settings())
    one, two, untyped = (offered.get(name) for name in ("main-a100", "main-a100x2", "main-v100"))
    assert (one.backend, one.accelerator, one.price_per_hour) == ("slurm", "NVIDIA A100 SXM4 40 GB", 0)
    assert (one.gpus, one.cpus, two.gpus, two.cpus, two.memory_gb) == (1, 2, 2, 4, 80)
    assert (one.slurm.partition, one.slurm.gres, two.slurm.gres, untyped.slurm.gres) == (
        *("main", "gpu:a100:1", "gpu:a100:2", "gpu:1"),
    )
    assert (one.slurm.memory_mb, one.slurm.time_limit) == (4000, 86400)
    cpu = offered.get("closed-cpu4")
    assert (cpu.kind, cpu.slurm.gres, cpu.slurm.cpus, cpu.slurm.time_limit) == ("cpu", None, 4, None)


def test_types_hold_what_all_their_nodes_have(nodes, add):
    nodes(_node("gpu:a100:4"), _node("gpu:a100:4", cpus=48, memory=256000), _node("gpu:a100:8(S:0-1)", cpus=128))
    entries = json.loads(add("--json")[1])
    assert {name: (entry["slurm"]["cpus"], entry["slurm"]["memory_mb"]) for name, entry in entries.items()} == {
        "gpu-a100": (12, 64000),
        "gpu-a100x4": (48, 256000),
        "gpu-a100x8": (128, 512000),
    }


@pytest.mark.parametrize(
    ("gres", "features", "name", "special"),
    [
        ("gpu:nvidia_a100_80gb_pcie:1", "(null)", "gpu-nvidia_a100_80gb_pcie", {"gres": "gpu:nvidia_a100_80gb_pcie:1"}),
        ("gpu:1", "ib,v100", "gpu-v100", {"gres": "gpu:1", "constraint": "v100"}),
        ("gpu:tesla:1,shard:8", "v100", "gpu-tesla", {"gres": "gpu:tesla:1"}),
    ],
)
def test_models_are_known_by_type_or_feature(nodes, add, gres, features, name, special):
    nodes(_node(gres, features=features))
    entries = json.loads(add("--json")[1])
    assert list(entries) == [name]
    shared = {"partition": "gpu", "cpus": 64, "memory_mb": 512000, "time_limit": 172800}
    assert entries[name]["slurm"] == shared | special


def test_prices_of_earlier_entries_are_kept(nodes, add, tmp_path):
    nodes(_node("gpu:a100:1"))
    file = tmp_path / "machines.toml"
    assert add("--price", "0.5")[0] == 0
    file.write_text("[CPU]\nprice_per_hour = 0.1\n\n" + file.read_text())
    assert add()[0] == 0
    kept = tomllib.loads(file.read_text())
    assert (kept["CPU"], kept["gpu-a100"]["price_per_hour"]) == ({"price_per_hour": 0.1}, 0.5)
    assert kept["gpu-a100"]["price_source"].startswith("own price")
    assert add("--dry-run", "--price", "9")[0] == 0
    assert tomllib.loads(file.read_text()) == kept


@pytest.mark.parametrize(
    ("lines", "options", "code", "error"),
    [
        ([_node("gpu:riva:4")], [], 1, "partition 'gpu' calls its GPUs 'riva', which is no known model"),
        ([_node("gpu:a100_3g.20gb:4")], ["--gpu", "A100"], 1, "'a100_3g.20gb' in partition 'gpu' is a part of a GPU"),
        ([], [], 1, "No partition of the cluster has nodes"),
        ([_node("gpu:2")], ["--gpu", "RX9"], 1, "--gpu RX9: no such GPU is known"),
        ([_node("gpu:2")], ["--name", "x"], 1, "--name is for this machine"),
    ],
)
def test_errors_say_what_is_wrong(nodes, add, tmp_path, lines, options, code, error):
    nodes(*lines)
    ended, _, errors = add(*options)
    assert (ended, error in errors) == (code, True), errors
    assert not (tmp_path / "machines.toml").exists()


def test_without_slurm_it_says_where_to_run_it(add, tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIENT_SLURM__BIN", str(tmp_path))
    code, _, errors = add()
    assert code == 1
    assert "Slurm does not answer" in errors
    assert "login node" in errors
