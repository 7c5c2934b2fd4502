"""For those who come from Celery: its decorators, calls and canvas, as jobs of Holdfast's, without Celery.

A project changes `from celery import shared_task` into `from holdfast.celery import shared_task`, and says once
`holdfast.celery.install(hf)`. What has no counterpart is refused where it is said, with what to do instead: no option
is taken and forgotten. What belongs here is translation only; what a job is, and how it runs, belongs to the rooms
below.
"""

from holdfast.celery.app import Celery as Celery
from holdfast.celery.app import current_app as current_app
from holdfast.celery.app import current_task as current_task
from holdfast.celery.app import install as install
from holdfast.celery.app import shared_task as shared_task
from holdfast.celery.attempts import Request as Request
from holdfast.celery.canvas import Chain as Chain
from holdfast.celery.canvas import Chord as Chord
from holdfast.celery.canvas import Group as Group
from holdfast.celery.canvas import Signature as Signature
from holdfast.celery.canvas import chain as chain
from holdfast.celery.canvas import chord as chord
from holdfast.celery.canvas import group as group
from holdfast.celery.exceptions import Ignore as Ignore
from holdfast.celery.exceptions import MaxRetriesExceededError as MaxRetriesExceededError
from holdfast.celery.exceptions import Reject as Reject
from holdfast.celery.results import AsyncResult as AsyncResult
from holdfast.celery.results import EagerResult as EagerResult
from holdfast.celery.results import GroupResult as GroupResult
from holdfast.celery.schedules import crontab as crontab
from holdfast.celery.tasks import Task as Task

# Celery's other name for it.
task = shared_task
