"""The errors that are about durable runs."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.errors.general import HoldfastError, shown


class RunNotFound(HoldfastError):
    """No run has this id, or runs of several workflows have it."""

    def __init__(self, run_id: str, workflows: Iterable[str] = ()) -> None:
        self.run_id, self.workflows = run_id, list(workflows)
        several = " and ".join(self.workflows)
        super().__init__(
            f"Runs of {several} have the id {shown(run_id)}: say which with workflow=."
            if self.workflows
            else f"There is no run {shown(run_id)}: it was never started, its start was not committed, or its queue "
            "does not keep it any more. `holdfast runs list` names those that there are."
        )


class RunFinished(HoldfastError):
    """The run is over: nobody would take what was to be sent to it."""

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"Run {shown(run_id)} is over and takes no signals any more. `holdfast runs show` says how it ended."
        )
        self.run_id = run_id


class StepFailed(HoldfastError):
    """A step of a workflow failed for good: after its last attempt, by `Fatal`, or because its result is not JSON.

    `type`, `text` and `code` are those of the exception that its function raised last.
    """

    def __init__(self, key: str, type: str, text: str, code: str | int | None = None, traceback: str = "") -> None:
        super().__init__(f"Step {key} failed: {type}: {text}")
        self.key, self.type, self.text, self.code, self.traceback = key, type, text, code, traceback


class ChildFailed(HoldfastError):
    """A child run did not end well; `outcome` is dead or cancelled."""

    def __init__(self, key: str, outcome: str) -> None:
        super().__init__(f"Child {key} is {outcome}. `holdfast runs show` with its id says why.")
        self.key, self.outcome = key, outcome


class NonDeterminism(HoldfastError):
    """A workflow's body does something else than the journal of its run says; the run is stuck until it does not."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


class NoIO(NonDeterminism):
    """A workflow's body tried to reach the outside world, which a replay would do again and answer otherwise."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"The body of a workflow can only wait, and this is not for it: {what}. A replay would do it again, and "
            "find something else. Put it into a function, and call that with `await run.step(fn, …)`, which is kept."
        )
