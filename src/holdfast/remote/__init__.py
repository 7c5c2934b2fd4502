"""Remote steps as rows: what runs have sent to workers elsewhere, and how results come back into their journals.

A dispatch is noted with the row of the journal that tells of it, in one commit; it is pending until the commit that
puts its result into the journal. Flows and plain rules only: how tasks reach workers, and results come from them, is a
transport's (`Transport`), which belongs to `foreign`; what drives a run and makes these flows run belongs to `worker`.
"""

from holdfast.remote.care import OpenDispatch as OpenDispatch
from holdfast.remote.care import Swept as Swept
from holdfast.remote.care import forget_over as forget_over
from holdfast.remote.care import missing as missing
from holdfast.remote.care import open_dispatches as open_dispatches
from holdfast.remote.care import redispatch as redispatch
from holdfast.remote.care import sweep as sweep
from holdfast.remote.care import to_send as to_send
from holdfast.remote.care import were_sent as were_sent
from holdfast.remote.results import Arrived as Arrived
from holdfast.remote.results import Awaited as Awaited
from holdfast.remote.results import Collected as Collected
from holdfast.remote.results import collect as collect
from holdfast.remote.results import received as received
from holdfast.remote.results import ring as ring
from holdfast.remote.rows import Dispatch as Dispatch
from holdfast.remote.rows import Result as Result
from holdfast.remote.rows import Task as Task
from holdfast.remote.rows import group_of as group_of
from holdfast.remote.rows import letter_id as letter_id
from holdfast.remote.rows import step_id as step_id
from holdfast.remote.sending import Sending as Sending
from holdfast.remote.sending import dispatch as dispatch
from holdfast.remote.sending import withdraw as withdraw
from holdfast.remote.transport import Engine as Engine
from holdfast.remote.transport import Messenger as Messenger
from holdfast.remote.transport import Told as Told
from holdfast.remote.transport import Transport as Transport
