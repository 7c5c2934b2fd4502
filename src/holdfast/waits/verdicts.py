"""What an ended job is to those who waited for it: a value, or an exception."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from holdfast.errors import ConfigError, InvalidPayload, JobCancelled, JobDead
from holdfast.values.models import read_model
from holdfast.values.rows import OUTCOMES
from holdfast.values.views import JobView, decoded


class Kept(NamedTuple):
    """What is left of a done job whose queue keeps nothing: what it gave, as JSON."""

    job_id: str
    kind: str
    result: str | None


def final(view: JobView) -> bool:
    """Tell whether those who wait for this job have their answer.

    The one place that decides it. Where another job continues one, a look gives the last of the chain (`looking.py`).
    """
    return view.state in OUTCOMES


def value_of(answer: JobView | Kept | Exception, shape: Any = None) -> Any:
    """Return what an ended job gave, read into `shape` if one is given.

    Raises: JobDead, JobCancelled; InvalidPayload for what does not fit; what the waiting itself ended with.
    """
    if isinstance(answer, Exception):
        raise answer
    if isinstance(answer, Kept):
        return _shaped(decoded(answer.result), shape, answer.job_id, answer.kind)
    match answer.state:
        case "dead":
            raise JobDead(answer)
        case "cancelled":
            raise JobCancelled(answer)
        case _:
            return _shaped(answer.result, shape, answer.id, answer.kind)


def _shaped(value: Any, shape: Any, job_id: str, kind: str) -> Any:
    if shape is None:
        return value
    try:
        # Through JSON, as a payload is read: what JSON has no form for is written there as text.
        return msgspec.json.decode(msgspec.json.encode(value), type=shape, dec_hook=read_model)
    except msgspec.ValidationError as error:
        subject = f"result of job {job_id} ({kind}) as {getattr(shape, '__qualname__', shape)}"
        raise InvalidPayload(kind, None, str(error), subject=subject) from error
    except TypeError as error:
        raise ConfigError("type", f"must be a type that msgspec can read ({error})", shape) from error
