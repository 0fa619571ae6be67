import sys

import pytest

from gradient_trainer.errors import OptionsError, UnknownNameError
from gradient_trainer.registry import Registry


@pytest.fixture
def colours(tmp_path, monkeypatch):
    package = tmp_path / "colours"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_private.py").touch()
    (package / "dark_red.py").write_text('"""A warm colour.\n\nMore.\n"""\ndef paint():\n    return "#800000"\n')
    (package / "broken.py").write_text('"""Has no paint."""\n')
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "colours"]:  # of the test before
        monkeypatch.delitem(sys.modules, name)
    return Registry("colour", "colours", package, "paint")


def test_a_new_file_is_a_new_entry(colours):
    assert colours.summaries() == {"broken": "Has no paint", "dark-red": "A warm colour"}
    assert colours.get("dark-red")() == "#800000"


def test_unknown_names_are_refused_with_the_nearest(colours):
    with pytest.raises(UnknownNameError, match="did you mean 'dark-red'"):
        colours.check("darkred")
    with pytest.raises(UnknownNameError, match="no such file"):
        colours.check("absent.py")
    with pytest.raises(UnknownNameError, match="There are: broken, dark-red"):
        colours.get("_private")


def test_an_entry_without_the_function_is_refused(colours):
    with pytest.raises(OptionsError, match=r"defines no function paint\(\)"):
        colours.get("broken")
