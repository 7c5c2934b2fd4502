"""Columns as our tables have them, whatever the database: ids, moments and stored JSON. To be read, and filtered by."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import models
from django.utils import timezone

from holdfast.values.views import decoded

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


class IdField(models.CharField):
    """The id of a job: text in Python, a uuid on PostgreSQL, text in lower case elsewhere."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"max_length": 36} | options)

    def to_python(self, value: Any) -> str | None:
        if value is None:
            return None
        try:
            return str(UUID(str(value).strip()))
        except ValueError as error:
            raise ValidationError(f"{value!r} is not the id of a job.") from error

    def get_prep_value(self, value: Any) -> str | None:
        return self.to_python(value)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        text = value if prepared else self.get_prep_value(value)
        return UUID(text) if text is not None and connection.vendor == "postgresql" else text

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> str | None:
        return None if value is None else str(value)


class MomentField(models.DateTimeField):
    """A moment: `timestamptz` on PostgreSQL, UTC without a zone on MySQL, microseconds since 1970 on SQLite."""

    def get_internal_type(self) -> str:
        # A name that no database knows: Django's own conversions are for its own columns.
        return "HoldfastMoment"

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        moment = value if prepared else self.get_prep_value(value)
        if moment is None:
            return None
        utc = (moment if timezone.is_aware(moment) else timezone.make_aware(moment)).astimezone(UTC)
        if connection.vendor == "sqlite":
            return (utc - _EPOCH) // _TICK
        return utc if connection.vendor == "postgresql" else utc.replace(tzinfo=None)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> datetime | None:
        if value is None:
            return None
        moment = self._read(value, connection)
        return moment if settings.USE_TZ else timezone.make_naive(moment)

    def _read(self, value: Any, connection: Any) -> datetime:
        if connection.vendor == "sqlite":
            return _EPOCH + int(value) * _TICK
        moment: datetime = value
        if moment.tzinfo is None and connection.vendor == "postgresql":
            # Without USE_TZ Django has PostgreSQL answer in the project's time zone, and takes the zone away.
            moment = timezone.make_aware(moment)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class StoredJsonField(models.TextField):
    """JSON as it is stored, read as the value it holds; what is not JSON is read as it is."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return decoded(value) if isinstance(value, str) else value
