"""Confirmed publishing against a real RabbitMQ: what is called confirmed is in a queue."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from uuid import uuid4

import amqp
import pytest

from scheduler import topology
from scheduler.broker import ConfirmingPublisher, Envelope, LocalPublisher, ping, publisher
from tests.support.brokers import Queues

pytestmark = pytest.mark.rabbitmq


def envelopes(count: int, queue: str = topology.queue_name("normal")) -> list[Envelope]:
    due_at = datetime(2026, 11, 30, 9, tzinfo=UTC)
    return [
        Envelope(
            run_id=uuid4(), due_at=due_at, generation=1, target="demo.record", task="demo.record", queue=queue
        )
        for _ in range(count)
    ]


@pytest.fixture
def channel(broker_url: str) -> Iterator[amqp.Channel]:
    with Queues(broker_url).channel() as opened:
        yield opened


@pytest.fixture
def confirming(broker_url: str, channel: amqp.Channel) -> Iterator[ConfirmingPublisher]:
    made = ConfirmingPublisher(broker_url)
    made.connect()
    for run_class in topology.CLASSES:
        channel.queue_purge(topology.queue_name(run_class))
    yield made
    made.close()


def test_confirmed_messages_are_in_the_queue_in_celerys_protocol(
    confirming: ConfirmingPublisher, channel: amqp.Channel
) -> None:
    (sent,) = batch = envelopes(1)
    assert confirming.publish(batch) == batch
    message = channel.basic_get(topology.queue_name("normal"), no_ack=True)
    assert message is not None
    headers = message.headers
    assert (headers["task"], headers["id"], headers["generation"]) == ("demo.record", str(sent.run_id), 1)
    assert headers["due_at"] == "2026-11-30T09:00:00+00:00"
    assert message.properties["delivery_mode"] == 2


def test_a_block_is_confirmed_as_a_whole_and_the_next_one_after_it(
    confirming: ConfirmingPublisher, broker_url: str
) -> None:
    for _ in range(3):
        batch = envelopes(500)
        assert confirming.publish(batch) == batch
    assert Queues(broker_url).ready() == 1500


def test_an_unroutable_message_is_not_confirmed_and_its_neighbours_are(
    confirming: ConfirmingPublisher, broker_url: str
) -> None:
    good = envelopes(2)
    assert confirming.publish([good[0], *envelopes(1, "fencepost.nowhere"), good[1]]) == good
    assert Queues(broker_url).ready() == 2
    assert confirming.publish(more := envelopes(1)) == more


@pytest.mark.parametrize(
    "harm",
    [
        lambda channel: channel.queue_delete(topology.queue_name("normal")),
        lambda channel: channel.exchange_delete(topology.EXCHANGE),
    ],
    ids=["queue deleted", "exchange deleted"],
)
def test_topology_that_vanished_is_noticed_and_declared_again(
    harm: Callable[[amqp.Channel], None],
    confirming: ConfirmingPublisher,
    channel: amqp.Channel,
    broker_url: str,
) -> None:
    harm(channel)
    assert confirming.publish(envelopes(3)) == []
    batch = envelopes(3)
    assert confirming.publish(batch) == batch
    assert Queues(broker_url).ready() == 3


def test_a_full_queue_that_rejects_confirms_nothing(broker_url: str, channel: amqp.Channel) -> None:
    name = topology.queue_name("low")
    channel.queue_delete(name)
    channel.queue_declare(
        name, durable=True, auto_delete=False, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    channel.exchange_declare(topology.EXCHANGE, "direct", durable=True, auto_delete=False)
    channel.queue_bind(name, topology.EXCHANGE, routing_key=name)
    full = ConfirmingPublisher(broker_url)
    full._declare = lambda channel: None  # type: ignore[method-assign]  # the queue above is not ours to redeclare
    batch = envelopes(5, name)
    confirmed = full.publish(batch)
    assert confirmed == batch[: len(confirmed)]
    assert len(confirmed) < 5
    message_count = channel.queue_declare(name, passive=True)
    assert message_count is not None
    assert message_count.message_count == len(confirmed)
    full.close()
    channel.queue_delete(name)


def test_a_broker_that_is_away_raises_at_connect_and_confirms_nothing(free_port: int) -> None:
    away = ConfirmingPublisher(f"amqp://guest:guest@127.0.0.1:{free_port}/")
    with pytest.raises(ConnectionRefusedError):
        away.connect()
    assert away.publish(envelopes(1)) == []
    assert not ping(f"amqp://guest:guest@127.0.0.1:{free_port}/", {}, timeout_s=1)


def test_the_url_chooses_the_publisher(broker_url: str) -> None:
    assert isinstance(publisher(broker_url, {}), ConfirmingPublisher)
    assert isinstance(publisher("filesystem://", {}), LocalPublisher)
    assert ping(broker_url, {})
