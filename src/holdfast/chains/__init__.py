"""Jobs that come after others: chains, jobs that wait for parents, batches with a callback.

A *child* waits for its *parents*. A row in `holdfast_joins` counts the parents that have not ended, an edge in
`holdfast_waits` names each. A parent knows by a bit in its row that something waits for it; its end passes the door
(`life/door.py`), which counts it in the same transaction and makes the child due after the last one. A batch is a
child, its callback, whose parents are the members.

An enqueue waits for nobody: it marks parents that no worker holds, and leaves the others to the worker that claims the
child, which looks again before it runs the child or lets it wait (`jobs/meeting.py`).

Flows and rules of edges only. What adds jobs, or gives a lease back, belongs to `jobs`.
"""

from holdfast.chains.joining import CHILD as CHILD
from holdfast.chains.joining import CONTINUED as CONTINUED
from holdfast.chains.joining import JOINED as JOINED
from holdfast.chains.joining import PARENTS as PARENTS
from holdfast.chains.joining import Counts as Counts
from holdfast.chains.joining import Join as Join
from holdfast.chains.joining import add_edges as add_edges
from holdfast.chains.joining import join as join
from holdfast.chains.joining import locked as locked
from holdfast.chains.joining import unknown as unknown
from holdfast.chains.joining import write as write
from holdfast.chains.leaving import Ending as Ending
from holdfast.chains.leaving import resolve as resolve
from holdfast.chains.people import Parent as Parent
from holdfast.chains.people import Parents as Parents
from holdfast.chains.people import children_of as children_of
from holdfast.chains.people import parents_of as parents_of
from holdfast.chains.returning import pardon as pardon
from holdfast.chains.returning import wait_again as wait_again
from holdfast.chains.upkeep import forget_orphans as forget_orphans
