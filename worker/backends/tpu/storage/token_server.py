"""Fresh tokens for jobs beside their TPU: a token is valid for an hour at most, and a job can run for days.

Each worker serves its host's jobs as a cloud's metadata server does, where Google's clients and TensorFlow look for
tokens. The tokens are files, so that any worker of the host can serve and renew them.
"""

import json
import logging
import secrets
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from core.errors import GradientError
from core.settings import Settings
from core.system.filesystem import write_atomically
from worker.backends import base
from worker.backends.base import Handle
from worker.backends.tpu import times
from worker.backends.tpu.storage.job_storage import OpenBucket, region_of
from worker.backends.tpu.vm.on_vm.metadata_server import LocalServer, MetadataRequest

logger = logging.getLogger(__name__)

FIXED_TOKEN = "GOOGLE_AUTH_TOKEN_FOR_TESTING"  # noqa: S105 - the name of a variable
"""The variable with a token that TensorFlow would take in place of fresh ones."""
_ACCOUNTS = "computeMetadata/v1/instance/service-accounts/"
_CALL_SECONDS = 5.0
_KEY_BYTES = 24


class TokenServer:
    """See the module; usable from any thread.

    `find_address`: returns the address of this host that its jobs reach; None while there is none.
    """

    def __init__(self, opened: OpenBucket, settings: Settings, find_address: Callable[[], str | None]) -> None:
        self.open_bucket = opened
        self._port = base.TOKEN_PORT
        self._find_address = find_address
        self.token_folder = settings.root / "cache" / "tokens"
        self.keys = settings.root / "cache" / "token_keys"
        self.renew_seconds = times.TOKEN_SECONDS / 6
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="tpu-tokens")
        self._lock = threading.Lock()
        self.listener: _Server | None = None
        self.renewed_at: dict[str, float] = {}

    def issue(self, name: str, job_id: str, zone: str) -> dict[str, str] | None:
        """Return the variables by which the attempt finds its tokens; None: none can be served here.

        A repeat returns the same, whose token is renewed later if that fails now: the job may run with it already.
        """
        address = self._find_address() if self._port else None
        if address is None:
            return None
        key = self._read_key(name) or self._make_key(name)
        is_issued = (self.token_folder / key).exists()  # else no job has it yet, as if its token was never made
        host = f"{address}:{self._port}/{key}"
        try:
            self._write(key, job_id, zone)
            self._serve(address)
            request = urllib.request.Request(f"http://{host}/{_ACCOUNTS}default/email", headers=_HEADERS)
            _DIRECT.open(request, timeout=_CALL_SECONDS).close()
        except (GradientError, OSError) as error:
            logger.warning("tokens_not_served", extra={"address": address, "port": self._port, "error": str(error)})
            if not is_issued:
                self.remove({"name": name})
                return None
        return {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host}

    def renew(self, handle: Handle) -> None:
        """Renew a job's token if that is due, in another thread; serve it, if this worker does not do so yet."""
        key = self._read_key(handle["name"])
        if key is None:
            return
        with self._lock:
            if time.monotonic() - self.renewed_at.get(key, 0.0) < self.renew_seconds:
                return
            self.renewed_at[key] = time.monotonic()
        self.pool.submit(self._renew, key, handle)

    def remove(self, handle: Handle) -> None:
        """Remove a job's token and key."""
        key = self._read_key(handle["name"])
        (self.keys / handle["name"]).unlink(missing_ok=True)  # first: a renewal under way looks for it at its end
        if key is not None:
            self._remove_token(key)

    def _remove_token(self, key: str) -> None:
        (self.token_folder / key).unlink(missing_ok=True)
        with self._lock:
            self.renewed_at.pop(key, None)

    def _read_key(self, name: str) -> str | None:
        with suppress(FileNotFoundError):
            return (self.keys / name).read_text()
        return None

    def _make_key(self, name: str) -> str:
        self.keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = secrets.token_urlsafe(_KEY_BYTES)
        with suppress(FileExistsError):  # another worker launches the same attempt
            write_atomically(self.keys / name, key.encode(), durable=False, replace=False)
        return (self.keys / name).read_text()

    def _renew(self, key: str, handle: Handle) -> None:
        job_id = handle["job_id"]
        try:
            if (self.token_folder / key).exists():  # else the job has ended
                self._write(key, job_id, handle["device"]["name"].partition("/")[0])
                if not (self.keys / handle["name"]).exists():  # it ended meanwhile, maybe in another worker
                    self._remove_token(key)
            address = self._find_address()
            if address is not None:
                self._serve(address)
        except (GradientError, OSError):  # the next time is long before the token ends
            logger.warning("token_not_renewed", exc_info=True, extra={"job_id": job_id})
        except Exception:  # an error in a pool's thread would be lost otherwise
            logger.exception("token_renewal_failed", extra={"job_id": job_id})

    def _write(self, key: str, job_id: str, zone: str) -> None:
        token = self.open_bucket(region_of(zone)).token(job_id)
        self.token_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(self.token_folder / key, json.dumps([token.text, token.expires_at]).encode(), durable=False)
        with self._lock:
            self.renewed_at[key] = time.monotonic()

    def _serve(self, address: str) -> None:
        """Listen, unless this worker does already; another worker of this host may do so in its place."""
        with self._lock:
            if self.listener is not None:
                return
            try:
                self.listener = _Server((address, self._port), self.token_folder)
            except OSError as error:
                logger.info("token_port_taken", extra={"address": address, "port": self._port, "error": str(error)})
                return
        threading.Thread(target=self.listener.serve_forever, name="tokens", daemon=True).start()


_HEADERS = {"Metadata-Flavor": "Google"}
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _Server(LocalServer):
    def __init__(self, address: tuple[str, int], folder: Path) -> None:
        super().__init__(address, _TokenRequest)
        self.folder = folder

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as the base class has it
        """Log a client that went away, without a stack trace."""
        del request
        logger.info("token_request_failed", extra={"client": str(client_address)})


class _TokenRequest(MetadataRequest):
    """A request whose path begins with the job's key, which no other job knows."""

    timeout = _CALL_SECONDS
    server: _Server

    def do_GET(self) -> None:  # noqa: N802 - as http.server names it
        """Answer as Google's metadata server does, as far as tokens need it."""
        url = urllib.parse.urlsplit(self.path)
        self._key, _, rest = url.path.lstrip("/").partition("/")
        account = rest.removeprefix(_ACCOUNTS)
        if self._read() is None or (rest and account == rest):
            self.answer(404, "text/plain", b"")
        elif not rest:
            self.answer(200, "text/plain", b"")
        else:
            self.answer(*self.of_account(account, url.query))

    def token(self) -> tuple[str, float]:
        return self._read() or ("", 0.0)

    def _read(self) -> tuple[str, float] | None:
        if not self._key.replace("-", "").replace("_", "").isalnum():
            return None
        with suppress(FileNotFoundError):
            text, expires_at = json.loads((self.server.folder / self._key).read_bytes())
            return str(text), float(expires_at)
        return None
