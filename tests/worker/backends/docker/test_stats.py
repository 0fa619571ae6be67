from worker.backends.docker.engine.stats import read


def stats(second, cpu, **more):
    return {
        "read": f"2026-11-21T07:27:{second}Z",
        "cpu_stats": {"cpu_usage": {"total_usage": cpu}},
        "memory_stats": {"usage": 700, "stats": {"total_inactive_file": 200}},
        "pids_stats": {"current": 2},
    } | more


def test_memory_is_what_the_job_needs_without_the_cache():
    assert read(stats("29", 0)).values == {"memory_bytes": 500, "processes": 2}
    assert (
        read(stats("29", 0, memory_stats={"usage": 700, "stats": {"inactive_file": 70, "active_file": 30}})).values[
            "memory_bytes"
        ]
        == 600
    )
    assert read(stats("29", 0, memory_stats={"usage": 700})).values["memory_bytes"] == 700


def test_cpu_is_counted_between_two_readings():
    first, second = read(stats("29.445856046", 10**9)), read(stats("31.445856046", 4 * 10**9))
    assert "cpu_percent" not in first.since(None)
    assert round(second.since(first)["cpu_percent"], 3) == 150.0
    assert "cpu_percent" not in first.since(second), "a clock that was set back"
