"""Checks that the time of a refusal does not reveal how much of a key, or which address, was right."""

import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import bounds
from bench.measure import Goal, Result, Series, Size
from core.db import migrations
from core.db.database import Database
from core.errors import Unauthorized
from core.security import api_keys, users

_EMAIL, _PASSWORD = "ann@example.org", "a password of hers"


def run(size: Size) -> Result:
    """Refuse wrong keys and passwords, in turns, with a long or a short right part."""
    with tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder:
        database = Database(f"sqlite:///{Path(folder) / 'gradient.db'}")
        migrations.upgrade(database)
        with database.write() as session:
            key, secret = api_keys.create(session, "bench")
            users.create(session, _EMAIL, _PASSWORD)
        start, chance = f"gj_{key.id}", secret.split("_")[2]
        pairs = {
            "key": (
                _refusal(database, api_keys.authenticate, _sign(f"{start}_{_invert_part(chance, 0)}")),
                _refusal(database, api_keys.authenticate, _sign(f"{start}_{_invert_part(chance, len(chance) - 1)}")),
            ),
            "id of a key": (
                _refusal(database, api_keys.authenticate, _sign(f"gj_{key.id[::-1]}_{chance}")),
                _refusal(database, api_keys.authenticate, _sign(f"{start}_{_invert_part(chance, 0)}")),
            ),
            "address": (
                _refusal(database, users.sign_in, "bob@example.org", _PASSWORD),
                _refusal(database, users.sign_in, _EMAIL, "another password"),
            ),
        }
        series, goals = [], []
        for what, (wrong, nearly) in pairs.items():
            tries = size.pick(200, 10) if what == "address" else size.pick(2000, 50)
            few, more = Series(f"{what}: wrong", "ms"), Series(f"{what}: nearly right, or known", "ms")
            for _ in range(size.rounds):
                few.begin_round()
                more.begin_round()
                _in_turns((wrong, few), (nearly, more), tries)
            spread = statistics.quantiles(few.samples, n=4)
            share = abs(more.p50 - few.p50) / max(spread[2] - spread[0], 1e-9)
            series += [few, more]
            goals.append(Goal(f"{what}: difference of medians, in interquartile ranges", share, bounds.REFUSAL_SHARE))
        database.close()
    return Result(series, goals)


def _in_turns(
    first: tuple[Callable[[], float], Series], second: tuple[Callable[[], float], Series], tries: int
) -> None:
    for _ in range(tries):
        for refuse, series in random.sample((first, second), 2):
            series.add(refuse() * 1000)


def _refusal(database: Database, check: Callable[..., object], *given: str) -> Callable[[], float]:
    def refuse() -> float:
        with database.read() as session:
            began = time.perf_counter()
            try:
                check(session, *given)
            except Unauthorized:
                return time.perf_counter() - began
        raise RuntimeError("what is wrong was taken")

    return refuse


def _invert_part(chance: str, right: int) -> str:
    return chance[:right] + "".join("b" if letter == "a" else "a" for letter in chance[right:])


def _sign(start: str) -> str:
    return f"{start}_{api_keys._checksum(start)}"  # noqa: SLF001 - a wrong key that reads like one
