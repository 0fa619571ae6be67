"""Chaos: many jobs in containers while supervisors and the engine are killed at random moments, by a seed."""

import logging
import os
import random
import time
from dataclasses import dataclass, field

import pytest
from support.deployment import wait_until
from support.faults.container_jobs_deployment import ContainerDeployment, find_shims
from support.faults.container_jobs_deployment import recorded_in_container as recorded
from support.faults.fault_report import FULL_RUN, fault_trial, tries

pytestmark = [pytest.mark.faults, pytest.mark.timeout(7200 if FULL_RUN else 400)]

JOBS = tries(12, 150)
SEED = int(os.environ.get("GRADIENT_CHAOS_SEED", "20181030"))
NAMES = ("one", "two")
UNDER_WAY = 8
"""So many jobs are kept waiting or running while there are more to come."""
MOST_QUIET = 3.0
"""Seconds between two faults, at most."""
BODIES = (
    "say done",
    "say up; sleep 1; leave model weights; say done",
    "i=0; while [ $i -lt 100 ]; do i=$((i+1)); say line$i; done; sleep 0.5; leave model weights; leave note small",
    "say up; sleep 3; say done",
    "trap 'say asked; finish 9' TERM; say up; i=0; while [ $i -lt 60 ]; do i=$((i+1)); sleep 0.1; done",
)


@dataclass
class Chaos:
    """Does harm, and says what it did."""

    deployment: ContainerDeployment
    chance: random.Random
    workers: dict = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)

    def start(self, name):
        self.workers[name] = self.deployment.start_worker(name, GRADIENT_WORKER__SLOTS="4")

    def harm(self):
        """One fault; what is killed is there again afterwards."""
        harms = {"kill a worker": 6, "kill both workers": 1, "kill the engine": 4}
        what = self.chance.choices(list(harms), list(harms.values()))[0]
        self.done[what] = self.done.get(what, 0) + 1
        if what == "kill the engine":
            self.deployment.server.kill()
            time.sleep(self.chance.random() * 2)
            self.deployment.server.start()
            return
        doomed = NAMES if "both" in what else (self.chance.choice(NAMES),)
        for name in doomed:
            self.workers[name].kill()
        time.sleep(self.chance.random())
        for name in doomed:
            self.start(name)


@pytest.mark.slow
def test_jobs_in_containers_outlive_the_deaths_of_supervisors_and_engine(make_container_deployment, killable_engine):
    chance = random.Random(SEED)  # noqa: S311 - repeatable, not secret
    deployment = make_container_deployment(killable_engine, GRADIENT_WORKER__SWEEP_SECONDS="1")
    deployment.start_api()
    chaos = Chaos(deployment, chance)
    for name in NAMES:
        chaos.start(name)
    stops = []
    with fault_trial("F11", deployment, seconds=600, healthy=False) as one:
        while len(deployment.accepted) < JOBS:
            wait_until(lambda: busy(deployment) < UNDER_WAY, "some jobs to end", 300)
            for _ in range(min(4, JOBS - len(deployment.accepted))):
                submit(deployment, chance, stops)
            time.sleep(chance.random() * MOST_QUIET)
            chaos.harm()
        one.tries = sum(chaos.done.values())
        one.mark_lifted()
    settled(deployment, chaos, len(stops))


def busy(deployment):
    states = deployment.states()
    return len(deployment.accepted) - sum(states.get(end, 0) for end in ("succeeded", "failed", "cancelled"))


def submit(deployment, chance, stops):
    job_id = deployment.submit(
        recorded(chance.choice(BODIES), chance.choice((0, 0, 3, 42))),
        key=f"chaos{len(deployment.accepted)}",
        stopGrace=2,
        maxAttempts=chance.choice((1, 1, 2)),
    )
    if chance.random() < 0.1:
        stops.append(job_id)
        deployment.request("POST", f"/jobs/{job_id}/stop")


def settled(deployment, chaos, stops):
    """Say what was done and how it ended; nothing may have ended for want of a machine."""
    reasons: dict[str, int] = {}
    for row in deployment.seen_ended.values():
        reasons[row["reason"]] = reasons.get(row["reason"], 0) + 1
    retried = sum(row["attempt"] > 1 for row in deployment.seen_ended.values())
    forgotten = find_shims(deployment.server)
    under = sum(len(shim.children(recursive=True)) for shim in forgotten)
    logging.getLogger(__name__).warning(
        "seed %d: %s; %d stops; ends %s; %d jobs retried; %d shims that the engine forgot, with %d processes",
        *(SEED, chaos.done, stops, reasons, retried, len(forgotten), under),
    )
    assert set(reasons) <= {"completed", "exit_nonzero", "stopped_by_user"}, reasons
