"""Schedules: jobs that come again and again, by cron or at intervals, once for each tick in the whole fleet.

When a schedule ticks (`timetable`), what it is (`definition`), its ticks (`ticking`), how declarations are stored
(`syncing`), what people do with it (`people`) and what can be wrong with it (`examine`): flows and plain values. What
asks for ticks is a round of the worker; what becomes of the jobs that ticks add belongs to `jobs`.
"""

from holdfast.schedules.definition import CATCH_UPS as CATCH_UPS
from holdfast.schedules.definition import SCHEDULE_HEADER as SCHEDULE_HEADER
from holdfast.schedules.definition import TICK_HEADER as TICK_HEADER
from holdfast.schedules.definition import CatchUp as CatchUp
from holdfast.schedules.definition import Schedule as Schedule
from holdfast.schedules.definition import Stored as Stored
from holdfast.schedules.examine import examine as examine
from holdfast.schedules.people import add as add
from holdfast.schedules.people import listed as listed
from holdfast.schedules.people import pause as pause
from holdfast.schedules.people import remove as remove
from holdfast.schedules.people import resume as resume
from holdfast.schedules.people import trigger as trigger
from holdfast.schedules.syncing import Synced as Synced
from holdfast.schedules.syncing import fingerprints as fingerprints
from holdfast.schedules.syncing import sync as sync
from holdfast.schedules.ticking import Ticked as Ticked
from holdfast.schedules.ticking import coming as coming
from holdfast.schedules.ticking import tick as tick
