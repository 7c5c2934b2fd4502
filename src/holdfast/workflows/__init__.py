"""Workflows: functions whose runs survive crashes, deploys and weeks of waiting.

The function, its *body*, runs on an event loop of its own that can only wait (`loop.py`, `body.py`). What it asks of
its run (`run.py`) has a key and is recorded; a replay tells it the same again. This room has the body, what users
call, and how runs are started; it knows no worker. Rows and what follows from them belong to `runs`, steps and their
records to `worker`.
"""

from holdfast.workflows.body import Body as Body
from holdfast.workflows.body import timer_number as timer_number
from holdfast.workflows.body import waits_of as waits_of
from holdfast.workflows.by_hand import redispatch_by_hand as redispatch_by_hand
from holdfast.workflows.by_hand import send_by_hand as send_by_hand
from holdfast.workflows.cancelling import force as force
from holdfast.workflows.cancelling import resume as resume
from holdfast.workflows.cancelling import stop as stop
from holdfast.workflows.cancelling import stop_letter as stop_letter
from holdfast.workflows.forking import before as before
from holdfast.workflows.handle import RunHandle as RunHandle
from holdfast.workflows.handle import letter as letter
from holdfast.workflows.histories import History as History
from holdfast.workflows.histories import export as export
from holdfast.workflows.operations import AttemptFailed as AttemptFailed
from holdfast.workflows.operations import Operation as Operation
from holdfast.workflows.operations import encoded as encoded
from holdfast.workflows.operations import given_of as given_of
from holdfast.workflows.operations import is_async as is_async
from holdfast.workflows.replaying import Replayed as Replayed
from holdfast.workflows.replaying import replay as replay
from holdfast.workflows.replaying import served as served
from holdfast.workflows.run import ContinueAsNew as ContinueAsNew
from holdfast.workflows.run import Run as Run
from holdfast.workflows.run import bodied as bodied
from holdfast.workflows.starting import NewRun as NewRun
from holdfast.workflows.starting import Reuse as Reuse
from holdfast.workflows.starting import Started as Started
from holdfast.workflows.starting import adopt as adopt
from holdfast.workflows.starting import start as start
from holdfast.workflows.starting import start_children as start_children
from holdfast.workflows.workflow import Starts as Starts
from holdfast.workflows.workflow import VersionDecorator as VersionDecorator
from holdfast.workflows.workflow import Workflow as Workflow
from holdfast.workflows.workflow import WorkflowDecorator as WorkflowDecorator
