"""Events in a table that Debezium's outbox event router reads, for those who capture changes; and the way back.

Rows are inserted in the publisher's transaction and never updated. No relay of ours serves them: what
we deliver ourselves belongs to the room above. What publishes into the table belongs to `app`.
"""

from holdfast.outbox.debezium.connector import connector as connector
from holdfast.outbox.debezium.flows import HandedOver as HandedOver
from holdfast.outbox.debezium.flows import count as count
from holdfast.outbox.debezium.flows import create as create
from holdfast.outbox.debezium.flows import hand_over as hand_over
from holdfast.outbox.debezium.flows import prune as prune
from holdfast.outbox.debezium.flows import untaken as untaken
from holdfast.outbox.debezium.flows import write as write
from holdfast.outbox.debezium.table import DEFAULT_TABLE as DEFAULT_TABLE
from holdfast.outbox.debezium.table import Captured as Captured
from holdfast.outbox.debezium.table import EventTable as EventTable
from holdfast.outbox.debezium.table import captured as captured
