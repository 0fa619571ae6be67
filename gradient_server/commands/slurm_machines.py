"""Machine types of a Slurm cluster, as its nodes and partitions are configured."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from core.catalogue.machine_types import MachineType, find_data_sheet
from core.errors import GradientError
from core.settings import Settings
from worker.backends.slurm.commands import Commands, SlurmError
from worker.backends.slurm.text import SlurmNode, SlurmPartition, parse_nodes, parse_partitions

_TFLOPS_OF_CPU = 0.048  # 16 operations in each cycle of 3 GHz
_BANDWIDTH_OF_CPU = 8.0  # GB/s
_SLICE = re.compile(r"\d+g\.\d+gb")
_LEAST_SECONDS = 60


@dataclass(frozen=True)
class _Shape:
    """The part of a node that a job of one machine type gets."""

    name: str
    partition: SlurmPartition
    cpus: int
    memory_mb: int
    gpus: int = 0
    gres: str = ""  # the GPUs' type, with a colon before it
    feature: str = ""
    sheet: MachineType | None = None

    def at_most(self, other: "_Shape | None") -> "_Shape":
        """Return what nodes of both shapes have."""
        if other is None:
            return self
        return replace(self, cpus=min(self.cpus, other.cpus), memory_mb=min(self.memory_mb, other.memory_mb))


def read_cluster(settings: Settings) -> tuple[list[SlurmPartition], list[SlurmNode]]:
    commands = Commands(settings.slurm)
    try:
        partitions = parse_partitions(commands.run("scontrol", "--oneliner", "show", "partition"))
        nodes = parse_nodes(commands.run("scontrol", "--oneliner", "show", "node"))
    except SlurmError as error:
        raise GradientError(
            f"Slurm does not answer: {error}. Run this command on a login node of the cluster; GRADIENT_SLURM__BIN "
            "names the folder of Slurm's commands if they are not on the PATH."
        ) from error
    return [partition for partition in partitions if not partition.root_only], nodes


def build_entries(
    partitions: Sequence[SlurmPartition], nodes: Sequence[SlurmNode], gpu: str | None
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Return the tables of the machine types by name, and why GPUs are left out.

    `gpu`: the model of GPUs for which the cluster names none that is known.
    """
    if gpu is not None and find_data_sheet(gpu) is None:
        raise GradientError(f"--gpu {gpu}: no such GPU is known. Name one as `gradient-cli machine-types` does: A100.")
    shapes: dict[str, _Shape] = {}
    unknown: dict[str, str] = {}
    for partition in partitions:
        for node in nodes:
            if partition.name in node.partitions and "FUTURE" not in node.state:
                for shape in _shapes(partition, node, gpu, unknown):
                    shapes[shape.name] = shape.at_most(shapes.get(shape.name))
    return {name: _entry(shape) for name, shape in shapes.items()}, list(unknown.values())


def _shapes(partition: SlurmPartition, node: SlurmNode, gpu: str | None, unknown: dict[str, str]) -> Iterator[_Shape]:
    if not node.gpus:
        yield _Shape(f"{partition.name}-cpu{node.cpus}", partition, node.cpus, node.memory_mb)
        return
    total = sum(count for _, count in node.gpus)
    for model, count in node.gpus:
        sheet, feature = _find_sheet(node, model, gpu)
        if sheet is None:
            unknown[f"{partition.name}:{model}"] = _describe_unknown(partition, model)
            continue
        label = (model or feature or sheet.name).lower()
        for gpus in sorted({1, count}):
            yield _Shape(
                name=f"{partition.name}-{label}{f'x{gpus}' if gpus > 1 else ''}",
                partition=partition,
                cpus=max(1, node.cpus * gpus // total),
                memory_mb=node.memory_mb * gpus // total,
                gpus=gpus,
                gres=f":{model}" if model else "",
                feature=feature,
                sheet=sheet,
            )


def _find_sheet(node: SlurmNode, model: str, gpu: str | None) -> tuple[MachineType | None, str]:
    """Return the data sheet of a node's GPUs, and the feature by which nodes with such GPUs are chosen."""
    if _SLICE.search(model):
        return None, ""
    if (sheet := find_data_sheet(model.replace("_", " "))) is not None:
        return sheet, ""
    for feature in node.features:
        if (sheet := find_data_sheet(feature.replace("_", " "))) is not None:
            return sheet, "" if model else feature
    return (None if gpu is None else find_data_sheet(gpu)), ""


def _describe_unknown(partition: SlurmPartition, model: str) -> str:
    if _SLICE.search(model):
        return f"Left out: {model!r} in partition {partition.name!r} is a part of a GPU. Add its table yourself."
    named = f"calls its GPUs {model!r}, which is no known model" if model else "does not name the model of its GPUs"
    return f"Left out: partition {partition.name!r} {named}. Name the model with --gpu, for example --gpu A100."


def _entry(shape: _Shape) -> dict[str, Any]:
    request: dict[str, Any] = {"partition": shape.partition.name}
    if shape.gpus:
        request["gres"] = f"gpu{shape.gres}:{shape.gpus}"
    request |= {"cpus": shape.cpus, "memory_mb": shape.memory_mb}
    if shape.partition.max_seconds is not None:
        request["time_limit"] = max(_LEAST_SECONDS, shape.partition.max_seconds)
    if shape.feature:
        request["constraint"] = shape.feature
    source = f"Slurm, {datetime.now(UTC):%Y-%m-%d}"
    return {
        "backend": "slurm",
        **_hardware(shape, source),
        "cpus": shape.cpus,
        "price_per_hour": 0.0,
        "price_source": "not set",
        "slurm": request,
    }


def _hardware(shape: _Shape, source: str) -> dict[str, Any]:
    sheet = shape.sheet
    if sheet is None:
        tflops = round(_TFLOPS_OF_CPU * shape.cpus, 3)
        return {
            "kind": "cpu",
            "accelerator": f"{shape.cpus} CPUs",
            "count": 1,
            "replicas": 1,
            "memory_gb": round(shape.memory_mb * 2**20 / 1e9, 1),
            "memory_bandwidth_gb_per_s": _BANDWIDTH_OF_CPU * shape.cpus,
            "tflops": {"fp32": tflops, "fp64": round(tflops / 2, 3)},
            "spec_source": f"{source}; estimated",
        }
    return {
        "kind": "gpu",
        "accelerator": sheet.accelerator,
        "count": shape.gpus,
        "replicas": shape.gpus,
        "memory_gb": sheet.memory_gb * shape.gpus,
        "memory_bandwidth_gb_per_s": sheet.memory_bandwidth_gb_per_s,
        "tflops": {precision: round(peak * shape.gpus, 3) for precision, peak in sheet.tflops.items()},
        "spec_source": f"{source}; {sheet.spec_source}",
    }
