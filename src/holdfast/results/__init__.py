"""What those who wait for a job's end ask of the database: mark it, look at it, and be told when it has ended.

A marked job's end passes the door (`life/door.py`). What follows there tells those who wait, where the database can
tell, and keeps what the job gave where its queue keeps nothing of done jobs. Plain jobs pass no door, and nobody is
told of them.

Flows only. Who waits in a process, and when to look, belongs to `waits`.
"""

from holdfast.results.ends import KEPT_SECONDS as KEPT_SECONDS
from holdfast.results.ends import LEFT as LEFT
from holdfast.results.ends import MOVED_ON as MOVED_ON
from holdfast.results.ends import WAITED_FOR as WAITED_FOR
from holdfast.results.ends import Seen as Seen
from holdfast.results.ends import look as look
from holdfast.results.ends import mark as mark
from holdfast.results.ends import prune as prune
from holdfast.results.ends import read_told as read_told
