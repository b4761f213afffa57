"""API keys: `fp_<prefix>_<secret>`. The prefix finds the row, the secret is stored as its hash only."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Q

from tenants.models import ApiKey

_FORM = re.compile(r"fp_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_USE_IS_NOTED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True)
class FreshKey:
    prefix: str
    secret_hash: str
    text: str


def generate() -> FreshKey:
    """A key that nobody has seen: 48 random bits to find it by, 256 to prove it by."""
    prefix, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    return FreshKey(prefix=prefix, secret_hash=hash_secret(secret), text=f"fp_{prefix}_{secret}")


def hash_secret(secret: str) -> str:
    """One round of SHA-256 is enough: 256 random bits cannot be guessed, however fast a guess is."""
    return hashlib.sha256(secret.encode()).hexdigest()


def authenticate(text: str, *, now: datetime) -> ApiKey | None:
    """The live key that `text` proves, with its tenant; None for anything else, without saying why."""
    form = _FORM.fullmatch(text)
    if form is None:
        return None
    key = ApiKey.objects.select_related("tenant").filter(prefix=form[1]).first()
    # An unknown prefix is compared too, so that the time taken does not tell known prefixes from others.
    expected = key.secret_hash if key else hash_secret("")
    if not hmac.compare_digest(hash_secret(form[2]), expected) or key is None:
        return None
    return key if is_live(key, now) else None


def is_live(key: ApiKey, now: datetime) -> bool:
    return key.revoked_at is None and (key.expires_at is None or now < key.expires_at)


def note_use(key: ApiKey, *, now: datetime) -> None:
    """Remember the use, at most once a minute: a write for each request would cost more than it tells."""
    if key.last_used_at is None or now - key.last_used_at >= _USE_IS_NOTED_EVERY:
        stale = Q(last_used_at=None) | Q(last_used_at__lt=now)
        ApiKey.objects.filter(stale, id=key.id).update(last_used_at=now)
