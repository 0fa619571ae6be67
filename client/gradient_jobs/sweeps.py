"""Sweeps: create them, and evaluate their trials in your own loops."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, SupportsFloat, Union

from gradient_cli.api.client import Api
from gradient_cli.api.retries import retry_until_connected
from gradient_cli.errors import ClientError, UsageError
from gradient_cli.terminal import sanitize
from gradient_jobs.options import JobOptions, build_spec
from gradient_jobs.submission import LOG, submit

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack


_POLL_SECONDS = 2.0
_BEAT_SECONDS = 20.0  # a trial of which the server hears nothing for 90 seconds is given to another program
_PLAN = {
    **{name: name for name in ("method", "metric", "stop", "trials", "parallel", "seed")},
    "stop_after": "stopAfter",
}
_OF_SWEEPS = {"name": "name", "project": "project", "project_id": "projectId"}
_Value = Union[str, float, bool]


class SweepOptions(JobOptions, total=False):
    """The options of `gradient-cli sweeps create`."""

    method: str
    metric: str
    stop: str
    stop_after: int
    trials: int
    parallel: int
    seed: int


class Sweeps:
    """The sweeps of a server."""

    def __init__(self, api: Api, connect: Callable[[], Api]) -> None:
        self.api = api
        self._connect = connect

    def create(self, space: Mapping[str, _Value | Sequence[_Value]], **options: Unpack[SweepOptions]) -> Sweep:
        """Create a sweep, with the options of `gradient-cli sweeps create`; without a command, for `Sweep.ask`.

        Args:
            space: The values to try for each parameter: `{"lr": "log:1e-5..1e-1", "opt": ["adam", "sgd"]}`.
            options: The sweep's options; with a `command`, also the options of its jobs.

        Raises:
            UsageError: An option is unknown or has the wrong form, or a required one is missing.
        """
        given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        fields = {_PLAN[name]: given.pop(name) for name in _PLAN if name in given}
        fields["space"] = dict(space)
        if "command" in given:
            return self._of(submit(self.api, *build_spec(given), to="/sweeps", fields=fields))
        fields.update({_OF_SWEEPS[name]: given.pop(name) for name in _OF_SWEEPS if name in given})
        if given:
            raise UsageError(f"{min(given)} is an option of jobs", hint="Also give a command if trials are jobs.")
        return self._of(self.api.create(fields, to="/sweeps"))

    def get(self, sweep_id: str) -> Sweep:
        return self._of(self.api.template("sweeps", sweep_id))

    def _of(self, data: dict[str, Any]) -> Sweep:
        return Sweep(self.api, self._connect, data)


class Sweep:
    """A sweep as the server last described it.

    Attributes:
        id: Its id.
        data: Everything that the server returned, by the names of the HTTP API.
    """

    def __init__(self, api: Api, connect: Callable[[], Api], data: dict[str, Any]) -> None:
        self.api, self._connect = api, connect
        self.id: str = data["id"]
        self.data = data

    def __repr__(self) -> str:
        return f"<Sweep {self.id} {self.state}>"

    @property
    def state(self) -> str:
        """The state: running, paused, stopped or finished."""
        return str(self.data["state"])

    @property
    def best(self) -> dict[str, Any] | None:
        """The trial with the best last value, in any state, by the names of the HTTP API."""
        best: dict[str, Any] | None = self.data["best"]
        return best

    @property
    def trials(self) -> list[dict[str, Any]]:
        """All trials, by the names of the HTTP API."""
        return list(self.data["trials"])

    def refresh(self) -> Self:
        """Fetch the current state from the server, and return the sweep."""
        self.data = self.api.template("sweeps", self.id)
        return self

    def stop(self) -> Self:
        """End the sweep: start no more trials, and stop running trials."""
        self.data = self.api.change_template("sweeps", self.id, "stop")
        return self

    def resume(self) -> Self:
        """Resume after a pause, a stop or the end; trials that failed or were cancelled run again."""
        self.data = self.api.change_template("sweeps", self.id, "resume")
        return self

    def ask(self) -> Iterator[Trial]:
        """Yield trials to evaluate until no more begin; any number of programs may do this at the same time.

        A trial is complete when the next one is asked for. If the loop is left before that, by an exception or `break`,
        the trial has failed; `with trial:` around the loop's body also records the exception. While the sweep is
        paused, or others evaluate its last trials, this waits.
        """
        printed = None
        while True:
            key = uuid.uuid4().hex  # with which a repeated request gets the same trial
            requested = retry_until_connected(lambda: self.api.request_trial(self.id, key))  # noqa: B023 - called at once
            if requested["trial"] is not None:
                trial = Trial(self.api, self._connect, self.id, key, requested["trial"])
                try:
                    yield trial
                except GeneratorExit:
                    with suppress(ClientError):
                        trial.fail("The loop was left before the trial ended.", retry=False)
                    raise
                trial.complete()
            elif requested["retry"]:
                if requested["reason"] not in {None, printed}:
                    printed = requested["reason"]
                    LOG.warning("sweep %s is %s: %s", self.id, requested["state"], printed)
                time.sleep(_POLL_SECONDS)
            else:
                return


class Trial:
    """A trial that this program evaluates.

    Attributes:
        number: Its number, from 0.
        params: Its parameters.
        state: running, complete, pruned, failed or cancelled.
        reason: Why it failed, was stopped or should stop; None: none of these.
    """

    def __init__(self, api: Api, connect: Callable[[], Api], sweep_id: str, key: str, data: dict[str, Any]) -> None:
        self.api, self._sweep_id, self._key = api, sweep_id, key
        self.number: int = data["number"]
        self.params: dict[str, Any] = data["params"]
        self.reported = 0
        self._take(data)
        self._ended = threading.Event()
        threading.Thread(target=self._beat, args=[connect], daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if error is None:
            self.complete()
        else:
            self.fail(sanitize(f"{type(error).__name__}: {error}"))

    @property
    def should_stop(self) -> bool:
        """True once the server has said that the trial should end: its values are bad, or the sweep has ended."""
        return self.state != "running" or self.reason is not None

    def report(self, value: SupportsFloat, step: float | None = None) -> None:
        """Record the next value of the sweep's metric; the last one is the trial's value.

        Args:
            value: A number, which may be a NumPy, PyTorch or TensorFlow value.
            step: The step of the value; None: the number of values before it.
        """
        number = float(value)
        number_of_step = float(self.reported if step is None else step)
        values = [{"step": number_of_step, "value": number if math.isfinite(number) else None}]
        self._tell(before=self.reported, values=values)
        self.reported += 1

    def complete(self) -> None:
        """End the trial; if it was told to stop, it counts as pruned."""
        self._end("complete")

    def fail(self, reason: str, *, retry: bool = True) -> None:
        """End the trial as failed; `retry`: also wait for a server that cannot answer now."""
        self._end("failed", reason=reason[:2000], retry=retry)

    def _end(self, how: str, *, retry: bool = True, **fields: str) -> None:
        self._ended.set()
        if self.state == "running":
            self._tell(retry=retry, end=how, **fields)

    def _tell(self, *, retry: bool = True, **fields: Any) -> None:  # noqa: ANN401 - of the request
        report = {"key": self._key, **fields}

        def send() -> dict[str, Any]:
            return self.api.report_trial(self._sweep_id, self.number, report)

        self._take(retry_until_connected(send) if retry else send())

    def _take(self, data: dict[str, Any]) -> None:
        self.state, self.reason = str(data["state"]), data["reason"]

    def _beat(self, connect: Callable[[], Api]) -> None:
        api = connect()
        while not self._ended.wait(_BEAT_SECONDS):
            with suppress(ClientError):
                answer = api.report_trial(self._sweep_id, self.number, {"key": self._key})
                if not self._ended.is_set():
                    self._take(answer)
        api.close()
