from importlib.util import find_spec
from urllib.parse import urlsplit

from core.settings import Settings
from core.system.canonical_host import canonical_host, is_loopback
from service.tensorboard.board_process import sandbox_problem


def unavailable(settings: Settings) -> str | None:
    """Return the reason that this server cannot open TensorBoard, and what to do; None if it can."""
    host = canonical_host(_host(settings))
    if find_spec("tensorboard") is None:
        return (
            "TensorBoard is not installed on this server. Its operator can run "
            "`pip install 'gradient-jobs[server,tensorboard]'` in the server's environment, and restart it."
        )
    if settings.artifacts.url is not None:
        return (
            "The artifacts of this server are in a bucket, and TensorBoard reads only those on the server's own disk. "
            "Download them with `gradient-cli jobs artifacts get`, and start `tensorboard --logdir` yourself."
        )
    if settings.dashboard_host in {None, host}:
        return (
            f"TensorBoard would have the dashboard's own host name, {host}, and its scripts could use your session. "
            "The server's operator can set GRADIENT_TENSORBOARD__URL to a URL with another host name."
        )
    if is_loopback(host) and not is_loopback(settings.dashboard_host or ""):
        return (
            f"TensorBoard would be opened at {host}, which only the server's own machine reaches. Its operator can set "
            "GRADIENT_PORTS__BIND and GRADIENT_WORKER__ADDRESS to an address and a name of this machine that "
            "are not the dashboard's, or GRADIENT_TENSORBOARD__URL to the URL of a proxy."
        )
    if settings.tensorboard.sandbox == "require" and (problem := sandbox_problem()):
        return f"TensorBoard needs its sandbox (GRADIENT_TENSORBOARD__SANDBOX=require), and {problem}."
    return None


def _host(settings: Settings) -> str:
    own = settings.tensorboard.url
    return settings.ports_host if own is None else urlsplit(own).hostname or ""
