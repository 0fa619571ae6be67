"""Image options in a job's specification."""

import pytest

from core.errors import SpecInvalid
from core.jobs.spec.job_spec import JobSpec

DIGEST = "sha256:" + "0a" * 32


def spec(**said):
    return JobSpec(**{"machine_type": "CPU", "command": "true"} | said)


def test_nothing_has_to_be_run_where_only_an_image_is_built():
    assert spec(use_dockerfile=True, build_only=True, command="").command == ""
    with pytest.raises(SpecInvalid, match="needs a command"):
        spec(use_dockerfile=True, command="")


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"image_pull_policy": "always"}, "imagePullPolicy"),
        ({"use_dockerfile": True, "container": "debian"}, "container"),
        ({"rel_dockerfile_path": "Dockerfile"}, "relDockerfilePath"),
        ({"build_only": True}, "buildOnly"),
        ({"registry_target": "x/y:1"}, "registryTarget"),
        *(
            ({"use_dockerfile": True, "rel_dockerfile_path": path}, "relDockerfilePath")
            for path in ("", "/etc/passwd", "../Dockerfile", "a/../../b", "a/", "a\nb", "x" * 501)
        ),
        *(
            ({"use_dockerfile": True, "registry_target": target}, "registryTarget")
            for target in ("", "Not One", f"x@{DIGEST}", DIGEST)
        ),
    ],
)
def test_what_cannot_be_is_refused_by_field(said, field):
    with pytest.raises(SpecInvalid) as refused:
        spec(**said)
    assert refused.value.field == field
