"""A server with something to see on every page of its dashboard, for pictures and for tests of all pages."""

from pathlib import Path

from support.browser import Browser
from support.deployment import Deployment, wait_until
from support.live_service import make_form, make_zip

_PAGES = {
    "login": "/ui/login",
    "now": "/ui",
    "jobs": "/ui/jobs?cols=machine&cols=created&cols=cost&cols=val/accuracy",
    "beside-jobs": "/ui/jobs?q=project:moons",
    "nothing-found": "/ui/jobs?q=nothing",
    "wrong-query": "/ui/jobs?q=stat:failed",
    "missing-job": "/ui/jobs/jnothing",
    "new-job": "/ui/jobs/new?machineType=CPU&project=moons",
    **{f"new-{kind}": f"/ui/jobs/new?kind={kind}" for kind in ("sweep", "schedule", "comparison")},
    **{name: f"/ui/{name}" for name in ("comparisons", "sweeps", "schedules", "projects", "machines", "tpus", "costs")},
    "project": "/ui/projects/moons",
    **{name: f"/ui/settings/{name}" for name in ("keys", "secrets", "registries", "notifications", "server", "record")},
    "health": "/ui/settings/health",
}
_STATUS = {"wrong-query": 400, "missing-job": 404}
_SHOWN = {
    **dict.fromkeys(("metrics", "comparison", "project", "compared"), ".chart"),
    **dict.fromkeys(("log", "long-text"), "#log .row"),
    "terminal": ".xterm-helper-textarea:focus",
}
"""What scripts do to a page."""
_TRAINING = Path(__file__).with_name("train.py").read_bytes()


class SampleDashboard:
    """A running service with jobs that train, ended, failed and wait.

    Attributes:
        deployment: The service.
        addresses: Addresses by the name of the page, without the server's.
    """

    def __init__(self, folder: Path) -> None:
        self.deployment = Deployment(folder / "home")
        self.deployment.start_up(GRADIENT_WORKER__SLOTS="3", GRADIENT_WORKER__SYNC_SECONDS="0.2")
        try:
            self.addresses = self._fill()
        except BaseException:
            self.deployment.stop()
            raise

    def open(self, browser: Browser, page: str) -> None:
        """Open a page, which has to be there."""
        browser.open(self.deployment.cli_json["url"] + self.addresses[page])
        browser.wait_for("document.querySelector('h1') && document.fonts.status === 'loaded'")
        status = browser.evaluate("performance.getEntriesByType('navigation')[0].responseStatus")
        assert status == _STATUS.get(page, 200), page
        if page in _SHOWN:
            browser.wait_for(f"document.querySelector('{_SHOWN[page]}')")
        if page == "beside-jobs" and browser.evaluate("innerWidth >= 1000"):  # there is no room beside a narrower list
            browser.evaluate("document.querySelector('tr[data-run] .state').click()")
            browser.wait_for("document.querySelector('#peek h2')")

    def sign_in(self, browser: Browser) -> None:
        """Sign in with the server's first key."""
        browser.sign_in(self.deployment.cli_json["url"], self.deployment.cli_json["apiKey"])

    def _submit(self, command: str, training: bytes = _TRAINING, **spec: object) -> str:
        body = {"machineType": "CPU", "command": command, "project": "moons"} | spec
        answer = self.deployment.request("POST", "/jobs", files=make_form(body, make_zip({"train.py": training})))
        assert answer.status_code == 201, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    def _compare(self) -> str:
        """Compare simulated machines of scripted speeds, and return the comparison's id."""
        spec = {
            "machineType": "CPU,T4,V100",
            "repeats": 3,
            "command": "python3 train.py --rate 0.2 --steps 160 --scripted CPU=0.02,T4=0.008,V100=0.001",
            "name": "two moons",
            "project": "moons",
            "metric": "val/accuracy",
            "target": 0.84,
        }
        answer = self.deployment.request(
            "POST", "/comparisons", files=make_form(spec, make_zip({"train.py": _TRAINING}))
        )
        assert answer.status_code == 201, answer.text
        made = answer.json()
        for row in made["rows"]:
            for member in row["members"]:
                self.deployment.wait_ended(member["jobId"])
        comparison_id: str = made["id"]
        return comparison_id

    def _put(self, path: str, body: dict[str, object]) -> None:
        answer = self.deployment.request("PUT", path, json=body)
        assert answer.is_success, answer.text

    def _schedule(self, *, runs: bool = False, **fields: object) -> str:
        body = {"machineType": "CPU", "command": "true", "project": "moons"} | fields
        made = self.deployment.request("POST", "/schedules", json=body).json()
        change = self.deployment.request("POST", f"/schedules/{made['id']}/{'trigger' if runs else 'suspend'}")
        assert change.is_success, change.text
        schedule_id: str = made["id"]
        return schedule_id

    def _sweep(self) -> str:
        """Evaluate trials of a sweep, and return its id."""
        space = {"space": {"x": "0.5..10.5"}, "metric": "loss:min", "method": "random", "trials": 3}
        answer = self.deployment.request("POST", "/sweeps", json=space)
        assert answer.status_code == 201, answer.text
        sweep_id: str = answer.json()["id"]
        for number in range(3):
            key = {"key": f"sample-{number:016}"}
            trial = self.deployment.request("POST", f"/sweeps/{sweep_id}/trials", json=key).json()["trial"]
            end = key | {"values": [{"value": trial["params"]["x"], "step": 1}], "end": "complete"}
            answer = self.deployment.request("POST", f"/sweeps/{sweep_id}/trials/{trial['number']}", json=end)
            assert answer.is_success, answer.text
        return sweep_id

    def _fill(self) -> dict[str, str]:
        deployment = self.deployment
        trained = [
            self._submit(f"python3 train.py --rate {rate}", name=f"rate-{rate}", tags=["sweep"])
            for rate in (0.1, 0.5, 2)
        ]
        failed = self._submit(
            "python3 train.py --rates 0.1", _TRAINING.replace(b"400, 96", b"800, 96"), name="misspelled"
        )
        for job_id in (*trained, failed):
            deployment.wait_ended(job_id)
        comparison = self._compare()
        runs, _, waits = [
            self._submit("python3 train.py --steps 100000 --pause 0.5", name=name, timeLimit=7200)
            for name in ("long-training", "beside-it", "next")
        ]
        wait_until(lambda: len(deployment.request("GET", f"/jobs/{runs}/metrics").json()["series"]) > 0, "metrics")
        self._put("/secrets/WANDB_API_KEY", {"value": "not-a-real-one"})
        self._put("/registries/ghcr.io", {"username": "moons", "password": "not-a-real-one"})
        self._put("/notifications/team", {"url": "http://127.0.0.1:9", "events": ["sweep.ended"]})
        schedule = self._schedule(cron="0 3 * * *", timezone="Europe/Berlin", name="nightly", runs=True)
        self._schedule(cron="*/15 8-18 * * MON-FRI", name="office hours", onOverlap="skip", onMiss="all")
        best, of_runs = f"/ui/jobs/{trained[1]}", f"/ui/jobs/{runs}"
        view = f"{best}/artifacts/view?path="
        return {
            **_PAGES,
            "clone": f"/ui/jobs/new?from={trained[0]}",
            "compared": f"/ui/jobs?ids={','.join(trained)}&charts=1",
            "job": best,
            "log": f"{best}/log#L3-L5",
            **{name: f"{best}/{name}" for name in ("config", "events", "metrics", "artifacts", "prediction")},
            "no-terminal": f"{best}/terminal",
            "diff": f"{best}/diff?other={failed}",
            "long-text": f"{view}predictions.csv&view=lines",
            "picture": f"{view}map.png",
            "table": f"{view}predictions.csv",
            "report": f"{view}REPORT.md",
            "json": f"{view}model/weights.json",
            "notebook": f"{view}analysis.ipynb",
            "running-job": of_runs,
            "terminal": f"{of_runs}/terminal",
            "waiting-job": f"/ui/jobs/{waits}",
            "failed-job": f"/ui/jobs/{failed}",
            "sweep": f"/ui/sweeps/{self._sweep()}",
            "schedule": f"/ui/schedules/{schedule}",
            "comparison": f"/ui/comparisons/{comparison}",
        }
