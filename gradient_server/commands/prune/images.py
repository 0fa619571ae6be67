"""`gradient-server prune --images`: lists and deletes this host's unused images of jobs."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from core.catalogue.backends import capabilities_of, enabled_backends
from core.errors import StoreUnavailable
from core.formatting import format_bytes, iso_time_ms
from core.settings import Settings
from worker.backends import make_backend
from worker.backends.base import ImageBackend, LaunchError, UnusedImage

_ROW = "{:52} {:>10}  {:16} {}"


def run(settings: Settings, *, dry_run: bool, as_json: bool) -> int:
    """Delete unused images, or only list them, and return the exit code."""
    keepers = _image_backends(settings)
    if not keepers:
        print(_format_json([], dry_run=dry_run) if as_json else "Machine types are simulated here: jobs use no images.")
        return 0
    gone = [image for keeper in keepers for image in _prune_backend(keeper, dry_run=dry_run)]
    print(_format_json(gone, dry_run=dry_run) if as_json else "\n".join(_report_lines(gone, dry_run=dry_run)))
    return 0


def _image_backends(settings: Settings) -> list[ImageBackend]:
    able = ((name, capabilities_of(name)) for name in enabled_backends(settings))
    backends = (make_backend(name, settings) for name, can in able if can.builds_images or can.optional_containers)
    return [backend for backend in backends if isinstance(backend, ImageBackend)]


def _prune_backend(keeper: ImageBackend, *, dry_run: bool) -> list[UnusedImage]:
    try:
        return keeper.prune_images(everything=True, dry_run=dry_run)
    except LaunchError as error:
        raise StoreUnavailable(
            f"The container engine does not answer ({error.detail}). Run this on the worker's machine; "
            "GRADIENT_DOCKER__URL sets the engine's address."
        ) from error


def _report_lines(gone: Sequence[UnusedImage], *, dry_run: bool) -> Iterator[str]:
    if gone:
        yield _ROW.format("IMAGE", "BYTES", "LAST USED (UTC)", "ADDED BY")
        for image in gone:
            used = datetime.fromtimestamp(image.used_at, UTC)
            came = "building" if image.built else "pulling"
            yield _ROW.format(image.reference, format_bytes(image.bytes), f"{used:%Y-%m-%d %H:%M}", came)
    count = f"{len(gone)} image{'s' * (len(gone) != 1)} ({format_bytes(sum(image.bytes for image in gone))})"
    yield f"{'Would be removed' if dry_run else 'Removed'}: {count if gone else 'nothing'}."


def _format_json(gone: Sequence[UnusedImage], *, dry_run: bool) -> str:
    images = [
        {
            "reference": image.reference,
            "bytes": image.bytes,
            "usedAt": iso_time_ms(round(1000 * image.used_at)),
            "built": image.built,
        }
        for image in gone
    ]
    return json.dumps({"dryRun": dry_run, "images": images}, indent=2)
