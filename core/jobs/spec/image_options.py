"""A job's options for its image and for building one, with the names of the original API."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from core.catalogue.images import is_image_id, is_reference
from core.errors import SpecInvalid

DOCKERFILE = "Dockerfile"
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_MAX_PATH = 500


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """Image options of a job; the fields are those of JobSpec."""

    container: str | None
    image_pull_policy: str | None
    use_dockerfile: bool
    rel_dockerfile_path: str | None
    build_only: bool
    registry_target: str | None

    def check(self) -> None:
        if self.container is not None and not is_reference(self.container):
            raise SpecInvalid(
                f"{quoted(self.container)} is not an image reference. Write it as name:tag or host/name:tag, "
                "for example tensorflow/tensorflow:2.21.0.",
                field="container",
            )
        if self.image_pull_policy is not None and self.image_pull_policy not in PULL_POLICIES:
            raise SpecInvalid(
                f"{quoted(self.image_pull_policy)} is not a pull policy. Choose one of: {', '.join(PULL_POLICIES)}.",
                field="imagePullPolicy",
            )
        if self.use_dockerfile:
            self._check_build()
        else:
            given = {
                "relDockerfilePath": self.rel_dockerfile_path is not None,
                "registryTarget": self.registry_target is not None,
                "buildOnly": self.build_only,
            }
            for field, is_given in given.items():
                if is_given:
                    raise SpecInvalid(
                        f"{field} applies only to an image that is built. Set useDockerfile as well.", field=field
                    )

    def _check_build(self) -> None:
        if self.container is not None:
            raise SpecInvalid(
                "useDockerfile builds an image, but container names an existing one. Leave one of them out.",
                field="container",
            )
        if self.rel_dockerfile_path is not None:
            _check_path(self.rel_dockerfile_path)
        target = self.registry_target
        if target is not None and (not is_reference(target) or is_image_id(target) or "@" in target):
            raise SpecInvalid(
                f"{quoted(target)} is not a valid push target. Write host/name:tag, for example "
                "registry.example.com/team/model:3.",
                field="registryTarget",
            )


def _check_path(path: str) -> None:
    parts = PurePosixPath(path).parts
    readable = path.isprintable() and len(path) <= _MAX_PATH
    if not parts or not readable or path.startswith("/") or ".." in parts or path.endswith("/"):
        raise SpecInvalid(
            f"{quoted(path)} is not a file inside the workspace. Write its path from the workspace's root, for "
            "example docker/Dockerfile.",
            field="relDockerfilePath",
        )


def quoted(value: str) -> str:
    """Quote a value for an error message, on one line of a terminal."""
    return repr(value if len(value) <= 80 else value[:77] + "…")  # noqa: PLR2004 - a line of a terminal


def check_slashes(paths: Sequence[str], field: str) -> None:
    """Refuse paths with backslashes: Windows has them between folders, and they would name other files here."""
    wrong = next((path for path in paths if "\\" in path), None)
    if wrong is not None:
        shown, right = (text[:80] for text in (wrong, wrong.replace("\\", "/")))
        raise SpecInvalid(f"'{shown}' has backslashes. Write it with slashes: {right}", field=field)
