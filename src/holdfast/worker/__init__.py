"""The worker: claims, slots, the settler that writes outcomes, and the rounds beside them.

It moves leased rows of any source through their life, on one store or several. What a row means, and its SQL, belong to
the surfaces; what a process does with signals and children is `process`.

A job passes through `claiming` (as much as `demand` says), `holdings`, `slots`, an executor (`executors` lists them;
`handler_executor` calls handlers; in `streaks` a thread takes one job after the other), `outcomes` and `settler`. A
`branch` is the worker's side of one store; `rounds` renew, reap and clear up; `worker` is the life of the whole.
"""

from holdfast.worker.branch import Served as Served
from holdfast.worker.worker import Worker as Worker
