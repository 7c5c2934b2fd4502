"""Queues with order and limits: lines of jobs that share a key, what a queue may run at once, and rates.

A line is made for each key that has something leased or waiting. A pending job of such a queue is a *ticket*: no
enqueue touches a row that others write, and workers order among themselves, in short transactions that lock the lines
they try. A claim leases the first jobs of a free line together, a *stint*; other tickets of keys that it tried wait for
their line. When the last job of a stint has left (`life/door.py`), the line calls its next: that one is made due,
behind all that is due already, and so keys take turns.

Flows and plain rules only. What a worker does with a stint belongs to `worker`, what people do by hand to `admin`.
"""

from holdfast.lines.claiming import Claimed as Claimed
from holdfast.lines.claiming import LinedLease as LinedLease
from holdfast.lines.claiming import StintLease as StintLease
from holdfast.lines.claiming import Ticket as Ticket
from holdfast.lines.claiming import claim as claim
from holdfast.lines.committing import after_others as after_others
from holdfast.lines.leaving import FAIR as FAIR
from holdfast.lines.leaving import LIMIT as LIMIT
from holdfast.lines.leaving import ORDER as ORDER
from holdfast.lines.settings import Stored as Stored
from holdfast.lines.settings import change as change
from holdfast.lines.settings import declare as declare
from holdfast.lines.settings import parted as parted
from holdfast.lines.settings import stored as stored
from holdfast.lines.settings import stored_of as stored_of
from holdfast.lines.stopping import start as start
from holdfast.lines.stopping import stop as stop
from holdfast.lines.upkeep import Difference as Difference
from holdfast.lines.upkeep import queues_in_lines as queues_in_lines
from holdfast.lines.upkeep import recount as recount
from holdfast.lines.upkeep import tidy as tidy
from holdfast.lines.visiting import InLine as InLine
from holdfast.lines.visiting import in_line as in_line
