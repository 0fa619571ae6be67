"""GET /jobs/ID/why: the explanation on a job that failed."""

import pytest

TRACEBACK = """step 1
Traceback (most recent call last):
  File "/paperspace/train.py", line 12, in main
    model(x)
  File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 125, in forward
    return F.linear(input, self.weight, self.bias)
RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x5 and 3x4)
"""
SHM = "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_0>: No space left on device (28)\n"


@pytest.fixture
def fail(submit, worker, stores):
    def run(printed, reason="exit_nonzero", detail=None, **spec):
        submit(**spec)
        job = worker.start()
        with stores.logs.open_writer(job.id, 1) as log:
            log.append(printed.encode(), 1_700_000_000_000)
        worker.end(job, reason, detail=detail, exit_code=1)
        return job.id

    return run


def why(client, job_id):
    answer = client.get(f"/jobs/{job_id}/why")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_log_tells_class_evidence_and_place(signed_in_browser, fail):
    job_id = fail(TRACEBACK)
    explanation = why(signed_in_browser, job_id)
    assert (explanation["cause"], explanation["source"], explanation["state"]) == ("code", "log", "Failed")
    assert explanation["evidence"] == {"line": 7, "message": TRACEBACK.splitlines()[-1]}
    assert explanation["place"] == {"file": "train.py", "line": 12}
    assert (explanation["meaning"], explanation["clone"]) == ("the program, its command or its options", None)
    page = signed_in_browser.get(f"/ui/jobs/{job_id}").text
    assert "Probably the program&#39;s fault</span> Line 12 of <code>train.py</code>" in page


@pytest.mark.parametrize(
    ("failure", "spec", "cause", "clone"),
    [
        ((TRACEBACK, "out_of_memory", "512 MiB"), {}, "memory", ("memoryMb", 1024, "Clone with 1 GiB")),
        (("", "out_of_memory", "4096 MiB"), {"memory_mb": 4096}, "memory", ("memoryMb", 8192, "Clone with 8 GiB")),
        ((SHM,), {}, "memory", ("sharedMemMb", 2048, "Clone with 2 GiB of shared memory")),
        ((TRACEBACK, "time_limit", "10 s"), {"time_limit": 10}, "time", ("timeLimit", 20, "Clone with 20 s")),
        ((TRACEBACK, "preempted"), {}, "preempted", ("maxAttempts", 3, "Clone with 3 attempts")),
        ((TRACEBACK, "disk_quota", "5 MiB"), {}, "disk", None),
        (("accuracy too low\n",), {}, None, None),
    ],
)
def test_the_clone_that_helps(signed_in_browser, fail, failure, spec, cause, clone):
    job_id = fail(*failure, **spec)
    explanation = why(signed_in_browser, job_id)
    given = explanation["clone"] and tuple(explanation["clone"][name] for name in ("option", "value", "label"))
    assert (explanation["cause"], given) == (cause, clone)
    if clone is not None:
        assert f'value="{clone[1]}"' in signed_in_browser.get(explanation["clone"]["url"]).text
        assert clone[2] in signed_in_browser.get(f"/ui/jobs/{job_id}").text


def test_a_limit_of_the_job_is_told_from_the_memory_of_its_machine(signed_in_browser, fail):
    limited = fail("", "out_of_memory", "400 MiB", memory_mb=400)
    page = signed_in_browser.get(f"/ui/jobs/{limited}").text
    assert "Cause: the job&#39;s memory limit (400 MiB)" in page
    assert "Raise the limit" in page
    assert "Clone with 800 MiB…" in page
    assert "machine type with more memory" not in page
    page = signed_in_browser.get(f"/ui/jobs/{fail('', 'machine_memory')}").text
    assert "Cause: the memory of the job or its machine" in page
    assert "The machine ran out of memory. Choose a larger one." in page


def test_a_job_that_has_not_failed_has_its_reason_alone(client, submit):
    explanation = why(client, submit().id)
    assert (explanation["state"], explanation["cause"], explanation["evidence"], explanation["clone"]) == (
        "Pending",
        None,
        None,
        None,
    )
    assert explanation["reason"] == "no_worker"
    assert client.get("/jobs/jzzzzzzzzzzzzz/why").status_code == 404
