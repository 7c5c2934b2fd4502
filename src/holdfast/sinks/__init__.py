"""Where events go: one module for each kind of receiver, with the client that it needs imported at first use.

A sink sends messages and says what became of each (`base.py`); it knows nothing of databases, leases and routes. What
decides which event goes where, and when it is tried again, belongs to `outbox` and to the worker.
"""

from holdfast.sinks.aws import Sns, Sqs
from holdfast.sinks.base import Delivered, Failed, Message, Mode, Outcome, Refused, Sink, SinkDown
from holdfast.sinks.function import Function
from holdfast.sinks.jobs import Jobs
from holdfast.sinks.kafka import Kafka
from holdfast.sinks.mqtt import Mqtt
from holdfast.sinks.nats import Nats
from holdfast.sinks.rabbitmq import RabbitMQ
from holdfast.sinks.redis import RedisStream
from holdfast.sinks.webhook import Webhook

__all__ = [
    "Delivered",
    "Failed",
    "Function",
    "Jobs",
    "Kafka",
    "Message",
    "Mode",
    "Mqtt",
    "Nats",
    "Outcome",
    "RabbitMQ",
    "RedisStream",
    "Refused",
    "Sink",
    "SinkDown",
    "Sns",
    "Sqs",
    "Webhook",
]
