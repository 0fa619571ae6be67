"""Wake messages between hosts: a message, however often it comes, only makes a worker look for work."""

import os

import pytest

from core.notify.celery_app import WAKE_TASK, Publisher, make_app
from core.notify.messages import WakeMessage
from core.notify.wakeup_file import WakeupFile
from worker.celery import worker

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("args", [[], ["j1", "r1", "more"], [None], [{"id": "j1"}], ["j1", 7], ["j" * 10_000], [""]])
def test_a_wake_message_with_other_contents_wakes_nothing(tmp_path, args):
    notifier = WakeupFile(tmp_path / "wakeup")
    os.utime(notifier.path, (0, 0))
    app = make_app("memory://")
    worker.register(app, notifier)
    assert app.tasks[WAKE_TASK].apply(args).state in {"FAILURE", "REJECTED"}
    assert notifier.path.stat().st_mtime == 0


def test_a_broker_that_is_away_is_an_os_error():
    with pytest.raises(OSError, match="9"):
        Publisher("redis://127.0.0.1:9/0").publish_wake([WakeMessage("gradient.pool.CPU", "j1", None)])
