"""What people do: each action shows first what it would touch, then does it in the name of somebody, for the audit.

Forms, previews and words belong here. What is done to rows is a flow, and belongs to a desk or to the room of its
surface; who may do it, to `access`.
"""

from holdfast.dashboard.actions import jobs, letters, queues, runs, schedules, workers
from holdfast.dashboard.actions.base import Deed

DEEDS: dict[str, Deed] = {
    "retry": Deed("retry", jobs.preview_retry, jobs.retry),
    "cancel": Deed("cancel", jobs.preview_cancel, jobs.cancel),
    "change": Deed("change", jobs.preview_change, jobs.change),
    "replay": Deed("replay", letters.preview_replay, letters.replay),
    "discard": Deed("discard", letters.preview_discard, letters.discard),
    "pause": Deed("pause", queues.preview_pause, queues.pause),
    "resume": Deed("pause", queues.preview_resume, queues.resume),
    "limits": Deed("limits", queues.preview_limits, queues.limits),
    "stop-line": Deed("lines", queues.preview_stop, queues.stop),
    "start-line": Deed("lines", queues.preview_start, queues.start),
    "trigger": Deed("schedules", schedules.preview_trigger, schedules.trigger),
    "pause-schedule": Deed("schedules", schedules.preview_pause, schedules.pause),
    "resume-schedule": Deed("schedules", schedules.preview_resume, schedules.resume),
    "drain": Deed("drain", workers.preview_drain, workers.drain),
    "resume-run": Deed("resume", runs.preview_resume, runs.resume),
    "cancel-run": Deed("cancel", runs.preview_cancel, runs.cancel),
    "signal-run": Deed("signal", runs.preview_signal, runs.signal),
}
