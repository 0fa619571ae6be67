"""The money that a race of machine types may spend."""

import pytest

from gradient_cli.commands.compare.race import plan_repeats, spent


def race_of(*seconds):
    """A race of two types that cost a dollar a second, with jobs that took so long on each."""
    members = [{"seconds": each} for each in seconds]
    rows = [
        {"machineType": name, "simulated": False, "pricePerHour": 3600, "members": members} for name in ("K80", "V100")
    ]
    return {"rows": rows, "decision": {"contenders": ["K80", "V100"], "moreRepeats": 9, "simulated": False}}


@pytest.mark.parametrize("left", [4.7, 5, 20])
def test_a_race_pays_for_a_repeat_all_that_is_left_or_ends(left):
    found = race_of(1, 2)
    names, why = plan_repeats(found, spent(found) + left)
    if left < 4.8:
        assert (names, why) == ([], "another repeat would cost up to $4.80.")
    else:
        assert (sorted(names), why) == (["K80", "V100"], None)
