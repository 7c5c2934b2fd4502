"""The outbox: events that are written in the caller's transaction, and the routes by which they leave.

A delivery is an ordinary job, in the queue of its route: leases, retries, dead letters, order and limits are those of
jobs. What sends it belongs to the worker (`worker/relay_executor.py`), how it is sent to `sinks`.
"""

from holdfast.outbox.envelope import EventType as EventType
from holdfast.outbox.patterns import Pattern as Pattern
from holdfast.outbox.patterns import event_type as event_type
from holdfast.outbox.people import DeliveryView as DeliveryView
from holdfast.outbox.people import Republished as Republished
from holdfast.outbox.people import delivery_of as delivery_of
from holdfast.outbox.people import redirect as redirect
from holdfast.outbox.people import republish as republish
from holdfast.outbox.people import siblings as siblings
from holdfast.outbox.publishing import Draft as Draft
from holdfast.outbox.publishing import Published as Published
from holdfast.outbox.publishing import answer as answer
from holdfast.outbox.publishing import draft_of as draft_of
from holdfast.outbox.publishing import likes_of as likes_of
from holdfast.outbox.publishing import publish as publish
from holdfast.outbox.publishing import rows_of as rows_of
from holdfast.outbox.routes import ROUTE_RETRY as ROUTE_RETRY
from holdfast.outbox.routes import Route as Route
from holdfast.outbox.routes import Routes as Routes
from holdfast.values.reserved import UNROUTED as UNROUTED
