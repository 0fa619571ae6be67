"""A worker that shares no folder with its service, as far as files go on a host of its own."""

from support.deployment import Deployment, wait_until

GATE = 'while [ ! -e "$GRADIENT_STORAGE_DIR/{name}" ]; do sleep 0.05; done'
ECHO = (
    "import socketserver\n"
    "class Echo(socketserver.StreamRequestHandler):\n"
    "    def handle(self):\n"
    "        for line in self.rfile: self.wfile.write(line)\n"
    "server = socketserver.ThreadingTCPServer(('127.0.0.1', 0), Echo)\n"
    "print(server.server_address[1], flush=True)\n"
    "server.serve_forever()\n"
)
"""A server that sends every line back, and first prints its port."""


class FarWorker:
    """Such a worker, with a GRADIENT_HOME of its own.

    Args:
        inside: Words that begin its command, if it is to run in a namespace of its own.
    """

    def __init__(self, deployment: Deployment, home, url: str, name: str = "far", inside=(), **settings: str) -> None:
        self._deployment = deployment
        self.home = home
        self._url = url
        self._name = name
        self._inside = inside
        self._settings = settings
        home.mkdir()
        self.renew_token()

    def renew_token(self):
        (self.home / "worker-token").write_text(run_server(self._deployment, "workers", "token", self._name))

    def start(self, **settings):
        process = self.launch(**settings)
        wait_until(lambda: "ready." in process.read_log(), "it to listen")
        return process

    def fail(self, name):
        """Start it under a name, for which it has no token; return what it says."""
        process = self.launch(name)
        assert process.wait() == 1
        return process.read_log()

    def launch(self, name=None, **settings):
        return self._deployment.start(
            "worker",
            "--name",
            name or self._name,
            inside=self._inside,
            **{
                "GRADIENT_HOME": str(self.home),
                "GRADIENT_WORKER__HOST": self._name,
                "GRADIENT_DATABASE__URL": self._deployment.database_url,
                "GRADIENT_WORKER__SERVICE_URL": self._url,
                "GRADIENT_WORKER__SYNC_SECONDS": "0.2",
                "GRADIENT_WORKER__POLL_SECONDS": "0.2",
                "GRADIENT_WORKER__SLOTS": "2",
                "GRADIENT_WORKER__LEASE_SECONDS": "2",
            }
            | self._settings
            | settings,
        )

    def open_gate(self, name="go"):
        """Create a file in the host's own /storage."""
        projects = self.home / "storage" / "projects"
        [folder] = wait_until(lambda: list(projects.glob("*")), "the project's storage")
        (folder / name).touch()


def run_server(deployment, *arguments):
    process = deployment.start(*arguments)
    assert process.wait() == 0, process.read_log()
    return process.read_log()
