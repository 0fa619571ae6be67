"""The transport beside a Redis that ends while messages are being handled."""

import pytest
from kombu import Connection

from core.notify.celery_app import make_app, queue
from worker.celery.checked_messages import Transport


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
