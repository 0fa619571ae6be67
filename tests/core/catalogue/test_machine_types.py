import re

import pytest

from core.catalogue.machine_types import Catalogue
from core.errors import MachineTypeUnknown, SpecInvalid
from core.settings import Settings

CATALOGUE = Catalogue.load()
NEW = """
[{name}]
backend = "docker"
kind = "gpu"
accelerator = "NVIDIA L4"
count = 1
replicas = 1
memory_gb = 24
memory_bandwidth_gb_per_s = 300
tflops = {{ fp32 = 30.3 }}
price_per_hour = 0.8
price_source = "ours"
spec_source = "NVIDIA L4 datasheet, 2023"
"""


@pytest.mark.parametrize("machine_type", list(CATALOGUE), ids=lambda machine_type: machine_type.name)
def test_every_type_is_complete_and_says_where_its_figures_come_from(machine_type):
    assert machine_type.backend in {"docker", "tpu", "process"}
    assert machine_type.price_per_hour > 0
    assert machine_type.price_source.startswith("list price, set your own: ")
    assert any(character.isdigit() for character in machine_type.price_source.split(":", 1)[1])
    assert machine_type.spec_source
    assert machine_type.accelerator
    assert machine_type.memory_gb > 0
    assert machine_type.memory_bandwidth_gb_per_s > 0
    assert machine_type.tflops.keys() <= {"fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"}
    assert all(value > 0 for value in machine_type.tflops.values())
    assert machine_type.replicas % machine_type.count == 0
    assert (machine_type.tpu_type is not None) == (machine_type.backend == "tpu")


def test_one_gpu_and_several_of_it_have_the_prices_of_one_vendor_and_date():
    one_gpu = {machine_type.accelerator: machine_type for machine_type in CATALOGUE if machine_type.gpus == 1}
    several = [machine_type for machine_type in CATALOGUE if machine_type.gpus > 1]
    assert {machine_type.accelerator for machine_type in several} <= one_gpu.keys()
    for machine_type in several:
        single = one_gpu[machine_type.accelerator]
        assert offer_of(machine_type) == offer_of(single), f"{single.name}, {machine_type.name}"
        if "of it" in single.price_source:
            assert single.price_per_hour == pytest.approx(machine_type.price_per_hour / machine_type.gpus, rel=0.002)


def offer_of(machine_type):
    """Return the vendor and the date of a price."""
    vendor = machine_type.price_source.removeprefix("list price, set your own: ").split()[0]
    return vendor, re.search(r"20\d\d(-\d\d)?", machine_type.price_source).group()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("v100", "V100"),
        ("gpu+", "GPU+"),
        ("TPU", "TPU"),
        ("v2-8", "TPU"),
        ("tpu v2-8", "TPU"),
        ("TPU  V3-8 ", "TPU v3-8"),
        ("tpu-v5e", "TPU v5e"),
        ("v5litepod-8", "TPU v5e"),
        ("trillium", "TPU v6e"),
    ],
)
def test_found_by_name_or_alias_whatever_the_case(name, found):
    assert CATALOGUE.get(name).name == found


@pytest.mark.parametrize(
    ("name", "nearest"), [("V1000", "'V100'"), ("TPUv7", "'TPU"), ("A10", "'A100'"), ("tpu v9-8", "'TPU v3-8'")]
)
def test_unknown_names_are_answered_with_the_nearest(name, nearest):
    with pytest.raises(MachineTypeUnknown, match="gradient-cli machine-types") as error:
        CATALOGUE.get(name)
    assert repr(name) in error.value.message
    assert f"Did you mean {nearest}" in error.value.message or f" or {nearest}" in error.value.message
    assert error.value.field == "machineType"


@pytest.mark.parametrize(
    ("name", "tpu_type", "hosts", "chips", "price"),
    [
        ("v2-32", "v2-32", 4, 16, 24.0),
        ("v4-16", "v4-16", 2, 8, 25.76),
        ("v5p-8", "v5p-8", 1, 4, 16.8),
        ("v5litepod-4", "v5litepod-4", 1, 4, 4.8),
        ("v5e-16", "v5litepod-16", 4, 16, 19.2),
        ("v6e-64", "v6e-64", 16, 64, 172.8),
    ],
)
def test_tpu_slices_count_all_their_hosts_and_chips(name, tpu_type, hosts, chips, price):
    found = CATALOGUE.get(name)
    assert (found.tpu_type, found.hosts, found.count, found.price_per_hour) == (tpu_type, hosts, chips, price)
    assert found.zones


@pytest.mark.parametrize(
    ("name", "on_vm"),
    [("TPU", False), ("v3-8", False), ("v2-32", True), ("v4-8", True), ("v6e-1", True)],
)
def test_tpus_of_today_run_jobs_on_their_own_hosts(name, on_vm):
    assert CATALOGUE.get(name).tpu_on_vm is on_vm
    assert Settings().tpu.on_vm(by_default=on_vm) is on_vm
    assert Settings(tpu={"placement": "grpc"}).tpu.on_vm(by_default=on_vm) is False


def test_an_administrators_file_changes_values_and_adds_types(tmp_path):
    path = tmp_path / "machines.toml"
    path.write_text('[v100]\nprice_per_hour = 1.2\nprice_source = "our contract"\n' + NEW.format(name="L40"))
    catalogue = Catalogue.load(override_path=path)
    assert [machine_type.name for machine_type in catalogue] == [*(one.name for one in CATALOGUE), "L40"]
    v100 = catalogue.get("V100")
    assert (v100.price_per_hour, v100.price_source) == (1.2, "our contract")
    assert v100.tflops == CATALOGUE.get("V100").tflops
    assert catalogue.get("l4").memory_gb == 24


def test_a_price_of_ones_own_is_not_said_to_be_of_the_packaged_source(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text("[V100]\nprice_per_hour = 1.2\n")
    v100 = Catalogue.load(path).get("V100")
    assert (v100.price_per_hour, v100.price_source, v100.price_is_old) == (1.2, "prices.toml, no date", False)
    path.write_text('[V100]\nprice_per_hour = "cheap"\n')
    with pytest.raises(SpecInvalid, match=r"prices\.toml: machine type 'V100', price_per_hour: "):
        Catalogue.load(path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[V100]\nprice_per_hour = -1", "'V100', price_per_hour: .*greater than or equal to 0"),
        ("[V100]\nprice_per_hor = 1", "'V100', price_per_hor: "),
        ('[V100]\nbackend = "pbs"', "'V100', backend: .*'docker'"),
        ("[L40]\nprice_per_hour = 1", "'L40', backend: Field required"),
        ("V100 = 3", "'V100' is not a table"),
        ("[V100", "not valid TOML"),
        (NEW.format(name='"v2-8"'), "'v2-8' already means 'TPU'"),
    ],
)
def test_mistakes_in_the_administrators_file_say_where_they_are(tmp_path, text, match):
    path = tmp_path / "machines.toml"
    path.write_text(text)
    with pytest.raises(SpecInvalid, match=match):
        Catalogue.load(override_path=path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SpecInvalid, match=r"absent.toml: No such file.*GRADIENT_MACHINES__FILE"):
        Catalogue.load(override_path=tmp_path / "absent.toml")


@pytest.mark.parametrize("tpu_type", ["v5litepod-16", "v6e-16", "v4-16", "v3-32"])
def test_a_slice_whose_hosts_are_not_given_is_refused_where_it_is_named(tmp_path, tpu_type):
    (tmp_path / "machines.toml").write_text(f'["TPU v5e"]\ntpu_type = "{tpu_type}"\n')
    with pytest.raises(SpecInvalid, match=f"'{tpu_type}' is a slice of several hosts"):
        Catalogue.load(override_path=tmp_path / "machines.toml")
