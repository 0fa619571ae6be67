from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from core.jobs.states import TERMINAL, JobState
from core.monitoring.snapshot import ServiceSnapshot

_POOL_LABELS = ["backend", "pool"]
_WORKER_LABELS = ["worker", "host"]
_LIVE_STATES = [state for state in JobState if state not in TERMINAL]


class SnapshotCollector(Collector):
    def __init__(self, snapshot: ServiceSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        yield from _jobs(self._snapshot)
        yield from _queues(self._snapshot)
        yield from _workers(self._snapshot)
        yield from _gpus(self._snapshot)
        repairs = CounterMetricFamily("gradient_sweep_repairs", "What the sweeps repaired.", labels=["kind"])
        for repaired in self._snapshot.repairs:
            repairs.add_metric([repaired.kind], repaired.total)
        yield repairs
        yield GaugeMetricFamily(
            "gradient_outbox_messages", "Wake-up messages that are not sent yet.", self._snapshot.outbox
        )
        yield GaugeMetricFamily(
            "gradient_outbox_oldest_seconds", "Age of the oldest unsent wake-up message.", self._snapshot.oldest_message
        )


def _jobs(snapshot: ServiceSnapshot) -> Iterator[Metric]:
    jobs = GaugeMetricFamily("gradient_jobs", "Jobs that have not ended.", labels=["state", *_POOL_LABELS])
    silent = GaugeMetricFamily("gradient_jobs_silent", "Jobs on machines without heartbeats.", labels=_POOL_LABELS)
    for pool in snapshot.pools:
        for state in _LIVE_STATES:
            jobs.add_metric([state, *pool], snapshot.jobs[(state, *pool)])
        silent.add_metric(pool, snapshot.stale_jobs[pool])
    return iter((jobs, silent))


def _queues(snapshot: ServiceSnapshot) -> Iterator[Metric]:
    depth = GaugeMetricFamily("gradient_queue_jobs", "Jobs that wait.", labels=_POOL_LABELS)
    oldest = GaugeMetricFamily(
        "gradient_queue_oldest_seconds", "Waiting time of the job that has waited longest.", labels=_POOL_LABELS
    )
    takers = GaugeMetricFamily(
        "gradient_queue_workers", "Workers that offer to run jobs of the pool.", labels=_POOL_LABELS
    )
    for pool in snapshot.pools:
        depth.add_metric(pool, snapshot.count_waiting(pool))
        oldest.add_metric(pool, snapshot.oldest_queued.get(pool, 0.0))
        takers.add_metric(pool, snapshot.count_workers(pool))
    return iter((depth, oldest, takers))


def _workers(snapshot: ServiceSnapshot) -> Iterator[Metric]:
    workers = GaugeMetricFamily("gradient_workers", "Workers seen in the last minute.", labels=["backend"])
    seen = GaugeMetricFamily(
        "gradient_worker_seen_seconds", "Time since a worker was last seen.", labels=_WORKER_LABELS
    )
    pinged = GaugeMetricFamily(
        "gradient_worker_heard_seconds",
        "Time since the worker last received a message from the broker.",
        labels=_WORKER_LABELS,
    )
    drained = GaugeMetricFamily(
        "gradient_worker_drained", "1: the worker is drained and claims no jobs.", labels=_WORKER_LABELS
    )
    slots = GaugeMetricFamily("gradient_worker_slots", "Jobs that a worker can run at once.", labels=_WORKER_LABELS)
    held = GaugeMetricFamily("gradient_worker_jobs", "Jobs that a worker runs.", labels=_WORKER_LABELS)
    offered = {backend for _, backend, _ in snapshot.jobs} | {name for one in snapshot.workers for name in one.backends}
    for backend in sorted(offered):
        workers.add_metric([backend], sum(backend in worker.backends for worker in snapshot.workers))
    for worker in snapshot.workers:
        slots.add_metric([worker.name, worker.host], worker.slots)
    for worker in (*snapshot.workers, *snapshot.lost_workers):
        labels = [worker.name, worker.host]
        seen.add_metric(labels, worker.heartbeat_age)
        drained.add_metric(labels, worker.drained_age is not None)
        held.add_metric(labels, worker.held)
        if worker.message_age is not None:
            pinged.add_metric(labels, worker.message_age)
    return iter((workers, seen, pinged, drained, slots, held))


def _gpus(taken: ServiceSnapshot) -> Iterator[Metric]:
    gpus = GaugeMetricFamily("gradient_gpus", "Accelerator GPUs of a host.", labels=["host"])
    held = GaugeMetricFamily("gradient_gpus_held", "GPUs of a host that are allocated to jobs.", labels=["host"])
    # Workers of one host share its GPUs.
    there = {worker.host: worker.gpus for worker in (*taken.lost_workers, *taken.workers) if worker.gpus is not None}
    for host, number in sorted(there.items()):
        gpus.add_metric([host], number)
    for host in sorted(there.keys() | taken.gpus.keys()):
        held.add_metric([host], taken.gpus[host])
    return iter((gpus, held))
