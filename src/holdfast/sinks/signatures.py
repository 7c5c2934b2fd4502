"""Signatures of webhooks, as Standard Webhooks has them: the receiver can tell who sent what, and when."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import cast

from holdfast.errors import ConfigError

PREFIX = "whsec_"
_RULE = f'is a text "{PREFIX}…" with 24 to 64 bytes in base64 behind it, or those bytes, or a list of such'


def keys_of(secret: object) -> list[bytes]:
    """Read the secrets; the values are not shown in errors. Raises: ConfigError."""
    if secret is None:
        return []
    if isinstance(secret, Sequence) and not isinstance(secret, str | bytes):
        return [_key(one) for one in cast("Sequence[object]", secret)]
    return [_key(secret)]


def _key(secret: object) -> bytes:
    key = secret
    if isinstance(secret, str):
        try:
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except binascii.Error:
            raise ConfigError("secret", _RULE, "a text that is not base64") from None
    if not isinstance(key, bytes) or not 24 <= len(key) <= 64:
        raise ConfigError("secret", _RULE, f"{len(key)} bytes" if isinstance(key, bytes) else type(secret).__name__)
    return key


def signed(keys: Sequence[bytes], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers of a webhook; with several keys a signature by each, so that a key can be changed."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    if keys:
        text = f"{message_id}.{timestamp}.".encode() + body
        digests = [hmac.new(key, text, hashlib.sha256).digest() for key in keys]
        headers["webhook-signature"] = " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests)
    return headers
