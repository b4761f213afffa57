"""Publishing with confirms. Only the relay (and `checks`, for a ping) imports this.

A confirm that arrives is matched by its delivery tag, never by order: after a time-out the next publish's
fate would be misread. `mandatory`, because a message to a missing queue is confirmed and gone. After any
anomaly the connection is dropped: what it may still say cannot be trusted.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

import amqp
import kombu
from kombu.utils.url import parse_url

from scheduler import folder_transport, telemetry, topology
from scheduler.faultpoints import fault_point

CONFIRM_TIMEOUT_S = 10.0
CONNECT_TIMEOUT_S = 5.0

BROKER_ERRORS: tuple[type[Exception], ...] = (amqp.AMQPError, OSError, kombu.exceptions.OperationalError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Envelope:
    """A hint that a run is QUEUED. Payload and policies stay in the ledger."""

    run_id: UUID
    due_at: datetime
    generation: int
    target: str
    task: str  # the Celery task that a worker runs for it
    queue: str
    endpoint: str = ""  # of an HTTP target; a worker bounds its calls by it before it claims


class Publisher(Protocol):
    def connect(self) -> None:
        """Be connected, with the topology declared; raises one of BROKER_ERRORS."""

    def publish(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Those that the broker has for certain. Never raises one of BROKER_ERRORS."""

    def close(self) -> None: ...


def publisher(broker_url: str, transport_options: dict[str, Any]) -> Publisher:
    if topology.is_amqp(broker_url):
        return ConfirmingPublisher(broker_url)
    folder_transport.register()
    return LocalPublisher(broker_url, transport_options)


def ping(broker_url: str, transport_options: dict[str, Any], *, timeout_s: float = 2.0) -> bool:
    try:
        with kombu.Connection(
            broker_url, connect_timeout=timeout_s, transport_options=transport_options
        ) as connection:
            connection.connect()
            return True
    except Exception:  # whatever a transport raises, the answer to a ping is no
        return False


# Celery's protocol 2: no arguments, for the worker reads the payload from the ledger.
_BODY = json.dumps([[], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])


def _headers(envelope: Envelope) -> dict[str, Any]:
    run_id = str(envelope.run_id)
    return {
        "lang": "py",
        "task": envelope.task,
        "id": run_id,
        "root_id": run_id,
        "parent_id": None,
        "group": None,
        "retries": 0,
        "timelimit": [None, None],
        "eta": None,
        "expires": None,
        "argsrepr": "()",
        "kwargsrepr": "{}",
        "ignore_result": None,  # as the task itself says
        "generation": envelope.generation,
        "due_at": envelope.due_at.isoformat(),
        "target": envelope.target,
        "endpoint": envelope.endpoint,
    }


class _Connection(amqp.Connection):
    # Told of a blocked connection, py-amqp would look for that word before each publish. The time-out of
    # the confirms covers it: a memory alarm makes them late.
    negotiate_capabilities = {**amqp.Connection.negotiate_capabilities, "connection.blocked": False}


class _Block:
    """Messages that were sent together, and what the broker has said of each."""

    def __init__(self) -> None:
        self.waiting: dict[int, Envelope] = {}
        self.confirmed: list[Envelope] = []
        self.refused: list[Envelope] = []
        self._returned: set[str] = set()

    def acked(self, tag: int, multiple: bool) -> None:
        for envelope in self._settle(tag, multiple):
            unroutable = str(envelope.run_id) in self._returned
            (self.refused if unroutable else self.confirmed).append(envelope)

    def nacked(self, tag: int, multiple: bool) -> None:
        self.refused.extend(self._settle(tag, multiple))

    def returned(self, _error: Exception, _exchange: str, _routing_key: str, message: amqp.Message) -> None:
        """Unroutable. Its confirm follows all the same."""
        self._returned.add(message.properties["correlation_id"])

    def _settle(self, tag: int, multiple: bool) -> list[Envelope]:
        """Tags of earlier blocks are not in `waiting`: what is said of them now counts for nothing."""
        tags = [known for known in self.waiting if known <= tag] if multiple else [tag]
        return [self.waiting.pop(known) for known in tags if known in self.waiting]


class ConfirmingPublisher:
    """RabbitMQ: a block of messages is sent, then its confirms are awaited together."""

    def __init__(self, broker_url: str) -> None:
        self._url = parse_url(broker_url)
        self._connection: amqp.Connection | None = None
        self._channel: Any = None  # amqp's stubs know neither `events` nor `_basic_publish`
        self._last_tag = 0

    def connect(self) -> None:
        if self._connection is not None and self._connection.connected:
            return
        self.close()
        self._connection = _Connection(
            host=f"{self._url['hostname'] or 'localhost'}:{self._url['port'] or 5672}",
            userid=self._url["userid"] or "guest",
            password=self._url["password"] or "guest",
            virtual_host=self._url["virtual_host"] or "/",
            ssl=self._url["transport"] == "amqps",
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=CONFIRM_TIMEOUT_S,
            write_timeout=CONFIRM_TIMEOUT_S,
        )
        self._connection.connect()
        self._declare(self._connection.channel())
        self._channel = self._connection.channel()
        self._channel.confirm_select()
        self._last_tag = 0

    def publish(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        block = _Block()
        try:
            self.connect()
            self._send(envelopes, block)
            fault_point("relay.published_unconfirmed")
            self._await_confirms(block)
        except BROKER_ERRORS as error:
            telemetry.trouble("publish_failed", error=f"{type(error).__name__}: {error}")
        if len(block.confirmed) < len(envelopes):
            telemetry.alert("unconfirmed", unheard=len(block.waiting), refused=len(block.refused))
            self.close()
        return block.confirmed

    def close(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            connection.collect()  # drops the socket: no words are exchanged with a peer in doubt

    def _declare(self, channel: amqp.Channel) -> None:
        """Nobody else may have: a vhost that was reset has neither exchange nor queues."""
        channel.exchange_declare(topology.EXCHANGE, "direct", durable=True, auto_delete=False)
        for queue in topology.queues(quorum=True):
            channel.queue_declare(
                queue.name, durable=True, auto_delete=False, arguments=queue.queue_arguments
            )
            channel.queue_bind(queue.name, topology.EXCHANGE, routing_key=queue.routing_key)
        channel.close()

    def _send(self, envelopes: Sequence[Envelope], block: _Block) -> None:
        self._channel.events["basic_ack"] = {block.acked}
        self._channel.events["basic_nack"] = {block.nacked}
        self._channel.events["basic_return"] = {block.returned}
        for envelope in envelopes:
            self._last_tag += 1
            block.waiting[self._last_tag] = envelope
            self._channel._basic_publish(
                _message(envelope),
                topology.EXCHANGE,
                envelope.queue,
                mandatory=True,
                timeout=CONFIRM_TIMEOUT_S,
            )

    def _await_confirms(self, block: _Block) -> None:
        assert self._connection is not None
        deadline = time.monotonic() + CONFIRM_TIMEOUT_S
        while block.waiting:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(f"{len(block.waiting)} confirms outstanding after {CONFIRM_TIMEOUT_S:g} s")
            self._connection.drain_events(timeout=remaining)


def _message(envelope: Envelope) -> amqp.Message:
    return amqp.Message(
        _BODY,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        correlation_id=str(envelope.run_id),
        application_headers=_headers(envelope),
    )


class LocalPublisher:
    """Any other kombu transport, such as the file system for a try-out. It confirms nothing: what it loses,
    the sweep finds unclaimed and sends again.
    """

    def __init__(self, broker_url: str, transport_options: dict[str, Any]) -> None:
        self._connection = kombu.Connection(broker_url, transport_options=transport_options)
        self._producer: kombu.Producer | None = None

    def connect(self) -> None:
        if self._producer is None:
            channel = self._connection.channel()
            for queue in topology.queues(quorum=False):
                queue(channel).declare()
            self._producer = kombu.Producer(channel, exchange=topology.exchange())

    def publish(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        sent: list[Envelope] = []
        try:
            self.connect()
            for envelope in envelopes:
                self._publish_one(envelope)
                sent.append(envelope)
            fault_point("relay.published_unconfirmed")
        except BROKER_ERRORS as error:
            telemetry.trouble("publish_failed", error=f"{type(error).__name__}: {error}")
            self.close()
        return sent

    def close(self) -> None:
        self._producer = None
        self._connection.close()

    def _publish_one(self, envelope: Envelope) -> None:
        assert self._producer is not None
        self._producer.publish(
            _BODY,
            routing_key=envelope.queue,
            content_type="application/json",
            content_encoding="utf-8",
            correlation_id=str(envelope.run_id),
            headers=_headers(envelope),
        )
