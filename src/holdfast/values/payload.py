"""Payloads: a handler's arguments as JSON, checked against its annotations on the way in and on the way out."""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Union

import msgspec
from msgspec import UNSET, UnsetType
from msgspec import inspect as shapes

from holdfast.errors import ConfigError, InvalidPayload, PayloadTooLarge
from holdfast.values.annotations import name_of, resolved
from holdfast.values.given import GIVEN, annotated, asks_for_resource, told
from holdfast.values.models import is_model, read_model, write_model
from holdfast.values.options import USING

_encode = msgspec.json.Encoder(enc_hook=write_model).encode
_convert = msgspec.convert
_fields = msgspec.structs.asdict
_WRITE_ERRORS = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
_READ_ERRORS = (msgspec.MsgspecError, UnicodeError, RecursionError)
_PLACE = re.compile(r"(.*) - at (?:`[^$`]+` in )?`\$(?:\.([^.\[`]+))?([^`]*)`", re.DOTALL)

_PLAIN = frozenset((str, int, bool, type(None)))
_BYTES = (bytes, bytearray, memoryview)
_SETS = (set, frozenset)
_NOT_JSON = (*_BYTES, *_SETS, msgspec.Raw)
_OBJECTS = (shapes.StructType, shapes.DataclassType, shapes.TypedDictType, shapes.NamedTupleType)


@dataclass(frozen=True, eq=False)
class Signature:
    """What a handler takes: made once by `of`, used for every job."""

    name: str
    injected: str | None
    # What the worker fills beside it, by parameter, as annotated; and what the payload holds, likewise.
    given: Mapping[str, Any]
    hints: Mapping[str, Any]
    positional: tuple[str, ...]
    defaults: Mapping[str, Any]
    traits: Mapping[str, Traits]
    struct: type[msgspec.Struct]
    decoder: msgspec.json.Decoder[Any]
    loose: tuple[str, ...]
    floating: tuple[str, ...]
    # Whether it takes Pydantic models, which msgspec leaves to a hook.
    models: bool
    read_back: bool

    @classmethod
    def of(cls, fn: Callable[..., Any], inject: type) -> Signature:
        """Read a handler's parameters.

        The worker fills the one annotated with `inject`, and those that ask for a resource; the payload has the others.
        """
        parameters = _parameters(fn)
        hints = {name: _hint(fn, parameter, inject) for name, parameter in parameters.items()}
        injected = _injected(fn, hints, inject)
        given = _given(parameters, hints, injected)
        hints = {name: hint for name, hint in hints.items() if name != injected and name not in given}
        return cls._made(fn, parameters, hints, injected, given)

    @classmethod
    def of_items(cls, fn: Callable[..., Any], inject: type, item: str | None = None) -> Signature:
        """Read a function whose first parameter is a list of items, where one item is what one job takes.

        `item` is the item's name in the payload, by default the parameter's. `inject` may be asked for beside it.
        """
        parameters = _parameters(fn)
        hints = {name: _hint(fn, parameter, inject) for name, parameter in parameters.items()}
        injected = _injected(fn, hints, inject)
        given = _given(parameters, hints, injected)
        first, *others = hints or [""]
        one = _item_of(hints.get(first))
        strange = [name for name in others if name != injected and name not in given]
        if one is None or strange or parameters[first].default is not _EMPTY:
            rule = (
                f"a bulk handler takes a list of items first, and beside it at most a {inject.__name__} and resources, "
                f"as in `async def {name_of(fn)}(pages: list[Page], bulk: {inject.__name__}) -> None`"
            )
            raise ConfigError(name_of(fn), rule, str(inspect.signature(fn)))
        return cls._made(fn, {item or first: parameters[first]}, {item or first: one}, injected, given)

    @classmethod
    def _made(
        cls,
        fn: Callable[..., Any],
        parameters: Mapping[str, inspect.Parameter],
        hints: dict[str, Any],
        injected: str | None,
        given: Mapping[str, Any],
    ) -> Signature:
        defaults = {name: parameters[name].default for name in hints if parameters[name].default is not _EMPTY}
        traits = {name: _traits(fn, name, hint) for name, hint in hints.items()}
        struct = _struct(name_of(fn), hints, defaults)
        models = any(each.holds_models for each in traits.values())
        return cls(
            name=name_of(fn),
            injected=injected,
            given=given,
            hints=hints,
            positional=tuple(name for name in hints if parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY),
            defaults=defaults,
            traits=traits,
            struct=struct,
            decoder=msgspec.json.Decoder(struct, dec_hook=read_model if models else None),
            loose=tuple(name for name, each in traits.items() if each.holds_any),
            floating=tuple(name for name, each in traits.items() if each.holds_float and not each.holds_any),
            models=models,
            read_back=any(each.holds_objects for each in traits.values()),
        )

    def named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return all arguments by name, those that were left out with their defaults."""
        return {**self.defaults, **dict(zip(self.positional, args, strict=False)), **kwargs}

    def encode(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], limit: int) -> str:
        """Bind, check and write the arguments as compact JSON; an argument left out stays out.

        Raises: InvalidPayload, PayloadTooLarge.
        """
        given = self._bound(kind, args, kwargs) if args else kwargs
        try:
            # A hook that is never called would take a microsecond of every enqueue.
            read = _convert(given, self.struct, dec_hook=read_model) if self.models else _convert(given, self.struct)
            written = _encode(read)
        except _WRITE_ERRORS as error:
            raise self._refusal(kind, given, error) from error
        # NaN and Infinity are written as null, so a text without null has none: most payloads are spared the walk.
        if self.loose or self.read_back or (self.floating and b"null" in written):
            self._check(kind, given, written)
        if len(written) > limit:
            raise PayloadTooLarge(kind, len(written), limit)
        return written.decode()

    def decode(self, text: str | bytes, kind: str | None = None) -> dict[str, Any]:
        """Read the keyword arguments for the call; one that was left out gets the handler's default of today.

        Raises: InvalidPayload, under the handler's own name unless `kind` is given.
        """
        try:
            read = self.decoder.decode(text)
        except _READ_ERRORS as error:
            raise InvalidPayload(kind or self.name, *_place(error)) from error
        arguments = _fields(read)
        for name, default in self.defaults.items():
            if arguments[name] is UNSET:
                arguments[name] = default
        return arguments

    def _bound(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if len(args) > len(self.positional):
            count = f"{len(args)} positional arguments where at most {len(self.positional)} fit"
            raise InvalidPayload(kind, None, f"{count}; {self._takes()}")
        given = dict(zip(self.positional, args))  # noqa: B905 - checked above, and a keyword costs half as much again
        if not kwargs:
            return given
        if twice := given.keys() & kwargs.keys():
            raise InvalidPayload(kind, min(twice), "given twice, by position and by name")
        return {**given, **kwargs}

    def _check(self, kind: str, given: dict[str, Any], written: bytes) -> None:
        """Refuse what msgspec writes but would not give back."""
        suspects = self.loose + self.floating if b"null" in written else self.loose
        for name in suspects:
            if flaw := _flaw(given.get(name), self.traits[name].allowed):
                raise InvalidPayload(kind, name, str(flaw))
        # It takes an instance of a dataclass or Struct as it is, whatever the fields hold: only reading finds out.
        if self.read_back:
            self.decode(written, kind)

    def _refusal(self, kind: str, given: dict[str, Any], error: Exception) -> InvalidPayload:
        """Say in the handler's terms why msgspec refused."""
        if strange := [name for name in given if name not in self.traits]:
            return InvalidPayload(kind, strange[0], self._unexpected(strange[0]))
        if missing := [name for name in self.traits if name not in given and name not in self.defaults]:
            meant = "annotate it `job: Job` to be given the job; " if missing[0] == "job" else ""
            return InvalidPayload(kind, missing[0], f"missing; {meant}{self._takes()}")
        if isinstance(error, msgspec.ValidationError):
            return InvalidPayload(kind, *_place(error))
        return InvalidPayload(kind, _unwritable(given), _reason(error))

    def _unexpected(self, name: str) -> str:
        if name == self.injected:
            return "it is given by the worker"
        if name in self.given:
            return f"it is given by the worker, and no payload carries a {told(self.given[name])}"
        meant = f"did you mean .using({name}=…)? " if name in USING else ""
        return f"unexpected; {meant}{self._takes()}"

    def _takes(self) -> str:
        return f"the handler takes {', '.join(self.traits) or 'no arguments'}"


def encode_value(value: Any, what: str) -> str:
    """Write a result, progress or headers as compact JSON; `what` names it in errors.

    Raises: InvalidPayload.
    """
    try:
        written = _encode(value)
    except _WRITE_ERRORS as error:
        raise InvalidPayload(what, None, _reason(error), subject=what) from error
    if flaw := _flaw(value):
        raise InvalidPayload(what, None, str(flaw), subject=what)
    return written.decode()


def decode_value(text: str | bytes) -> Any:
    """Read what `encode_value` wrote.

    Raises: InvalidPayload.
    """
    try:
        return msgspec.json.decode(text)
    except _READ_ERRORS as error:
        raise InvalidPayload("value", None, _reason(error), subject="stored JSON") from error


class Traits(NamedTuple):
    """What a parameter's annotation lets in, as far as it decides which checks an argument needs.

    `allowed` lists types that JSON lacks but the annotation restores; `dict` there stands for keys that are not text.
    """

    holds_any: bool
    holds_float: bool
    holds_objects: bool
    holds_models: bool
    allowed: tuple[type, ...]


class _Flaw(NamedTuple):
    reason: str
    path: str = ""

    def __str__(self) -> str:
        return f"{self.reason} (at {self.path})" if self.path else self.reason

    def within(self, key: object) -> _Flaw:
        step = f"[{key}]" if isinstance(key, int) else f".{key}"
        return _Flaw(self.reason, step + self.path)


def _flaw(value: Any, allowed: tuple[type, ...] = ()) -> _Flaw | None:
    """Find the first part of a value that JSON would lose or change."""
    try:
        return _search(value, allowed)
    except RecursionError:
        return _Flaw(_TOO_DEEP)


def _search(value: Any, allowed: tuple[type, ...]) -> _Flaw | None:
    if type(value) in _PLAIN:
        return None
    if isinstance(value, float):
        return None if math.isfinite(value) else _Flaw(f"{value} has no form in JSON")
    if isinstance(value, _NOT_JSON) and not isinstance(value, allowed):
        return _Flaw(f"{type(value).__name__} has no form in JSON; convert it, or annotate the handler's parameter")
    if isinstance(value, dict) and dict not in allowed and (keys := [key for key in value if not isinstance(key, str)]):
        return _Flaw(f"the key {keys[0]!r} is not text")
    for key, part in _parts(value):
        if type(part) not in _PLAIN and (flaw := _search(part, allowed)):
            return flaw.within(key)
    return None


def _parts(value: Any) -> Iterable[tuple[object, Any]]:
    if isinstance(value, dict):
        return value.items()
    if isinstance(value, (list, tuple, *_SETS)):
        return enumerate(value)
    return [(name, getattr(value, name, None)) for name in _field_names(type(value))]


def _field_names(cls: type) -> Iterable[str]:
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    attributes = getattr(cls, "__attrs_attrs__", ())
    return getattr(cls, "__dataclass_fields__", None) or [each.name for each in attributes]


_TOO_DEEP = "it is nested too deeply or contains itself"


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if isinstance(error, UnicodeError):
        return "it contains a lone surrogate, which is not valid Unicode"
    return str(error)


def _place(error: BaseException) -> tuple[str | None, str]:
    """Split msgspec's message into the argument it is about and the reason."""
    reason = _reason(error)
    if not (found := _PLACE.fullmatch(reason)):
        named = re.search(r"field `([^`]+)`", reason)
        return (named[1] if named else None), reason
    reason, argument, rest = found.groups()
    return argument, f"{reason} (at {rest})" if rest else reason


def _unwritable(given: dict[str, Any]) -> str | None:
    for name, value in given.items():
        try:
            _encode(value)
        except _WRITE_ERRORS:
            return name
    return None


_EMPTY = inspect.Parameter.empty
_REFUSED_KINDS: dict[object, str] = {
    inspect.Parameter.POSITIONAL_ONLY: "must not be positional-only, since a payload has named arguments",
    inspect.Parameter.VAR_POSITIONAL: "must not be *args: name each parameter",
    inspect.Parameter.VAR_KEYWORD: "must not be **kwargs: name each parameter",
}


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError("handler", f"must have a signature that can be read ({error})", fn) from error
    for name, parameter in parameters.items():
        if rule := _REFUSED_KINDS.get(parameter.kind):
            raise ConfigError(_field(fn, name), rule, str(parameter))
    return parameters


def _hint(fn: Callable[..., Any], parameter: inspect.Parameter, inject: type) -> Any:
    """Resolve one annotation; the injected class is known by name even where it is imported for type checking only."""
    if parameter.annotation is not _EMPTY:
        hint = resolved(fn, _field(fn, parameter.name), parameter.annotation, {inject.__name__: inject})
        return Any if hint is object else hint
    return Any if parameter.default is not GIVEN else annotated(fn, parameter)


def _given(
    parameters: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], injected: str | None
) -> dict[str, Any]:
    """Find the parameters that ask for a resource."""
    return {
        name: hint
        for name, hint in hints.items()
        if name != injected and asks_for_resource(hint, parameters[name].default)
    }


def _injected(fn: Callable[..., Any], hints: dict[str, Any], inject: type) -> str | None:
    names = [name for name, hint in hints.items() if _asks_for(hint, inject)]
    if len(names) > 1:
        raise ConfigError(_field(fn, names[1]), f"must be the only parameter annotated {inject.__name__}", names)
    return names[0] if names else None


def _item_of(hint: Any) -> Any:
    """Return what a list is a list of; None for what is not a list."""
    if hint is list or hint is Sequence:
        return Any
    if typing.get_origin(hint) not in (list, Sequence):
        return None
    [item] = typing.get_args(hint)
    return Any if item is object or isinstance(item, typing.TypeVar) else item


def _asks_for(hint: Any, inject: type) -> bool:
    """Tell whether a hint is the injected class, alone or in a union such as `Job | None`."""
    origin = typing.get_origin(hint)
    if origin is Union or origin is types.UnionType:
        return any(_asks_for(each, inject) for each in typing.get_args(hint))
    return hint is inject or origin is inject


def _struct(name: str, hints: dict[str, Any], defaults: Mapping[str, Any]) -> type[msgspec.Struct]:
    # UNSET, not the handler's default: what was left out is not written, so the default of the code that runs counts,
    # and a default need not be JSON.
    fields = [(each, hint | UnsetType, UNSET) if each in defaults else (each, hint) for each, hint in hints.items()]
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _traits(fn: Callable[..., Any], name: str, hint: Any) -> Traits:
    try:
        msgspec.json.Decoder(hint)  # refuses unions that JSON cannot tell apart, which type_info lets pass
        found = list(_shapes(shapes.type_info(hint), set()))
    except Exception as error:
        raise ConfigError(_field(fn, name), f"must have an annotation that JSON can serve ({error})", hint) from error
    strange = [shape for shape in found if isinstance(shape, (shapes.CustomType, shapes.RawType, shapes.ExtType))]
    models = [shape for shape in strange if isinstance(shape, shapes.CustomType) and is_model(shape.cls)]
    if len(models) < len(strange):
        rule = "must be annotated with types that JSON can carry; a resource that the worker gives is `= GIVEN`"
        raise ConfigError(_field(fn, name), rule, hint)
    return Traits(
        holds_any=_has(found, shapes.AnyType),
        holds_float=_has(found, shapes.FloatType),
        holds_objects=bool(models) or _has(found, *_OBJECTS),
        holds_models=bool(models),
        allowed=_allowed(found),
    )


def _allowed(found: list[shapes.Type]) -> tuple[type, ...]:
    keys = (shape.key_type for shape in found if isinstance(shape, shapes.DictType))
    return (
        *(_BYTES if _has(found, shapes.BytesType, shapes.ByteArrayType, shapes.MemoryViewType) else ()),
        *(_SETS if _has(found, shapes.SetType, shapes.FrozenSetType) else ()),
        *((dict,) if any(not isinstance(key, (shapes.AnyType, shapes.StrType)) for key in keys) else ()),
    )


def _has(found: list[shapes.Type], *wanted: type) -> bool:
    return any(isinstance(shape, wanted) for shape in found)


def _shapes(node: Any, seen: set[int]) -> Iterator[shapes.Type]:
    """Yield an annotation's type and all types inside it, each once, since types may contain themselves."""
    if isinstance(node, tuple):
        for each in node:
            yield from _shapes(each, seen)
    elif isinstance(node, (shapes.Type, shapes.Field)) and id(node) not in seen:
        seen.add(id(node))
        if isinstance(node, shapes.Type):
            yield node
        for name in node.__struct_fields__:
            yield from _shapes(getattr(node, name), seen)


def _field(fn: Callable[..., Any], parameter: str) -> str:
    return f"parameter {parameter} of {name_of(fn)}"
