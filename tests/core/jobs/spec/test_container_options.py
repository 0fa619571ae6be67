"""Shared memory, working directory, user and network of a job."""

import pytest

from core.errors import SpecInvalid
from core.jobs.spec.container_options import uid_gid
from core.jobs.spec.job_spec import JobSpec


def spec(**fields):
    return JobSpec(machine_type="CPU", command="true", **fields)


def test_what_makes_sense_is_kept_and_comes_back():
    asked = spec(shared_mem_mb=2048, memory_mb=2048, working_dir="src/train", user="1000:100", network="none")
    assert JobSpec.from_json(asked.to_json()) == asked
    stored = spec().to_json()
    for name in ("shared_mem_mb", "working_dir", "user", "network"):
        del stored[name]  # by a release that did not know them
    assert JobSpec.from_json(stored) == spec()


@pytest.mark.parametrize(
    ("fields", "field", "told"),
    [
        ({"shared_mem_mb": 0}, "sharedMemMb", "out of range"),
        ({"shared_mem_mb": 2049, "memory_mb": 2048}, "sharedMemMb", "exceed the job's 2,048 MiB"),
        ({"working_dir": ""}, "workingDir", "0 characters"),
        ({"working_dir": "../other"}, "workingDir", "contains '..'"),
        ({"working_dir": "/paperspace/../etc"}, "workingDir", "contains '..'"),
        ({"working_dir": "a\nb"}, "workingDir", "line break"),
        ({"working_dir": "a" * 1001}, "workingDir", "1,001 characters"),
        ({"network": "host"}, "network", "'host' is not a network for jobs"),
        ({"network": ""}, "network", "Write none for no network"),
        ({"user": ""}, "user", "Invalid user"),
        ({"user": "nobody"}, "user", "Write UID or UID:GID as numbers"),
        ({"user": "1000:"}, "user", "Invalid user"),
        ({"user": "-1"}, "user", "Invalid user"),
        ({"user": "1000:100:7"}, "user", "Invalid user"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(fields, field, told):
    with pytest.raises(SpecInvalid) as refused:
        spec(**fields)
    assert refused.value.field == field
    assert told in refused.value.message


@pytest.mark.parametrize(("user", "numeric"), [("root", "0:0"), ("7", "7:7"), ("7:8", "7:8"), ("007:0", "7:0")])
def test_a_user_in_numbers(user, numeric):
    assert uid_gid(user) == numeric
