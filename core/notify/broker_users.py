"""The Redis users of single workers. Each may do what Celery does with this service's queues, and nothing else.

Not imported unless a broker is configured.
"""

from contextlib import suppress
from functools import cache
from urllib.parse import urlsplit

import redis
from redis.exceptions import RedisError, ResponseError

from core.notify.celery_app import KEY_PREFIX

_SECONDS = 1.0
_RULES = (
    *("reset", "on", f"~{KEY_PREFIX}*", f"&{KEY_PREFIX}*", "+publish"),
    *(
        "+@connection",
        "+@transaction",
        "-@admin",
        "-@dangerous",
    ),
    *("+del", "+exists", "+expire", "+pexpire", "+pttl", "+info", "+get", "+set"),
    *("+hdel", "+hget", "+hset", "+brpop", "+llen", "+lpush", "+rpop", "+rpush", "+sadd", "+smembers", "+srem"),
    *("+zadd", "+zrange", "+zrangebyscore", "+zrem", "+zrevrangebyscore"),
    "-@scripting",  # one that never ends blocks Redis for all
)


def set_user(url: str, name: str, sha256: bytes) -> None:
    """Make the user, or give it these rights. Raises `OSError`."""
    _run(url, "SETUSER", name, *_RULES, f"#{sha256.hex()}")
    _save(url)


def is_missing(url: str, name: str) -> bool:
    """Return whether Redis has forgotten the user, as after a restart. Raises `OSError`."""
    return _run(url, "GETUSER", name) is None


def delete_user(url: str, name: str) -> None:
    """Delete the user, which ends its connections. Raises `OSError`."""
    _run(url, "DELUSER", name)
    _save(url)


def _save(url: str) -> None:
    with suppress(OSError):  # it has no `aclfile`: see `worker_logins.keep_broker_user`
        _run(url, "SAVE")


def _run(url: str, *arguments: str) -> object:
    if urlsplit(url).scheme not in {"redis", "rediss"}:
        raise PermissionError("it is not Redis")
    try:
        answer: object = _client(url).execute_command("ACL", *arguments)  # type: ignore[no-untyped-call] # typed in part
    except ResponseError as error:
        raise PermissionError(str(error)) from error
    except RedisError as error:
        raise ConnectionError(str(error)) from error
    return answer


@cache
def _client(url: str) -> "redis.Redis":
    return redis.Redis.from_url(url, socket_timeout=_SECONDS, socket_connect_timeout=_SECONDS)
