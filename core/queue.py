"""The Celery app and its queues: the doorbell between hosts. The database is the truth; a message says "look".

Nothing here is imported where no broker is set.
"""

from celery import Celery

RING = "gradient.ring"
SWEEP = "gradient.sweep"
QUEUE = "gradient.bell"


def make_app(broker_url: str) -> Celery:
    """The Celery app on this broker, with settings that losing or doubling a message cannot hurt."""
    app = Celery("gradient", broker=broker_url)
    app.conf.update(
        task_serializer="json",
        result_serializer="json",
        accept_content=["json"],
        # No result backend: the job's row is the only record of it.
        task_ignore_result=True,
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        worker_prefetch_multiplier=1,
        task_soft_time_limit=60,
        task_time_limit=120,
        broker_connection_max_retries=None,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )
    if broker_url.startswith("redis"):
        app.conf.broker_transport_options = {
            # Far above the hard time limit: never delivered again while it runs.
            "visibility_timeout": 600,
            "socket_timeout": 10,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "global_keyprefix": "gradient:",
        }
    return app


def publish(app: Celery, name: str) -> None:
    """Send a message by its task's name; the sender imports no task."""
    app.send_task(name, ignore_result=True, retry=False)
