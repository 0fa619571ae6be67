"""The server's endpoints that take jobs and their workspaces."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from gradient_cli.api.forms import Form
from gradient_cli.api.retries import retry
from gradient_cli.api.transport import UPLOAD_SECONDS, Transport
from gradient_cli.errors import ServerError

JOBS = "/jobs"  # the endpoint that creates a job
SUBMIT_DELAYS = (0.5, 1.0, 2.0, 4.0)  # seconds between attempts to submit
_NOT_FOUND = 404
_JSON = {"Content-Type": "application/json"}


class SubmissionApi:
    """Submissions to a server, each repeated when the connection breaks."""

    idempotency_key: str | None = None  # of the next submission; None: a new one for each

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def resolve_job(self, spec: dict[str, Any], requirements: str | None = None) -> dict[str, Any]:
        """Return the job that this spec would create, with its machine and price, without creating it (dry run).

        With the digest of its requirements, the answer says whether they are installed already.
        """
        query = {"dryRun": "true", **({"requirements": requirements} if requirements else {})}
        return self._transport.json("POST", "/jobs", query=query, body=spec, needs="job")

    def create(
        self, spec: dict[str, Any], *, to: str = JOBS, query: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """Submit a job, or a comparison, once, however often the connection breaks."""
        key = self._idempotency()
        send = partial(self._transport.json, "POST", to, query=query, body=spec, headers=key, needs="id")
        return retry(send, SUBMIT_DELAYS)

    def create_with_archive(
        self, spec: dict[str, Any], path: str, sent: Callable[[int], None], *, to: str = JOBS
    ) -> dict[str, Any]:
        """Submit a job, or a comparison, with the archive of its workspace, once, however often the connection breaks.

        Args:
            sent: Called with the number of bytes of the archive sent so far.
            to: The endpoint.
        """
        form = Form("spec", json.dumps(spec).encode(), "workspace", path, sent)
        return self._send("POST", to, form.chunks, {**self._idempotency(), **form.headers}, needs="id")

    def _send(
        self,
        method: str,
        path: str,
        make_body: Callable[[], bytes | Iterator[bytes]],  # makes the body again for each attempt
        headers: Mapping[str, str] = _JSON,
        *,
        needs: str,
        base: str | None = None,
    ) -> dict[str, Any]:
        def attempt() -> dict[str, Any]:
            response = self._transport.open(
                method, path, query={"base": base}, body=make_body(), headers=headers, seconds=UPLOAD_SECONDS
            )
            return self._transport.read_json(response, needs)

        return retry(attempt, SUBMIT_DELAYS)

    def missing_contents(self, manifest: bytes, base: str | None) -> list[str]:
        """Return the digests of the contents of a manifest that the server does not find in a stored workspace."""
        answer = self._send("POST", "/workspaces/missing", lambda: manifest, needs="missing", base=base)
        missing: list[str] = answer["missing"]
        return missing

    def store_workspace(
        self, sha256: str, manifest: bytes, base: str | None, path: str | None, sent: Callable[[int], None]
    ) -> None:
        """Store a workspace as its manifest and an archive of the missing contents.

        Args:
            sha256: Digest of the manifest.
            base: Digest of a stored workspace with the other contents.
            path: The archive; None: nothing is missing.
            sent: Called with the number of bytes of the archive sent so far.
        """
        to = f"/workspaces/{sha256}"
        if path is None:
            self._send("PUT", to, lambda: manifest, needs="sha256", base=base)
        else:
            form = Form("manifest", manifest, "contents", path, sent)
            self._send("PUT", to, form.chunks, form.headers, needs="sha256", base=base)

    def has_workspace(self, sha256: str) -> bool:
        try:
            self._transport.json("GET", f"/workspaces/{sha256}")
        except ServerError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        return True

    def _idempotency(self) -> dict[str, str]:
        return {"Idempotency-Key": self.idempotency_key or os.urandom(16).hex()}
