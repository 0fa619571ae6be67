"""Comparisons as files, by which one installation shows what another one measured."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic_core import from_json

from core.comparison.differences import program_digest, shared_options
from core.db.models.jobs import Job
from core.errors import SpecInvalid
from core.jobs.spec.job_spec import MAX_NAME
from core.release import release_version
from service.app_state import AppState
from service.schemas.base import MAX_LIST, parse_request
from service.schemas.comparisons import (
    ComparisonFile,
    ComparisonView,
    ImportedRows,
    ImportOrigin,
    MachineRow,
    MachineSpec,
)

_FORMAT, _VERSION = "gradient-jobs comparison", 1
_LARGEST = 1e18  # above every figure of a real run, and small enough to be shown
_YEARS = range(2000, 9000)
_IMPOSSIBLE = "The file has a name, time, number or list that cannot be from a comparison."
_UNRANKED: dict[str, Any] = {
    "speedup": None,
    "labels": [],
    **dict.fromkeys(("fastest", "cheapest", "most_accurate", "slower_by", "dearer_by", "worse_by")),
    **dict.fromkeys(("on_metric_time_front", "on_metric_cost_front", "on_time_cost_front")),
}


def write_file(app_state: AppState, view: ComparisonView, jobs: Sequence[Job]) -> str:
    options, offered = shared_options(jobs), {machine_type.name: machine_type for machine_type in app_state.catalogue}
    names = [row.machine_type for row in view.rows if row.machine_type in offered]
    specs = {name: MachineSpec.model_validate(offered[name], from_attributes=True) for name in names}
    images = {(job.machine_type, job.image_digest) for job in jobs if job.image_digest}
    file = ComparisonFile(
        format=_FORMAT,
        format_version=_VERSION,
        id=view.id,
        exported_from=app_state.settings.public_url,
        exported_at=datetime.now(UTC),
        release=release_version(),
        comparison=view.model_copy(update={"machines": specs, "same_program": []}),
        # Without variables, whose values may be secret.
        program={name: value for name, value in options.items() if value and not name.startswith("envVars.")},
        program_sha256=program_digest(jobs),
        image_digests={name: sorted(image for of, image in images if of == name) for name, _ in images},
        sha256="",
    )
    content = json.loads(file.model_dump_json(by_alias=True))
    return json.dumps(content | {"sha256": _digest(content)})


def read_file(body: bytes) -> ComparisonFile:
    try:
        content = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise SpecInvalid(
            f"The file is damaged or was not written by `compare export --to`: {error}.", field="body"
        ) from None
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise SpecInvalid("The file is not a comparison that `gradient-cli compare export --to` wrote.", field="format")
    if content.get("formatVersion") != _VERSION:
        raise SpecInvalid(
            f"The file was written by release {str(content.get('release'))[:40]} in a format that this release, "
            f"{release_version()}, cannot read. Upgrade this server, or export the file with this release.",
            field="formatVersion",
        )
    if content.get("sha256") != _digest(content):
        raise SpecInvalid("The file was changed after its export: its sha256 differs. Export it again.", field="sha256")
    if not _is_shown(content):
        raise SpecInvalid(_IMPOSSIBLE, field="body")
    file = parse_request(ComparisonFile, content)
    known_time = file.exported_at.tzinfo is not None and file.exported_at.year in _YEARS
    if not known_time or len(file.comparison.name or "") > MAX_NAME:
        raise SpecInvalid(_IMPOSSIBLE, field="body")
    return file


def _digest(content: dict[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _is_shown(value: object) -> bool:
    if isinstance(value, dict | list):
        return len(value) <= MAX_LIST and all(map(_is_shown, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or abs(value) <= _LARGEST


def imported_view(text: str, summary: dict[str, Any]) -> ComparisonView:
    """Return the table of an imported comparison, with the ranks that it has where it was measured."""
    file = ComparisonFile.model_validate_json(text)
    origin = (
        f"Imported from {file.exported_from}, release {file.release}, {file.exported_at:%Y-%m-%d}: the "
        "measurements, prices and ranks are from that installation. None of the jobs ran here."
    )
    changed = {
        "rows": _mark(file.comparison.rows, "imported", {}),
        "notes": [origin, *file.comparison.notes],
        "imported": ImportOrigin.model_validate(file, from_attributes=True),
        "same_program": [],
    }
    return file.comparison.model_copy(update=summary | changed)


def imported_rows(comparison_id: str, text: str) -> ImportedRows:
    """Return the rows of an imported comparison, to be shown beside others: without ranks."""
    file = ComparisonFile.model_validate_json(text)
    rows = _mark(file.comparison.rows, f"imported from {file.exported_from}", _UNRANKED)
    return ImportedRows(comparison_id=comparison_id, rows=rows)


def _mark(rows: Sequence[MachineRow], mark: str, changes: Mapping[str, Any]) -> list[MachineRow]:
    return [row.model_copy(update={"marks": [*row.marks, mark], **changes}) for row in rows]
