"""The transport beside a Redis that ends while messages are being handled."""

import hashlib
from urllib.parse import urlsplit

import pytest
from kombu import Connection
from redis import Redis
from redis.exceptions import NoPermissionError

from core.notify import broker_users
from core.notify.celery_app import make_app, queue
from worker.celery import checked_messages
from worker.celery.checked_messages import Transport

SLOW_OR_LARGE = (
    ("LCS", "gradient:a", "gradient:b"),
    ("SETRANGE", "gradient:a", 400_000_000, "x"),
    ("SETBIT", "gradient:a", 2**32 - 1, 1),
    ("APPEND", "gradient:a", "x"),
    ("SINTER", "gradient:a", "gradient:b"),
    ("ZUNION", 2, "gradient:a", "gradient:b"),
    ("HRANDFIELD", "gradient:a", 1000),
    ("LINSERT", "gradient:a", "BEFORE", "x", "y"),
    ("SUBSCRIBE", "gradient:a"),
    ("EVAL", "return 1", 0),
    ("KEYS", "*"),
)


@pytest.fixture
def channel(redis):
    """A channel that handles two messages at a time and has received two."""
    options = make_app(redis.url).conf.broker_transport_options
    with Connection(redis.url, transport=Transport, transport_options=options) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=2)
        bound = queue("some")(channel)
        bound.declare()
        for number in range(2):
            connection.Producer(channel).publish({"number": number}, exchange=bound.exchange, routing_key="some")
        yield channel, [bound.get(), bound.get()]


def test_failed_acknowledgements_leave_a_channel_able_to_take_messages(channel, redis):
    channel, messages = channel
    assert not channel.qos.can_consume()
    redis.kill()
    for message in messages:
        with pytest.raises(channel.connection_errors):
            message.ack()
    assert channel.qos.can_consume()
    redis.start()


def test_a_message_whose_acknowledgement_failed_is_delivered_again(channel, redis):
    channel, messages = channel
    redis.kill()
    with pytest.raises(channel.connection_errors):
        messages[0].ack()
    redis.start()
    channel.qos.restore_by_tag(messages[0].delivery_tag)
    assert queue("some")(channel).get().payload == {"number": 0}


def test_a_worker_of_another_host_restores_messages_that_nobody_acknowledged(redis):
    checked_messages.install()
    broker_users.set_user(redis.url, "far", hashlib.sha256(b"password").digest())
    options = make_app(redis.url).conf.broker_transport_options | {"visibility_timeout": 0}
    url = redis.url.replace("redis://:", "redis://far:").replace(urlsplit(redis.url).password, "password")
    with Connection(url, transport=Transport, transport_options=options) as connection:
        channel = connection.channel()
        bound = queue("some")(channel)
        bound.declare()
        connection.Producer(channel).publish({"number": 1}, exchange=bound.exchange, routing_key="some")
        assert bound.get().payload == {"number": 1}
        with redis.client() as admin:
            admin.set("gradient:unacked_mutex", "1")  # another one is at it
            channel.qos.restore_visible(interval=1)
            assert bound.get() is None
            admin.delete("gradient:unacked_mutex")
            channel.qos.restore_visible(interval=1)
            assert bound.get().payload == {"number": 1}
            assert admin.acl_log() == []
    with Redis.from_url(url) as far:
        for command in SLOW_OR_LARGE:
            with pytest.raises(NoPermissionError):
                far.execute_command(*command)
