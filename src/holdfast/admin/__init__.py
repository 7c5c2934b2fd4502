"""What people do to our own jobs: look, retry, cancel, change, replay, discard, pause; and how healthy the tables are.

Flows only, used by the command line and whatever else shows jobs; `JobsDesk` has them as every `Desk` has. What workers
do belongs to `jobs`.
"""

from holdfast.admin.cancelling import cancel as cancel
from holdfast.admin.cancelling import cancel_all as cancel_all
from holdfast.admin.cancelling import cancel_chunk as cancel_chunk
from holdfast.admin.cancelling import force_chunk as force_chunk
from holdfast.admin.changing import change_all as change_all
from holdfast.admin.changing import change_chunk as change_chunk
from holdfast.admin.desk import JobsDesk as JobsDesk
from holdfast.admin.desk import filter_of as filter_of
from holdfast.admin.jobs import ALL as ALL
from holdfast.admin.jobs import LONGEST_LIST as LONGEST_LIST
from holdfast.admin.jobs import REPLAYABLE as REPLAYABLE
from holdfast.admin.jobs import STATES as STATES
from holdfast.admin.jobs import Filter as Filter
from holdfast.admin.jobs import Replayed as Replayed
from holdfast.admin.jobs import any_live as any_live
from holdfast.admin.jobs import audit as audit
from holdfast.admin.jobs import count_jobs as count_jobs
from holdfast.admin.jobs import counts as counts
from holdfast.admin.jobs import dead_groups as dead_groups
from holdfast.admin.jobs import discard as discard
from holdfast.admin.jobs import expired_leases as expired_leases
from holdfast.admin.jobs import oldest_pending as oldest_pending
from holdfast.admin.jobs import replay as replay
from holdfast.admin.jobs import retry as retry
from holdfast.admin.jobs import run_now as run_now
from holdfast.admin.jobs import show as show
from holdfast.admin.looking import WINDOW as WINDOW
from holdfast.admin.looking import Look as Look
from holdfast.admin.looking import audit_page as audit_page
from holdfast.admin.looking import count_found as count_found
from holdfast.admin.looking import finished_ids as finished_ids
from holdfast.admin.looking import latest as latest
from holdfast.admin.looking import list_jobs as list_jobs
from holdfast.admin.looking import look as look
from holdfast.admin.looking import newest as newest
from holdfast.admin.pausing import HeldUp as HeldUp
from holdfast.admin.pausing import held_up as held_up
from holdfast.admin.pausing import pause as pause
from holdfast.admin.pausing import resume as resume
from holdfast.admin.picking import JobFilter as JobFilter
from holdfast.admin.picking import meant_by as meant_by
from holdfast.admin.queues import LineView as LineView
from holdfast.admin.queues import change_queue as change_queue
from holdfast.admin.queues import list_lines as list_lines
from holdfast.admin.queues import start_lines as start_lines
from holdfast.admin.queues import stop_lines as stop_lines
from holdfast.admin.reading import get as get
from holdfast.admin.reading import read as read
from holdfast.admin.reading import shard_of as shard_of
from holdfast.admin.recording import prune_audit as prune_audit
from holdfast.life.listing import Cancelled as Cancelled
from holdfast.life.listing import Changed as Changed
from holdfast.life.listing import Wanted as Wanted
from holdfast.values.changes import Change as Change
from holdfast.values.views import AuditLine as AuditLine
from holdfast.values.views import DeadGroup as DeadGroup
from holdfast.values.views import JobView as JobView
from holdfast.values.views import Lag as Lag
from holdfast.values.views import QueueCount as QueueCount
