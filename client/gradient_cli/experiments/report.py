"""Report of a repetition: published figures beside the measured ones, as Markdown and JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradient_cli import terminal
from gradient_cli.experiments.recipe import Ratio, Recipe
from gradient_cli.experiments.repetition import Cell
from gradient_cli.formatting import format_duration, format_money, format_size

FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "steps_per_second": ("steps/s", "{:.4g}".format),
    "examples_per_second": ("examples/s", "{:.4g}".format),
    "seconds": ("ran", format_duration),
    "test_accuracy": ("test accuracy", "{:.2%}".format),
    "val_accuracy": ("validation accuracy", "{:.2%}".format),
    "target_seconds": ("to the target", format_duration),
    "compile_seconds": ("first step", format_duration),
    "startup_share": ("starting up", "{:.0%}".format),
    "input_wait_share": ("waiting for input", "{:.0%}".format),
    "communication_share": ("communicating", "{:.0%}".format),
    "flops_share": ("of peak operations/s", "{:.0%}".format),
    "bandwidth_share": ("of memory bandwidth", "{:.0%}".format),
    "peak_host_bytes": ("host memory", lambda value: format_size(round(value))),
    "peak_device_bytes": ("device memory", lambda value: format_size(round(value))),
    "other_cpus": ("CPUs used by others", "{:.1f}".format),
    "cost": ("cost", format_money),
}
"""Figures of the tables, in their order: head and format."""
SIMULATED = (
    "The server's own CPU stood in for these machine types. Their measurements say nothing about the real machines "
    "and are not compared between machine types."
)
SCALED_DOWN = "Scaled down, the jobs are too short to confirm or contradict the publication."
STEP_TIMES = (
    "Measured ratios of times are of the time of one step, and so without start-up, compilation, validation and "
    "checkpoints."
)


@dataclass
class Table:
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Section:
    heading: str
    parts: Sequence[str | Table]


def build(recipe: Recipe, cells: Sequence[Cell], scale: str, links: Sequence[str]) -> list[Section]:
    """Return the sections of the report.

    `links`: addresses of the pages with the figures, such as that of the comparison.
    """
    source = recipe.source
    sections = [
        Section(
            recipe.title,
            [
                recipe.summary,
                f"After “{source['title']}” ({source['author']}, {source['year']}) {source.get('url', '')}".rstrip(),
                f"Scale: {scale}",
                *links,
            ],
        )
    ]
    for heading, simulated in (("Measured", False), ("Measured on simulated machines", True)):
        chosen = [cell for cell in cells if cell.simulated is simulated]
        if chosen:
            sections.append(
                Section(heading, [*([SIMULATED] if simulated else []), *_side_by_side(chosen), _figures(chosen)])
            )
    if recipe.ratios:
        of_times = any(ratio.figure == "step_seconds" for ratio in recipe.ratios)
        caveats = [*[STEP_TIMES] * of_times, *[SCALED_DOWN] * scale.startswith("scaled down")]
        sections.append(Section("Published statements", [*caveats, _ratios(recipe.ratios, cells)]))
    if recipe.rows or recipe.notes:
        table = [Table(recipe.columns, recipe.rows)] if recipe.rows else []
        sections.append(Section("Published figures", [*table, *recipe.notes]))
    members = Table(
        ("member", "stands for", "command"),
        [(cell.member.name, cell.member.description, cell.runs[0].job["command"]) for cell in _first_cells(cells)],
    )
    return [*sections, Section("Members", [members])]


def _first_cells(cells: Sequence[Cell]) -> list[Cell]:
    return list({cell.member.name: cell for cell in reversed(cells)}.values())[::-1]


def _side_by_side(cells: Sequence[Cell]) -> list[str]:
    runs = [run for cell in cells for run in cell.runs]
    beside = sum(run.beside for run in runs)
    text = (
        f"{beside} of {len(runs)} jobs ran side by side on one host and slowed each other down, so their times are "
        "less reliable. Without --parallel, jobs run one at a time."
    )
    return [text] if beside else []


def _figures(cells: Sequence[Cell]) -> Table:
    names = [name for name in FIGURES if any(cell.values(name) for cell in cells)]
    rows = []
    for cell in cells:
        done = sum(run.succeeded for run in cell.runs)
        machine = f"{cell.machine_type} (simulated)" if cell.simulated else cell.machine_type
        rows.append(
            [cell.member.name, machine, f"{done} of {len(cell.runs)}", *(_spread(cell, name) for name in names)]
        )
    return Table(["member", "machine type", "succeeded", *(FIGURES[name][0] for name in names)], rows)


def _spread(cell: Cell, name: str) -> str:
    values, form = cell.values(name), FIGURES[name][1]
    middle = cell.median(name)
    if middle is None:
        return "not measured"
    return form(middle) if len(values) == 1 else f"{form(middle)} ({form(min(values))} to {form(max(values))})"


def _ratios(ratios: Sequence[Ratio], cells: Sequence[Cell]) -> Table:
    rows = []
    for ratio in ratios:
        values = evaluate(ratio, cells)
        measured = "; ".join(f"{_value(ratio, value)} ({where})" for where, value in values.items())
        rows.append((ratio.text, _value(ratio, ratio.published), measured or "not measured on real machines"))
    return Table(("statement", "published", "measured"), rows)


def _value(ratio: Ratio, value: float) -> str:
    return f"{100 * value:+.2f} points" if ratio.difference else f"{value:.3g} x"


def evaluate(ratio: Ratio, cells: Sequence[Cell]) -> dict[str, float]:
    """Compute a published ratio from the measured figures.

    A statement about two members is evaluated on each machine type. One about two machine types is evaluated on real
    ones only, because all simulated ones are the same CPU. Returns the values by where they were measured.
    """
    values = {}
    for cell in cells:
        if ratio.of[0] not in {None, cell.member.name} or ratio.of[1] not in {None, cell.machine_type}:
            continue
        member = ratio.over[0] or cell.member.name
        machine = ratio.over[1] or cell.machine_type
        others = [cell for cell in cells if (cell.member.name, cell.machine_type) == (member, machine)]
        if not others or (machine != cell.machine_type and (cell.simulated or others[0].simulated)):
            continue
        value, base = cell.median(ratio.figure), others[0].median(ratio.figure)
        if value is None or not base:
            continue
        where = cell.machine_type if machine == cell.machine_type else f"{cell.machine_type} against {machine}"
        where += ", simulated" if cell.simulated else ""
        values[where] = value - base if ratio.difference else value / base
    return values


def write(folder: str, sections: Sequence[Section], figures: Mapping[str, Any]) -> str:
    """Write `report.md` and `figures.json` into a folder; return the path of the report."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "report.md")
    files = {path: _markdown(sections), os.path.join(folder, "figures.json"): json.dumps(figures, indent=2) + "\n"}
    for name, text in files.items():
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    return path


def as_json(recipe: Recipe, cells: Sequence[Cell], scale: str) -> dict[str, Any]:
    """Return the measured figures: of each job, and the medians of each member and machine type."""
    return {
        "experiment": recipe.name,
        "scale": scale,
        "measured": [
            {
                "member": cell.member.name,
                "machineType": cell.machine_type,
                "simulated": cell.simulated,
                "median": {name: cell.median(name) for name in FIGURES},
                "jobs": [
                    {
                        "id": run.job["id"],
                        "state": run.job["state"],
                        "beside": run.beside,
                        **{name: run.figures.get(name) for name in FIGURES},
                    }
                    for run in cell.runs
                ],
            }
            for cell in cells
        ],
        "statements": [
            {"text": ratio.text, "published": ratio.published, "measured": evaluate(ratio, cells)}
            for ratio in recipe.ratios
        ],
    }


def _markdown(sections: Sequence[Section]) -> str:
    lines: list[str] = []
    for number, section in enumerate(sections):
        lines += [f"{'#' if number == 0 else '##'} {section.heading}", ""]
        for part in section.parts:
            if isinstance(part, Table):
                lines += [_markdown_row(part.heads), "|" + " --- |" * len(part.heads)]
                lines += [*map(_markdown_row, part.rows), ""]
            else:
                lines += [terminal.sanitize(part), ""]
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    shown = [terminal.sanitize(cell).replace("\\", "\\\\").replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(shown)} |"
