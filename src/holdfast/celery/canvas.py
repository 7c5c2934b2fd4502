"""Signatures, and what is made of them: chains, groups and chords.

A chain is the first job, which has the rest of the chain in a header; when it is done, the next one is added in the
same commit (`Continue`). A group is jobs that are added together. A chord is a group and a job that runs after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, Unpack, cast

import msgspec

from holdfast.bound import Bound
from holdfast.celery.instead import refuse_on_canvas
from holdfast.celery.options import CallKeywords, call_options
from holdfast.celery.results import AsyncResult, EagerResult, GroupResult, Home
from holdfast.errors import ConfigError
from holdfast.values.options import EnqueueOptions
from holdfast.values.payload import encode_value
from holdfast.values.retry import seconds

# What is left of the chain, as JSON; names that begin like this are not passed on to the job that continues.
CHAIN_HEADER = "holdfast-celery-chain"
# Says that the results of the group come first among the arguments.
CHORD_HEADER = "holdfast-celery-chord"
# What may be said of a job that is added by the one before it.
_OF_A_LINK = ("countdown", "queue", "priority", "expires", "headers")


class Callee(Protocol):
    """What a signature calls: a task."""

    @property
    def name(self) -> str: ...

    @property
    def home(self) -> Home: ...

    def bound(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], said: CallKeywords, headers: Mapping[str, str]
    ) -> Bound: ...

    def check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None: ...

    def apply(self, args: Sequence[Any] | None = (), kwargs: Mapping[str, Any] | None = None) -> EagerResult: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


class Link(msgspec.Struct):
    """A signature as a header holds it."""

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    options: dict[str, Any] = {}
    immutable: bool = False


def written(links: Sequence[Link]) -> dict[str, str]:
    """Return the header that has the rest of a chain; none for an empty rest."""
    return {CHAIN_HEADER: encode_value(msgspec.to_builtins(links), "chain")} if links else {}


def read(header: str | None) -> list[Link]:
    """Read what `written` wrote."""
    return [] if header is None else msgspec.json.decode(header, type=list[Link])


class Canvas:
    """What signatures and all that is made of them share: a word for what Celery's have, and ours have not."""

    if not TYPE_CHECKING:
        # Type checkers are to find what is not there by themselves.
        def __getattr__(self, name):
            refuse_on_canvas(name, type(self).__name__)
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


class Signature(Canvas):
    """A call that is still to be made: `add.s(2, 3)`. In a chain the result before it comes first, except with `si`."""

    def __init__(
        self,
        task: Callee,
        args: Iterable[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        options: CallKeywords | None = None,
        immutable: bool = False,
    ) -> None:
        self.task = task
        self.args = tuple(args or ())
        self.kwargs = dict(kwargs or {})
        self.options: CallKeywords = {**options} if options else {}
        self.immutable = immutable

    def __repr__(self) -> str:
        named = [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"{self.task.name}({', '.join([*map(repr, self.args), *named])})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function, here and now."""
        whole = self.clone(args, kwargs)
        return self.task(*whole.args, **whole.kwargs)

    def __or__(self, other: Step) -> Chain | Chord:
        return chain(self, other)

    def clone(self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None) -> Signature:
        """Return a copy with these arguments in front of its own; one made with `si` keeps its own alone."""
        if self.immutable:
            return Signature(self.task, self.args, self.kwargs, self.options, immutable=True)
        return Signature(self.task, (*(args or ()), *self.args), {**self.kwargs, **(kwargs or {})}, self.options)

    def set(self, immutable: bool | None = None, **options: Unpack[CallKeywords]) -> Signature:
        """Say something about the call, as `apply_async` does."""
        call_options("set()", options)
        self.options = {**self.options, **options}
        self.immutable = self.immutable if immutable is None else immutable
        return self

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult | EagerResult:
        """Make the call, with these arguments in front of its own."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallKeywords]
    ) -> AsyncResult | EagerResult:
        """Make the call; options as those of a task's `apply_async`."""
        return Chain([self.clone(args, kwargs)]).apply_async(**options)

    def apply(self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None) -> EagerResult:
        """Make the call here and now, with these arguments in front of its own."""
        return Chain([self.clone(args, kwargs)]).apply()

    def link(self, callback: Signature) -> Signature:
        """Say what is called with the result, as `link=` of `apply_async` does; returns that."""
        said: CallKeywords = {"link": [*linked(self.options), callback]}
        linked(said)
        self.options = {**self.options, **said}
        return callback

    def as_link(self) -> Link:
        """Write it for the header of the job before. Raises: ConfigError for what can only be said of a first job."""
        for name in self.options:
            if name not in _OF_A_LINK:
                rule = f"cannot be said of {self.task.name}, which another job adds; say it of the first of the chain"
                raise ConfigError(name, rule, self.options.get(name))
        EnqueueOptions(**call_options(self.task.name, self.options))
        options: dict[str, Any] = {**self.options}
        for name in options.keys() & {"countdown", "expires"}:
            if isinstance(options[name], datetime):
                raise ConfigError(name, f"must be seconds for {self.task.name}, which another job adds", options[name])
            options[name] = None if options[name] is None else seconds(options[name], name)
        # What the job before gives is not known yet; everything else about the call is.
        self.task.check(self.args if self.immutable else (None, *self.args), self.kwargs)
        return Link(self.task.name, list(self.args), self.kwargs, options, self.immutable)


class Chain(Canvas):
    """Calls one after the other, each with the result of the one before it as its first argument."""

    def __init__(self, tasks: Sequence[Signature]) -> None:
        self.tasks = list(tasks)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.tasks))

    def __or__(self, other: Step) -> Chain | Chord:
        return chain(self, other)

    def __call__(self, *args: Any, **kwargs: Any) -> AsyncResult | EagerResult:
        return self.apply_async(args, kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult | EagerResult:
        """Begin the chain, with these arguments in front of those of its first call."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallKeywords]
    ) -> AsyncResult | EagerResult:
        """Begin the chain. What the options say is said of its first job."""
        begun = self.clone(args, kwargs)
        first = begun.tasks[0]
        first.options = {**first.options, **options}
        if begun.home.always_eager:
            return begun.apply()
        return AsyncResult(begun.home.holdfast.enqueue_bound(begun.bound(), first.options.get("tx")).id, begun.home)

    def clone(self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None) -> Chain:
        first, *rest = self.tasks
        return Chain([first.clone(args, kwargs), *rest])

    @property
    def home(self) -> Home:
        return self.tasks[0].task.home

    def bound(self, options: CallKeywords | None = None, headers: Mapping[str, str] | None = None) -> Bound:
        """Make the first job, which has the rest of the chain in a header."""
        first, *rest = self.tasks
        said: CallKeywords = {**first.options, **(options or {})}
        links = [one.as_link() for one in [*rest, *linked(said)]]
        return first.task.bound(first.args, first.kwargs, said, {**(headers or {}), **written(links)})

    def after_group(self) -> Bound:
        """Make the first job as one that gets the results of a group, which are not there yet."""
        first, *_ = self.tasks
        if first.immutable:
            return self.bound()
        return self.clone(([],)).bound(headers={CHORD_HEADER: "1"})

    def apply(self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None) -> EagerResult:
        """Make all calls here and now. Raises: ConfigError for what the calls of jobs could not say either."""
        first, *rest = self.clone(args, kwargs).tasks
        EnqueueOptions(**call_options("apply_async()", first.options))
        following = [*rest, *linked(first.options)]
        for one in following:
            one.as_link()
        result = first.task.apply(first.args, first.kwargs)
        for one in following:
            if not result.successful():
                break
            called = one.clone((result.result,))
            result = called.task.apply(called.args, called.kwargs)
        return result


class Group(Canvas):
    """Calls that are made together: all of them are added, or none."""

    def __init__(self, tasks: Iterable[Signature | Chain]) -> None:
        self.tasks = list(tasks)

    def __repr__(self) -> str:
        return f"group({', '.join(map(repr, self.tasks))})"

    def __len__(self) -> int:
        return len(self.tasks)

    def __or__(self, other: Step) -> Chain | Chord:
        return chain(self, other)

    def __call__(self, *args: Any, **kwargs: Any) -> GroupResult:
        return self.apply_async(args, kwargs)

    def delay(self, *args: Any, **kwargs: Any) -> GroupResult:
        """Make all calls, with these arguments in front of those of each."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None, **options: Unpack[CallKeywords]
    ) -> GroupResult:
        """Make all calls in one transaction, that of `tx` if it is given. The options are said of each."""
        if not self.tasks:
            return GroupResult([])
        members, home = self.members(args, kwargs), self.home
        if home.always_eager:
            return GroupResult([one.apply_async(**options) for one in members])
        added = home.holdfast.enqueue_many([one.bound(options=options) for one in members], tx=options.get("tx"))
        return GroupResult([AsyncResult(one.id, home) for one in added])

    def members(self, args: Iterable[Any] | None = (), kwargs: Mapping[str, Any] | None = None) -> list[Chain]:
        """List what is called, each as a chain with these arguments in front."""
        given = tuple(args or ())
        return [(one if isinstance(one, Chain) else Chain([one])).clone(given, kwargs) for one in self.tasks]

    @property
    def home(self) -> Home:
        first = self.tasks[0]
        return first.home if isinstance(first, Chain) else first.task.home


class Chord(Canvas):
    """A group, and a call that is made with the list of its results once all of it is done."""

    def __init__(self, header: Group, body: Chain) -> None:
        self.header = header
        self.body = body

    def __repr__(self) -> str:
        return f"chord({self.header!r}, {self.body!r})"

    def __or__(self, other: Step) -> Chord:
        following = chain(self.body, other)
        if not isinstance(following, Chain):
            raise _nested(other)
        return Chord(self.header, following)

    def __call__(self, body: Signature | Chain | None = None) -> AsyncResult | EagerResult:
        return (self if body is None else chord(self.header, body)).apply_async()

    def delay(self) -> AsyncResult | EagerResult:
        """Make all calls."""
        return self.apply_async()

    def apply_async(self, tx: Any = None) -> AsyncResult | EagerResult:
        """Add the group and what follows it in one transaction, that of `tx` if it is given.

        Returns what stands for the callback. If a member of the group is dead or cancelled, the callback is cancelled.
        """
        if not self.body.tasks:
            raise ConfigError("chord", "needs a callback: chord(header)(callback)", self)
        members, home = self.header.members(), self.body.home
        if home.always_eager:
            return self._apply(members)
        *added, last = home.holdfast.add_joined([one.bound() for one in members], self.body.after_group(), tx)
        return AsyncResult(last.id, home, GroupResult([AsyncResult(one.id, home) for one in added]))

    def _apply(self, members: Sequence[Chain]) -> EagerResult:
        results = [one.apply() for one in members]
        if failed := [one for one in results if not one.successful()]:
            return failed[0]
        first = self.body.tasks[0]
        return self.body.apply(() if first.immutable else ([one.result for one in results],))


Step = Signature | Chain | Group | Chord


def chain(*steps: Step | Iterable[Step]) -> Chain | Chord:
    """Call one after the other, each with the result of the one before; a group that comes first makes a chord."""
    [first, *rest] = _listed(steps) or [Chain([])]
    if isinstance(first, Group):
        if not rest:
            raise ConfigError("chain", "a group alone is not a chain: call the group", first)
        following = chain(*rest)
        if not isinstance(following, Chain):
            raise _nested(rest[0])
        return Chord(first, following)
    if isinstance(first, Chord):
        return first if not rest else first | chain(*rest)
    tasks = list(first.tasks if isinstance(first, Chain) else [first])
    for step in rest:
        if isinstance(step, Group | Chord):
            raise _nested(step)
        tasks += step.tasks if isinstance(step, Chain) else [step]
    if not tasks:
        raise ConfigError("chain", "needs a signature at least, as in chain(add.s(2, 3), store.s())", steps)
    return Chain(tasks)


def group(*tasks: Signature | Chain | Iterable[Signature | Chain]) -> Group:
    """Make calls together: `group(add.s(1, 1), add.s(2, 2))`, or of anything that gives signatures."""
    members = _listed(tasks)
    for one in members:
        if not isinstance(one, Signature | Chain):
            raise ConfigError("group", "takes signatures and chains; for groups of groups use a durable run", one)
    return Group(cast("list[Signature | Chain]", members))


def chord(header: Group | Iterable[Signature | Chain], body: Signature | Chain | None = None) -> Chord:
    """Make calls together, and one with the list of their results: `chord([add.s(1, 1), add.s(2, 2)])(total.s())`."""
    members = header if isinstance(header, Group) else group(header)
    if not members.tasks:
        raise ConfigError("chord", "needs a member at least", header)
    return Chord(members, body if isinstance(body, Chain) else Chain([] if body is None else [body]))


def linked(said: CallKeywords) -> list[Signature]:
    """Read `link=`: what is called with the result."""
    link: Any = said.get("link")
    found: list[Any] = list(link) if isinstance(link, list | tuple) else [] if link is None else [link]  # pyright: ignore[reportUnknownArgumentType]
    if len(found) > 1:
        rule = "one job continues another; for several, enqueue them in the task, or use handler.using(after=[…])"
        raise ConfigError("link", rule, found)
    for one in found:
        if not isinstance(one, Signature):
            raise ConfigError("link", "must be a signature, as in link=store.s()", one)
    return found


def _listed(steps: Iterable[Any]) -> list[Any]:
    found: list[Any] = []
    for step in steps:
        found += [step] if isinstance(step, Signature | Chain | Group | Chord) else _listed(_iterable(step))
    return found


def _iterable(step: object) -> Iterable[Any]:
    if isinstance(step, str) or not isinstance(step, Iterable):
        raise ConfigError("canvas", "takes signatures, as in add.s(2, 3)", step)
    return step  # pyright: ignore[reportUnknownVariableType]


def _nested(step: object) -> ConfigError:
    rule = (
        "a group can only begin a chain here: start it in the task before it, as in `group(…).apply_async()`, or write "
        "the whole as a durable run (@hf.workflow), where asyncio.gather is the group"
    )
    return ConfigError("chain", rule, step)
