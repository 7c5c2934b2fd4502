"""Messages that come in: consumers of brokers, one module for each, and how a message is read.

What a consumer and the worker owe each other stands in `base`. Nothing that knows a database or a job
belongs here: the worker stores what a consumer gives it (`worker/receiving.py`), and the application says which handler
it is for (`app/receiving.py`).
"""

from holdfast.inbox.base import Consumer, Incoming, Resuming
from holdfast.inbox.consumers import consumer_of

__all__ = ["Consumer", "Incoming", "Resuming", "consumer_of"]
