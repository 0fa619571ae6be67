import time

import pytest

from core.errors import SpecInvalid
from core.jobs.spec.job_spec import JobSpec
from core.jobs.spec.outputs import matches


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("model.pt", ["model.pt", "model.pt/part"], ["a/model.pt", "model.ptx"]),
        ("*.pt", ["a.pt"], ["a/b.pt"]),
        ("**/*.pt", ["a.pt", "x/y/a.pt"], ["a.py"]),
        ("outputs", ["outputs/a", "outputs/b/c"], ["outputs2/a", "x/outputs/a"]),
        ("outputs/**", ["outputs/a", "outputs/b/c"], ["a"]),
        ("./outputs/", ["outputs/a"], ["a"]),
        ("run-?/*.png", ["run-1/a.png"], ["run-10/a.png", "run-1/x/a.png"]),
        ("a/**/z", ["a/z", "a/b/c/z", "a/b/z/more"], ["z", "a/b"]),
        ("[ab].txt", ["a.txt"], ["c.txt"]),
        ("**", ["a", "b/c"], []),
    ],
)
def test_patterns_match_as_in_a_shell(pattern, matching, other):
    assert [path for path in matching if not matches(pattern, path)] == []
    assert [path for path in other if matches(pattern, path)] == []


def test_no_name_of_a_file_makes_matching_slow():
    began = time.process_time()
    assert not matches("*a" * 200 + "b", "a" * 255)
    assert not matches("**/a/" * 80 + "b", "a/" * 200 + "c")
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("outputs", "says"),
    [
        (("/artifacts/x",), "leads out of the workspace"),
        (("../x",), "leads out of the workspace"),
        (("",), "0 characters"),
        (("a\nb",), "line break"),
        (("x" * 501,), "501 characters"),
        (("x",) * 51, "51 patterns"),
    ],
)
def test_invalid_patterns_are_refused_with_the_fix(outputs, says):
    with pytest.raises(SpecInvalid, match="such as outputs") as refused:
        JobSpec(machine_type="CPU", command="true", outputs=outputs)
    assert says in refused.value.message
    assert refused.value.field == "outputs"
