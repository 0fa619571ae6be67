"""A database with the runs of a sweep: jobs that have ended, with parameters, and metrics of many steps."""

import math
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlalchemy import select

from bench.server.filled_database import fill
from core.db.database import Database
from core.db.models.jobs import Job
from core.jobs.tracking import metrics, params

_SEED = 7


def fill_sweep(home: Path, *, runs: int, points: int) -> None:
    """Create `gradient.db` in a folder, with this many runs of three metrics with this many points each."""
    fill(home, ended=runs, queued=0)
    chance = random.Random(_SEED)  # noqa: S311 - the same data each time
    database = Database(f"sqlite:///{home / 'gradient.db'}")
    try:
        with database.read() as session:
            ids = list(session.scalars(select(Job.id).order_by(Job.seq)))
        for job_id in ids:
            given = {
                "lr": round(10 ** chance.uniform(-4, -1), 6),
                "batch_size": chance.choice([32, 64, 128]),
                "opt": chance.choice(["adam", "sgd", "rmsprop"]),
                "dropout": round(chance.uniform(0, 0.5), 2),
            }
            with database.write() as session:
                job = session.scalars(select(Job).where(Job.id == job_id)).one()
                params.add_logged(session, job, given)
                metrics.add(session, _rows(job_id, points, given["lr"], chance))
    finally:
        database.close()


def _rows(job_id: str, points: int, rate: float, chance: random.Random) -> list[dict[str, object]]:
    began = datetime.now(UTC) - timedelta(hours=1)
    floor, speed = 0.1 + abs(math.log10(rate) + 2.2) / 4, 3 + 20 * rate
    return [
        {
            "job_id": job_id,
            "attempt": 1,
            "source": "job",
            "offset": step * 100,
            "step": step,
            "at": began + timedelta(seconds=step * (1 + rate)),
            "values": {
                "train/loss": (loss := floor + math.exp(-speed * step / points) * 2) + chance.gauss(0, 0.03),
                "val/loss": loss * 1.15 + chance.gauss(0, 0.02),
                "accuracy": 1 / (1 + loss) + chance.gauss(0, 0.005),
            },
        }
        for step in range(points)
    ]
