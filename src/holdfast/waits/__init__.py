"""Waiting for jobs to end, in one process: who waits for which job, when to look, and what wakes those who wait.

All who wait on one event loop share one task, one look at a time and one listening connection, and so do all threads.
A worker of the same process says at once which jobs have ended. What is asked of the database belongs to `results`;
what callers see of it to `app`.
"""

from holdfast.waits.board import Answer as Answer
from holdfast.waits.board import TooLong as TooLong
from holdfast.waits.looking import STEPS_AHEAD as STEPS_AHEAD
from holdfast.waits.sharded import ShardWaits as ShardWaits
from holdfast.waits.verdicts import Kept as Kept
from holdfast.waits.verdicts import final as final
from holdfast.waits.verdicts import value_of as value_of
from holdfast.waits.waits import Waits as Waits
