"""A mypy plugin: `job: Job` may stand anywhere among a handler's parameters and is not asked for at enqueue.

Without it only a leading `job: Job` is left out, because that is all the typing rules can say. Switch it on with
`plugins = ["holdfast.mypy"]` in the mypy settings.
"""

from __future__ import annotations

from collections.abc import Callable

from mypy.plugin import MethodContext, Plugin
from mypy.types import Instance, Parameters, ProperType, Type, UnionType, get_proper_type

# `job` is asked for by the class that has it, or by the one that it was called on.
_REGISTERING = "holdfast.app.registering"
HOOKED = (
    f"{_REGISTERING}.Declares.job",
    f"{_REGISTERING}.Registers.job",
    f"{_REGISTERING}.JobDecorator.__call__",
    "holdfast.app.Holdfast.job",
    "holdfast.app.registry.Registry.job",
)
HANDLER, JOB = "holdfast.handlers.Handler", "holdfast.job.Job"


class HoldfastPlugin(Plugin):
    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        return without_job if fullname in HOOKED else None


def without_job(context: MethodContext) -> Type:
    """Take the injected parameter out of the handler's type."""
    handler = get_proper_type(context.default_return_type)
    if not isinstance(handler, Instance) or handler.type.fullname != HANDLER:
        return context.default_return_type
    asked = get_proper_type(handler.args[0])
    if not isinstance(asked, Parameters):
        return context.default_return_type
    kept = [n for n, wanted in enumerate(asked.arg_types) if not _is_job(get_proper_type(wanted))]
    left = asked.copy_modified(
        arg_types=[asked.arg_types[n] for n in kept],
        arg_kinds=[asked.arg_kinds[n] for n in kept],
        arg_names=[asked.arg_names[n] for n in kept],
    )
    return handler.copy_modified(args=[left, *handler.args[1:]])


def _is_job(wanted: ProperType) -> bool:
    if isinstance(wanted, UnionType):
        return any(_is_job(get_proper_type(item)) for item in wanted.items)
    return isinstance(wanted, Instance) and wanted.type.fullname == JOB


def plugin(version: str) -> type[Plugin]:
    return HoldfastPlugin
