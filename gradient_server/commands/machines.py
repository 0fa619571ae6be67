import argparse
import json
import re
import subprocess
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.catalogue import host_measurement
from core.catalogue.machine_types import Catalogue, host_entry
from core.errors import GradientError
from core.settings import Settings
from core.system.filesystem import make_private, write_atomically
from gradient_server.commands import slurm_machines

_LIMIT_SECONDS = 60
_FINDS = "import importlib.util as u, sys; sys.exit(not any(map(u.find_spec, sys.argv[1:])))"


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    """Measure, or ask Slurm, and add or replace the entries."""
    if parsed.slurm:
        return _add_slurm(parsed, settings)
    if parsed.gpu is not None:
        raise GradientError("--gpu is for machine types of a Slurm cluster. Leave it out, or add --slurm.")
    name = parsed.name or settings.machines.host or "host"
    machine = _measure(parsed.python, "cpu" if settings.machines.simulate else "gpu")  # processes have no GPUs
    entry = host_entry(settings, machine)
    entry["spec_source"] = f"measured on this host, {datetime.now(UTC):%Y-%m-%d}"
    if parsed.price is not None:
        entry |= {"price_per_hour": parsed.price, "price_source": f"own price, {datetime.now(UTC):%Y-%m}"}
    if not parsed.dry_run:
        file = settings.machines.file or settings.root / "machines.toml"
        _write(settings, file, {name: entry})
        print(f"Wrote [{name}] to {file}. Restart the service and its workers to apply it.", file=sys.stderr)
    if reason := machine.get("unmeasured"):
        print(reason, file=sys.stderr)
    print(json.dumps({name: entry}) if parsed.json else format_table(name, entry))
    return 0


def _add_slurm(parsed: argparse.Namespace, settings: Settings) -> int:
    for option in ("name", "python"):
        if getattr(parsed, option) is not None:
            raise GradientError(f"--{option} is for this machine, not for a Slurm cluster. Leave it out.")
    partitions, nodes = slurm_machines.read_cluster(settings)
    entries, left_out = slurm_machines.build_entries(partitions, nodes, parsed.gpu)
    print(*left_out, sep="\n", end="\n" if left_out else "", file=sys.stderr)
    if not entries:
        raise GradientError("No partition of the cluster has nodes for which a machine type could be written.")
    file = settings.machines.file or settings.root / "machines.toml"
    entries = {name: entry | _price(parsed, file, name) for name, entry in entries.items()}
    if not parsed.dry_run:
        _write(settings, file, entries)
        count = f"{len(entries)} machine type{'s' * (len(entries) > 1)}"
        print(f"Wrote {count} to {file}. Restart the service and its workers to apply them.", file=sys.stderr)
    tables = [format_table(name, entry) for name, entry in entries.items()]
    print(json.dumps(entries) if parsed.json else "\n\n".join(tables))
    return 0


def _price(parsed: argparse.Namespace, file: Path, name: str) -> dict[str, Any]:
    """Return the price that was given, or the one that the file has."""
    if parsed.price is not None:
        return {"price_per_hour": parsed.price, "price_source": f"own price, {datetime.now(UTC):%Y-%m}"}
    try:
        kept = tomllib.loads(file.read_text(encoding="utf-8")).get(name, {}) if file.is_file() else {}
    except tomllib.TOMLDecodeError as error:
        raise GradientError(f"{file} is not valid TOML: {error}. Correct it first.") from error
    return {key: kept[key] for key in ("price_per_hour", "price_source") if key in kept}


def _measure(python: str | None, device: str) -> dict[str, Any]:
    """Run the measurement with a Python that has torch, or at least numpy; else with the service's own."""
    wanted = ("torch",) if device == "gpu" and host_measurement.describe()["gpus"] else ("torch", "numpy")
    chosen = python or next(
        (python_path for python_path in (sys.executable, "python3", "python") if _has(python_path, wanted)),
        sys.executable,
    )
    try:
        done = subprocess.run(  # noqa: S603 - the administrator's choice
            [chosen, host_measurement.__file__, "--json", "--device", device],
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
        machine: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise GradientError(f"--python {chosen}: the measurement failed: {error}. Choose another Python.") from error
    return machine


def _has(python: str, packages: tuple[str, ...]) -> bool:
    command = [python, "-c", _FINDS, *packages]
    try:
        return not subprocess.run(command, capture_output=True, timeout=10, check=False).returncode  # noqa: S603 - as above
    except (OSError, subprocess.TimeoutExpired):
        return False


def format_table(name: str, entry: dict[str, Any]) -> str:
    return "\n".join((f"[{json.dumps(name)}]", *(f"{key} = {_value(value)}" for key, value in entry.items())))


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }" if value else "{}"
    return json.dumps(value, ensure_ascii=False)


def _write(settings: Settings, file: Path, entries: dict[str, dict[str, Any]]) -> None:
    """Replace the tables of these names, or add them; the file is only replaced by one that can be read."""
    make_private(settings.root, settings.sqlite_file)
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    for name, entry in entries.items():
        table = re.compile(rf'(?mi)^\["?{re.escape(name)}"?\][^\n]*\n(?:(?!\[)[^\n]*\n?)*')
        text = f"{table.sub('', text).rstrip()}\n\n{format_table(name, entry)}\n".lstrip()
    checked = file.with_name(f"{file.name}.new")
    checked.write_text(text, encoding="utf-8")
    try:
        Catalogue.load(override_path=checked)
    finally:
        checked.unlink()
    write_atomically(file, text.encode())
