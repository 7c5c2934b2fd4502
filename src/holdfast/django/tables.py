"""Which tables the read-only models read: those of the project's prefix and schema."""

from __future__ import annotations

from holdfast.django import settings
from holdfast.errors import ConfigError
from holdfast.values.options import StoreOptions


def table(name: str) -> str:
    """Return the name of a table as models need it; wrong settings are told by the system check, not by an import."""
    try:
        options = StoreOptions.of(**settings.options())
    except ConfigError:
        options = StoreOptions()
    full = f"{options.prefix}_{name}"
    # Django leaves a name alone that stands in quotation marks already: its models know no schemas.
    return full if options.schema is None else f'"{options.schema}"."{full}"'
