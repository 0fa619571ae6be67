import argparse
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from core.catalogue import host_measurement
from core.catalogue.machine_types import Catalogue, host_entry
from core.errors import GradientError
from core.settings import Settings
from core.system.filesystem import make_private, write_atomically

_LIMIT_SECONDS = 60
_FINDS = "import importlib.util as u, sys; sys.exit(not any(map(u.find_spec, sys.argv[1:])))"


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    """Measure, and add or replace the entry."""
    name = parsed.name or settings.machines.host or "host"
    machine = _measure(parsed.python, "cpu" if settings.machines.simulate else "gpu")  # processes have no GPUs
    entry = host_entry(settings, machine)
    entry["spec_source"] = f"measured on this host, {datetime.now(UTC):%Y-%m-%d}"
    if parsed.price is not None:
        entry |= {"price_per_hour": parsed.price, "price_source": f"own price, {datetime.now(UTC):%Y-%m}"}
    if not parsed.dry_run:
        file = settings.machines.file or settings.root / "machines.toml"
        _write(settings, file, name, entry)
        print(f"Wrote [{name}] to {file}. Restart the service and its workers to apply it.", file=sys.stderr)
    if reason := machine.get("unmeasured"):
        print(reason, file=sys.stderr)
    print(json.dumps({name: entry}) if parsed.json else format_table(name, entry))
    return 0


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


def _write(settings: Settings, file: Path, name: str, entry: dict[str, Any]) -> None:
    """Replace the table of this name, or add it; the file is only replaced by one that can be read."""
    make_private(settings.root, settings.sqlite_file)
    before = file.read_text(encoding="utf-8") if file.is_file() else ""
    table = re.compile(rf'(?mi)^\["?{re.escape(name)}"?\][^\n]*\n(?:(?!\[)[^\n]*\n?)*')
    text = f"{table.sub('', before).rstrip()}\n\n{format_table(name, entry)}\n".lstrip()
    checked = file.with_name(f"{file.name}.new")
    checked.write_text(text, encoding="utf-8")
    try:
        Catalogue.load(override_path=checked)
    finally:
        checked.unlink()
    write_atomically(file, text.encode())
