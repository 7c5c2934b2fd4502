"""What the raw-SQL loops share: the name of their tables, and payloads."""

from __future__ import annotations

import time

import msgspec


def written(sql: str, prefix: str) -> str:
    return sql.replace("bench_raw", f"{prefix}_raw")


def payload(order: int) -> str:
    return msgspec.json.encode({"order": order, "amount": 12.5}).decode()


def stamp(sent: int) -> str:
    return msgspec.json.encode({"sent": sent}).decode()


def age(payload: str) -> float:
    """Return the milliseconds since a stamped job set out."""
    return float(time.monotonic_ns() - msgspec.json.decode(payload)["sent"]) / 1e6
