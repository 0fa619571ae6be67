"""Wake messages between hosts: a message, however often it comes, only makes a worker look for work."""

import os
import signal
import subprocess
import sys

import pytest
from support.deployment import PLAIN_JOBS, wait_until

from core.notify.celery_app import WAKE_TASK, Publisher, make_app
from core.notify.messages import WakeMessage
from core.notify.wakeup_file import WakeupFile
from worker.celery import wake_tasks

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("args", [[], ["j1", "r1", "more"], [None], [{"id": "j1"}], ["j1", 7], ["j" * 10_000], [""]])
def test_a_wake_message_with_other_contents_wakes_nothing(tmp_path, args):
    notifier = WakeupFile(tmp_path / "wakeup")
    os.utime(notifier.path, (0, 0))
    app = make_app("memory://")
    wake_tasks.register(app, notifier)
    assert app.tasks[WAKE_TASK].apply(args).state in {"FAILURE", "REJECTED"}
    assert notifier.path.stat().st_mtime == 0


def test_a_broker_that_is_away_is_an_os_error():
    with pytest.raises(OSError, match="9"):
        Publisher("redis://127.0.0.1:9/0").publish_wake([WakeMessage("gradient.pool.CPU", "j1", None)])


def test_a_job_runs_over_celery(deployment, tmp_path):
    """API and Celery worker as on two hosts, with a broker of files: no wakeup file in common, and no poll in time."""
    broker = tmp_path / "broker"
    broker.mkdir()
    program = (
        "import core.notify.celery_app as q, gradient_server.main as m, sys\n"
        "make = q.make_app\n"
        "def with_folder(url, **options):\n"
        "    app = make(url, **options)\n"
        f"    folders = dict.fromkeys(['data_folder_in', 'data_folder_out', 'control_folder'], {str(broker)!r})\n"
        "    app.conf.broker_transport_options = folders\n"
        "    return app\n"
        "q.make_app = with_folder\n"
        "sys.exit(m.main())\n"
    )
    (tmp_path / "server.py").write_text(program)
    env = {k: v for k, v in os.environ.items() if not k.startswith("GRADIENT_")} | PLAIN_JOBS
    env |= {
        "GRADIENT_HOME": str(deployment.home),
        "GRADIENT_DATABASE__URL": f"sqlite:///{tmp_path / 'shared.db'}",
        "GRADIENT_QUEUE__BROKER_URL": "filesystem://",
        "GRADIENT_WORKER__POLL_SECONDS": "3600",
    }
    elsewhere = env | {"GRADIENT_HOME": str(tmp_path / "elsewhere")}
    for home in (deployment.home, tmp_path / "elsewhere"):
        home.mkdir(exist_ok=True)
        (home / "home-mark").write_text("h1@shared")  # as if it were one folder
    log = (tmp_path / "log").open("ab")
    server = [sys.executable, tmp_path / "server.py"]
    api = subprocess.Popen([*server, "api", "--port", "0"], env=env, stderr=log)
    worker = subprocess.Popen([*server, "worker", "--name", "c"], env=elsewhere, stderr=log)
    try:
        wait_until(deployment.home.joinpath("cli.json").exists, "the API to be ready")
        wait_until(lambda: "is ready" in (tmp_path / "log").read_text(), "the worker to be ready")
        job_id = deployment.submit("echo heard")
        assert deployment.wait_ended(job_id)["state"] == "Stopped"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(120) == 0, (tmp_path / "log").read_text()
    finally:
        for process in (api, worker):
            process.kill()
            process.wait()
        log.close()
