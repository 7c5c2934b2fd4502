"""Errors of the hooks that run when a worker starts."""

from __future__ import annotations

from holdfast.errors.general import HoldfastError


class HookFailed(HoldfastError):
    """A hook of the worker's start raised, so the worker does not start; the ``__cause__`` is what it raised."""

    def __init__(self, hook: str, why: str) -> None:
        super().__init__(f"The on_start hook {hook} failed, so the worker does not start: {why}")
        self.hook = hook
        self.why = why
