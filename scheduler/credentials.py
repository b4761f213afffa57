"""What an HTTP target is called with and nobody may read: its signing secrets and its secret headers.

At rest they are one Fernet token. The key comes by HKDF from FENCEPOST_SECRETS_KEY, else from SECRET_KEY. Of
several keys the first encrypts and all decrypt: put a new one in front, save each target anew (`manage.py
reseal`), then take the old one away.
"""

import base64
import binascii
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from scheduler.errors import FencepostError

PREFIX: Final = "whsec_"
LEAST_BYTES: Final = 24
MOST_BYTES: Final = 64


class Unreadable(FencepostError):
    """The token was made under a key that is not among ours, or is none."""


@dataclass(frozen=True, kw_only=True)
class SigningSecret:
    """As Standard Webhooks writes them. `until`: when a replaced one ceases to sign."""

    text: str = field(repr=False)
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """The secret in force comes first. `headers`: by name as it is sent."""

    signing: tuple[SigningSecret, ...]
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def valid_at(self, now: datetime) -> list[str]:
        """The secrets that a call at `now` is signed with."""
        return [secret.text for secret in self.signing if secret.until is None or now < secret.until]

    def rotated(self, text: str, *, now: datetime, overlap: timedelta) -> "Credentials":
        """With a new secret in force. Those before it sign on for `overlap`, not beyond their own end."""
        ends = now + overlap
        kept = tuple(
            replace(one, until=ends if one.until is None else min(one.until, ends))
            for one in self.signing
            if one.text != text and (one.until is None or one.until > now)
        )
        kept = kept if overlap else ()
        return replace(self, signing=(SigningSecret(text=text), *kept))

    def seal(self) -> str:
        document = {
            "signing": [
                {"text": one.text, "until": one.until.isoformat() if one.until else None}
                for one in self.signing
            ],
            "headers": dict(self.headers),
        }
        return _fernet(settings.FENCEPOST.secrets_keys).encrypt(json.dumps(document).encode()).decode()

    @classmethod
    def open(cls, token: str) -> "Credentials":
        """Raises Unreadable."""
        try:
            document = json.loads(_fernet(settings.FENCEPOST.secrets_keys).decrypt(token))
        except InvalidToken:
            detail = (
                "The target's credentials were sealed under a key that FENCEPOST_SECRETS_KEY does not have."
            )
            raise Unreadable(detail) from None
        return cls(signing=tuple(map(_secret, document["signing"])), headers=document["headers"])


def _secret(stored: Mapping[str, Any]) -> SigningSecret:
    until = stored["until"]
    return SigningSecret(text=stored["text"], until=datetime.fromisoformat(until) if until else None)


def new_signing_secret() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(LEAST_BYTES)).decode()


def is_signing_secret(text: str) -> bool:
    """`whsec_` and the base64 of 24 to 64 bytes."""
    try:
        found = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return False
    return text.startswith(PREFIX) and LEAST_BYTES <= len(found) <= MOST_BYTES


@cache
def _fernet(keys: Sequence[str]) -> MultiFernet:
    return MultiFernet([Fernet(_derived(key)) for key in keys])


def _derived(key: str) -> bytes:
    """Not the text itself: SECRET_KEY has other uses, and what one of them gives away must not open these."""
    stretched = HKDF(SHA256(), length=32, salt=None, info=b"fencepost: credentials of targets").derive(
        key.encode()
    )
    return base64.urlsafe_b64encode(stretched)
