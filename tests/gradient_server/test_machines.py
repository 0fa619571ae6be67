"""`gradient-server machines add`: the entry that it writes is what the service offers."""

import json
import tomllib

import pytest

from core.catalogue.machine_types import Catalogue
from core.settings import Settings
from gradient_server.main import main


def test_an_entry_is_measured_written_and_replaced(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GRADIENT_HOME", str(tmp_path))
    file = tmp_path / "machines.toml"
    assert main(["machines", "add", "--dry-run"]) == 0
    assert not file.exists()
    file.write_text("# ours\n[V100]\nprice_per_hour = 1.2\n\n[host]\nprice_per_hour = 3\n")
    capsys.readouterr()
    assert main(["machines", "add", "--price", "0.3", "--json"]) == 0
    entry = json.loads(capsys.readouterr().out)["host"]
    assert tomllib.loads(file.read_text())["host"] == entry
    assert file.read_text().startswith("# ours\n[V100]\n")
    catalogue = Catalogue.offered(Settings())
    host = catalogue.get("host")
    assert (host.price_per_hour, catalogue.get("V100").price_per_hour) == (0.3, 1.2)
    assert host.measured_tflops["fp32"] > 0
    assert host.measured_bandwidth_gb_per_s > 0
    assert not host.price_is_old


def test_a_file_with_a_mistake_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADIENT_HOME", str(tmp_path))
    file = tmp_path / "machines.toml"
    file.write_text("[V100]\nprice_per_hour = -1\n")
    assert main(["machines", "add", "--name", "ours"]) == 2
    assert file.read_text() == "[V100]\nprice_per_hour = -1\n"
    assert not list(tmp_path.glob("machines.toml?*"))


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false"])
def test_a_python_that_measures_nothing_is_named(python, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GRADIENT_HOME", str(tmp_path))
    assert main(["machines", "add", "--python", python]) == 1
    assert f"--python {python}: the measurement failed" in capsys.readouterr().err
