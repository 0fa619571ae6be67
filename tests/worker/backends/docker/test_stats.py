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


def test_network_and_disk_are_sums():
    disk = [{"op": "Read", "value": 5}, {"op": "Write", "value": 7}, {"op": "write", "value": 1}, {"op": "Sync"}]
    networks = {"eth0": {"rx_bytes": 1, "tx_bytes": 2}, "eth1": {"rx_bytes": 10, "tx_bytes": 20}}
    values = read(stats("29", 0, networks=networks, blkio_stats={"io_service_bytes_recursive": disk})).values
    assert (values["network_received_bytes"], values["network_sent_bytes"]) == (11, 22)
    assert (values["disk_read_bytes"], values["disk_written_bytes"]) == (5, 8)


def test_a_container_that_does_not_run_uses_nothing():
    assert read({"read": "0001-01-01T00:00:00Z", "memory_stats": {}, "cpu_stats": {}}) is None
    assert read(stats("29", 0, blkio_stats={"io_service_bytes_recursive": None}, networks=None)) is not None
