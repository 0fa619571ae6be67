"""Options in which the jobs of a comparison differ."""

import pytest

from core.comparison.differences import find_differences
from core.db.models.jobs import Job
from core.jobs.spec.job_spec import JobSpec


def made(job_id, **options):
    spec = JobSpec(machine_type="CPU", command="true", **options)
    return Job(id=job_id, machine_type="CPU", spec_json=spec.to_json())


@pytest.mark.parametrize(
    ("option", "value", "name", "texts"),
    [
        ("use_dockerfile", True, "useDockerfile", ["false", "true"]),
        ("rel_dockerfile_path", "docker/Dockerfile", "relDockerfilePath", ["", "docker/Dockerfile"]),
        ("user", "1000:1000", "user", ["", "1000:1000"]),
        ("packages", ("six", "tqdm"), "packages", ["", "six, tqdm"]),
        ("requirements_file", "gpu.txt", "requirementsFile", ["", "gpu.txt"]),
        ("shared_mem_mb", 64, "sharedMemMb", ["", "64"]),
        ("data_disks", ("imagenet", "scratch:rw"), "dataDisks", ["", "imagenet, scratch:rw"]),
    ],
)
def test_every_option_that_changes_the_program_is_a_difference(option, value, name, texts):
    needed = {"use_dockerfile": True} if option == "rel_dockerfile_path" else {}
    [found] = find_differences([made("j1", **needed), made("j2", **needed | {option: value})])
    assert (found.name, found.values) == (name, {texts[0]: ["j1"], texts[1]: ["j2"]})


@pytest.mark.parametrize(
    "option", [{"capacity": "spot"}, {"priority": 90}, {"name": "other"}, {"env_vars": {"SEED": "2"}}]
)
def test_options_that_leave_the_program_as_it_is_may_differ(option):
    assert find_differences([made("j1"), made("j2", **option)]) == []
