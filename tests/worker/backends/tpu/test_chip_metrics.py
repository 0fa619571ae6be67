"""The use of a TPU's chips: from a server that speaks as libtpu's does, over a VM's report, to the job's figures."""

import contextlib
import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from support.deployment import wait_until

from worker.backends.tpu.vm.on_vm import chip_metrics
from worker.backends.tpu.vm.on_vm.chip_metrics import read_chips
from worker.backends.tpu.vm.reports import parse_report

TEXT, INTEGER, DOUBLE, FLAG, MESSAGE = 9, 3, 1, 8, 11
MESSAGES = {
    "AttrValue": [("string_attr", 1, TEXT), ("int_attr", 3, INTEGER)],
    "Attribute": [("key", 1, TEXT), ("value", 2, "AttrValue")],
    "Stamp": [("seconds", 1, INTEGER)],
    "Gauge": [("as_double", 1, DOUBLE), ("as_int", 2, INTEGER)],
    "Metric": [("attribute", 1, "Attribute"), ("timestamp", 2, "Stamp"), ("gauge", 3, "Gauge")],
    "TPUMetric": [("name", 1, TEXT), ("description", 2, TEXT), ("metrics", 3, ["Metric"])],
    "MetricRequest": [("metric_name", 1, TEXT), ("skip_node_aggregation", 2, FLAG)],
    "MetricResponse": [("metric", 1, "TPUMetric")],
}
"""Fields of libtpu's messages by number and type, as far as they matter here."""
DUTY, MEMORY = "tpu.runtime.tensorcore.dutycycle.percent", "tpu.runtime.hbm.memory.usage.bytes"


def build_messages():
    file = descriptor_pb2.FileDescriptorProto(name="libtpu.proto", package="t", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in {"AttrValue", "Gauge"}:
            message.oneof_decl.add(name="one")
        for field, number, kind in fields:
            many = isinstance(kind, list)
            made = message.field.add(name=field, number=number, label=3 if many else 1)
            made.type = kind if isinstance(kind, int) else MESSAGE
            if not isinstance(kind, int):
                made.type_name = f".t.{kind[0] if many else kind}"
            if name in {"AttrValue", "Gauge"}:
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{name}")) for name in MESSAGES}


@contextlib.contextmanager
def metrics_server(figures):
    """Serve metrics as libtpu does; `figures`: by metric, a list of device and value."""
    types = build_messages()

    def get(request, context):
        if request.metric_name not in figures:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such metric")
        answer = types["MetricResponse"]()
        answer.metric.name, answer.metric.description = request.metric_name, "of a test"
        for device, value in figures[request.metric_name]:
            one = answer.metric.metrics.add()
            one.attribute.key, one.attribute.value.int_attr, one.timestamp.seconds = "device-id", device, 1_800_000_000
            if isinstance(value, float):
                one.gauge.as_double = value
            else:
                one.gauge.as_int = value
        return answer

    method = grpc.unary_unary_rpc_method_handler(
        get, types["MetricRequest"].FromString, types["MetricResponse"].SerializeToString
    )
    service = "tpu.monitoring.runtime.RuntimeMetricService"
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {"GetRuntimeMetric": method})])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.fixture
def asked(monkeypatch):
    def ask(address):
        monkeypatch.setattr(chip_metrics, "SERVER", address)
        return read_chips()

    return ask


def test_chips_are_numbered_in_the_order_of_their_ids(asked):
    figures = {DUTY: [(5, 87.5), (4, 0.0)], MEMORY: [(4, 0), (5, 17_179_869_184)]}
    with metrics_server(figures) as address:
        assert asked(address) == {
            "tpu0_percent": 0.0,
            "tpu1_percent": 87.5,
            "tpu0_memory_bytes": 0.0,
            "tpu1_memory_bytes": 17_179_869_184.0,
        }


@pytest.mark.parametrize(
    "response", [b"\x0a\x05ab", b"\x0a", b"\x0b", b"\xff" * 20, b"\x0a\x06\x1a\x04\x1a\x02\x0a\x00"]
)
def test_a_program_that_answers_nonsense_there_does_no_harm(monkeypatch, response):
    monkeypatch.setattr(chip_metrics, "call", lambda _: response)
    assert read_chips() == {}


def message(field, content):
    """Build a field of a message whose value has a length below 2**28."""
    size = len(content)
    return bytes([field << 3 | 2, *(size >> shift & 0x7F | 0x80 for shift in (0, 7, 14)), size >> 21]) + content


@pytest.mark.parametrize("length", [11, 200, 60_000])
def test_a_number_of_any_length_ends_no_thread_of_the_runner(monkeypatch, length):
    gauge = b"\x10" + b"\xff" * length + b"\x01"
    response = message(1, message(3, message(3, gauge)))
    monkeypatch.setattr(chip_metrics, "call", lambda _: response)
    assert read_chips() == {}


def test_more_chips_than_a_vm_has_are_left_out(monkeypatch):
    response = message(1, message(3, message(3, b"\x10\x05")) * 1000)
    monkeypatch.setattr(chip_metrics, "call", lambda _: response)
    assert len(read_chips()) == 2 * 16


def test_an_answer_without_end_takes_no_memory(monkeypatch, tmp_path):
    """Any program of the job can listen there."""
    (tmp_path / "curl").write_text("#!/bin/sh\ncat >/dev/null\nexec head -c 67108864 /dev/zero\n")
    (tmp_path / "curl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tracemalloc.start()
    try:
        assert chip_metrics.call(DUTY) == b""
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


@pytest.mark.parametrize(
    "reported",
    [None, [], {"gpu0_percent": 1}, {"tpu16_percent": 1}, {"tpu0_percent": "1"}, {"tpu0_percent": float("nan")}]
    + [{"tpu0_percent": value} for value in (-1, 10**400, float("inf"), True)],
)
def test_only_sane_figures_are_taken_from_a_vm(reported):
    assert parse_report(json.dumps({"usage": reported}).encode()).usage == {}


def test_a_job_on_its_vm_has_its_chips_figures(make_google_harness, google):
    with metrics_server({DUTY: [(0, 62.5)], MEMORY: [(0, 1 << 30)]}) as address:
        google.vms.environment |= {"GRADIENT_VM_CHIP_METRICS": address}
        place = make_google_harness(
            "TPU v5e", placement="vm", vm_poll_seconds=0.05, probe_seconds=60.0, unhealthy_seconds=20.0
        )
        handle = place.launch(place.spec("sleep 600"))

        def sampled():
            assert place.backend.ended(handle) is None
            return place.backend.sample(handle)

        found = wait_until(sampled, "figures of the chips")
        assert found | {"tpu0_percent": 62.5, "tpu0_memory_bytes": 1 << 30} == found
        place.backend.signal(handle, grace=False)
        place.wait(handle)
        place.backend.destroy(handle)
