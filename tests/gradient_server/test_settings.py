import pytest

from gradient_server.main import main


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [("GRADIENT_API__PROT", "80", "There is no such setting"), ("GRADIENT_API__PORT", "a secret", "valid integer")],
)
def test_a_setting_that_cannot_be_read_is_named_and_nothing_is_made(
    tmp_path, monkeypatch, capsys, variable, value, message
):
    monkeypatch.setenv("GRADIENT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(variable, value)
    assert main(["migrate"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {variable}: ")
    assert message in told
    assert value not in told
    assert not (tmp_path / "home").exists()
