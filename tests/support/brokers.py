"""What lies in a queue of the product's vhost, looked at and moved by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import amqp

from scheduler import topology

NORMAL = topology.queue_name("normal")


class Queues:
    """One short connection per question: a held one would keep messages from workers."""

    def __init__(self, broker_url: str) -> None:
        self._parts = urlsplit(broker_url)

    def purge(self, queue: str = NORMAL) -> int:
        """Throw the ready messages away; how many there were."""
        with self.channel() as channel:
            purged = channel.queue_purge(queue)
            assert purged is not None
            return purged

    def ready(self, queue: str = NORMAL) -> int:
        with self.channel() as channel:
            declared = channel.queue_declare(queue, passive=True)
            assert declared is not None
            _, messages, _ = declared
            return messages

    def multiply_one(self, copies: int, queue: str = NORMAL) -> None:
        """Take one message and put back `copies` of it, body, headers and all."""
        with self.channel() as channel:
            message = channel.basic_get(queue, no_ack=True)
            assert message is not None, f"{queue} is empty"
            copy = amqp.Message(message.body, **message.properties)
            for _ in range(copies):
                channel.basic_publish(copy, topology.EXCHANGE, queue)

    @contextmanager
    def channel(self) -> Iterator[amqp.Channel]:
        connection = amqp.Connection(
            host=f"{self._parts.hostname}:{self._parts.port or 5672}",
            userid=self._parts.username or "guest",
            password=self._parts.password or "guest",
            virtual_host=self._parts.path.lstrip("/"),
        )
        connection.connect()
        try:
            yield connection.channel()
        finally:
            connection.close()
