"""HTTP targets: registered, edited, switched off, and given new secrets, by the platform or by a tenant.

Secrets go in and never come out: what is shown of them is names and times. `owner` is the tenant whose target
it is; None: the platform's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from scheduler import credentials, definitions
from scheduler.core.errors import TriggerError
from scheduler.core.networks import refusal
from scheduler.core.reading import Field
from scheduler.credentials import Credentials, SigningSecret, Unreadable
from scheduler.errors import Conflict, FieldError, NotFound, ValidationFailed
from scheduler.models import SideEffects, Target, TargetKind
from scheduler.operations import keep_up_with
from scheduler.orm import database_time
from scheduler.payloads import text_fault
from tenants import quotas
from tenants.models import Tenant
from tenants.operations import Actor, record

MOST_TARGETS: Final = 200  # a tenant's own
MOST_HEADERS: Final = 20
URL_LENGTH: Final = 2000
HEADER_LENGTH: Final = 4000
LONGEST_S: Final = 7 * 86_400
OVERLAP_S: Final = 86_400
MOST_OVERLAP_S: Final = 30 * 86_400

FIELDS: Final = ("url", "side_effects", "timeout_s", "heartbeat_timeout_s", "description", "headers")
CREATE_FIELDS: Final = ("name", "kind", "signing_secret", *FIELDS)
EDIT_FIELDS: Final = ("enabled", *FIELDS)

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_HOST: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63})*\.?", re.IGNORECASE)
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
# Those that the call has of its own, and those that would change how it is framed.
_OURS: Final = frozenset(
    {
        *("host", "content-length", "content-type", "content-encoding", "transfer-encoding", "connection"),
        *("keep-alive", "te", "trailer", "upgrade", "expect", "accept-encoding", "idempotency-key"),
        *("traceparent", "tracestate", "user-agent"),
    }
)
_OUR_PREFIXES: Final = ("x-fencepost-", "webhook-", "proxy-")


@dataclass(frozen=True, kw_only=True)
class Registered:
    """A target, and its signing secret at the one moment at which it is shown."""

    target: Target
    signing_secret: str = field(repr=False)


def create_target(owner: Tenant | None, body: Mapping[str, Any], *, actor: Actor) -> Registered:
    """Raises ValidationFailed, and Conflict when the tenant has as many as it may."""
    return _create(owner, _read_new(body), actor=actor)


def check(body: Mapping[str, Any], *, exists: bool) -> None:
    """What a form asks before it saves a target of the platform. Raises ValidationFailed."""
    if exists:
        _read(body, {"signing_secret": _secret, **_PARSERS}, ("signing_secret", *FIELDS))
    else:
        _refuse_taken(None, _read_new(body)["name"])


def _read_new(body: Mapping[str, Any]) -> dict[str, Any]:
    values = _read(body, {"name": _name, "kind": _kind, "signing_secret": _secret, **_PARSERS}, CREATE_FIELDS)
    _require(values, "name", "url")
    return values


@transaction.atomic
def _create(owner: Tenant | None, values: dict[str, Any], *, actor: Actor) -> Registered:
    if owner is not None:
        quotas.lock(owner)
        _refuse_more(owner)
    _refuse_taken(owner, values["name"])
    secret = values.pop("signing_secret", None) or credentials.new_signing_secret()
    headers = {name: value for name, value in values.pop("headers", {}).items() if value is not None}
    values.pop("kind", None)
    sealed = Credentials(signing=(SigningSecret(text=secret),), headers=headers).seal()
    now = database_time()
    target = Target.objects.create(
        owner=owner, kind=TargetKind.HTTP, sealed=sealed, created_at=now, **_given(values)
    )
    _record(
        actor, "create", target, now, after={**_told(values), "name": target.name, "headers": sorted(headers)}
    )
    return Registered(target=target, signing_secret=secret)


def edit_target(owner: Tenant | None, target_id: UUID, body: Mapping[str, Any], *, actor: Actor) -> Target:
    """Fields that are given replace the old ones; of `headers` each on its own, null takes one away.

    Where the address is to be another host, headers that are not given again are taken away: to point the
    target at a server of one's own would otherwise show the secrets that nobody may read.
    Raises ValidationFailed and NotFound.
    """
    values = _read(body, {"enabled": _flag, **_PARSERS}, EDIT_FIELDS)
    with transaction.atomic():
        return _edit(_lock(owner, target_id), values, actor=actor)


def _edit(target: Target, values: dict[str, Any], *, actor: Actor) -> Target:
    headers = values.pop("headers", {})
    changed = {name: value for name, value in values.items() if getattr(target, name) != value}
    moved = "url" in changed and _origin(changed["url"]) != _origin(target.url)
    before = {name: getattr(target, name) for name in changed}
    for name, value in changed.items():
        setattr(target, name, value)
    after = dict(changed)
    if headers or moved:
        opened, again = _open(target), {name.lower() for name in headers}
        old = {} if moved else opened.headers
        kept = {name: value for name, value in old.items() if name.lower() not in again}
        fresh = {**kept, **{name: value for name, value in headers.items() if value is not None}}
        if fresh != opened.headers:
            before["headers"], after["headers"] = sorted(opened.headers), sorted(fresh)
        target.sealed = replace(opened, headers=fresh).seal()
    if after:
        target.save()
        keep_up_with(target, now=database_time(), actor=actor)
        _record(actor, "edit", target, database_time(), before=_told(before), after=_told(after))
    return target


@transaction.atomic
def switch_off(owner: Tenant | None, target_id: UUID, *, actor: Actor) -> None:
    """Nothing is sent to it any more; runs of schedules that still name it fail and say so."""
    _edit(_lock(owner, target_id), {"enabled": False}, actor=actor)


def rotate_secret(
    owner: Tenant | None, target_id: UUID, body: Mapping[str, Any], *, actor: Actor
) -> Registered:
    """A new signing secret (the one given, or one of ours). The old one signs beside it for `overlap_s` more.

    Raises ValidationFailed and NotFound.
    """
    values = _read(body, {"signing_secret": _secret, "overlap_s": _overlap}, ("signing_secret", "overlap_s"))
    secret = values.get("signing_secret") or credentials.new_signing_secret()
    overlap = timedelta(seconds=values.get("overlap_s", OVERLAP_S))
    with transaction.atomic():
        target, now = _lock(owner, target_id), database_time()
        target.sealed = _open(target).rotated(secret, now=now, overlap=overlap).seal()
        target.save(update_fields=["sealed"])
        _record(actor, "rotate_secret", target, now, after={"overlap_s": int(overlap.total_seconds())})
    return Registered(target=target, signing_secret=secret)


@transaction.atomic
def reseal() -> int:
    """Put every target's credentials under the first of FENCEPOST_SECRETS_KEY. Raises Unreadable."""
    found = Target.objects.select_for_update().filter(kind=TargetKind.HTTP)
    for target in found:
        target.sealed = Credentials.open(target.sealed).seal()
        target.save(update_fields=["sealed"])
    return len(found)


def shown_credentials(target: Target, *, now: datetime) -> dict[str, Any]:
    """Names and times, nothing that is secret."""
    try:
        opened = Credentials.open(target.sealed)
    except Unreadable:
        return {"headers": None, "signing_secrets": None}
    signing = [
        {"signs_until": definitions.rfc3339(one.until) if one.until else None}
        for one in opened.signing
        if one.until is None or one.until > now
    ]
    return {"headers": sorted(opened.headers), "signing_secrets": signing}


def without_query(url: str) -> str:
    """For those who may not see it: people do put tokens there."""
    parts = urlsplit(url)
    return parts._replace(query="***").geturl() if parts.query else url


# Reading ------------------------------------------------------------------------------------------


def _read(body: Mapping[str, Any], parsers: Mapping[str, Any], allowed: tuple[str, ...]) -> dict[str, Any]:
    errors, values = [], {}
    try:
        Field(path="body", value=dict.fromkeys(body)).members(allowed)
    except TriggerError as error:
        errors.append(_fault(error))
    for name in [one for one in allowed if one in body]:
        try:
            values[name] = parsers[name](Field(path=name, value=body[name]))
        except TriggerError as error:
            errors.append(_fault(error))
    if errors:
        raise ValidationFailed(*errors)
    return values


def _fault(error: TriggerError) -> FieldError:
    return FieldError(field=error.field.removeprefix("body."), code=error.code, detail=error.detail)


def _require(values: Mapping[str, Any], *names: str) -> None:
    missing = [
        FieldError(field=name, code="required", detail="this field is required.")
        for name in names
        if name not in values
    ]
    if missing:
        raise ValidationFailed(*missing)


def _name(given: Field) -> str:
    name = given.text()
    if not _NAME.fullmatch(name):
        detail = "expected 1 to 100 letters, digits, '.', '_' and '-', a letter or digit first."
        raise given.refuse("invalid_text", detail)
    return name


def _kind(given: Field) -> str:
    if given.text() != TargetKind.HTTP:
        raise given.refuse("invalid_choice", "only 'http': targets of jobs come from the code.")
    return TargetKind.HTTP


def _url(given: Field) -> str:
    url = given.text()
    if len(url) > URL_LENGTH or not re.fullmatch(r"[\x21-\x7e]+", url) or "\\" in url:
        raise given.refuse("invalid_url", f"expected at most {URL_LENGTH} printable ASCII characters.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise given.refuse(
            "invalid_url", "expected an address such as https://billing.example/hook."
        ) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise given.refuse("invalid_url", "expected an address such as https://billing.example/hook.")
    if parts.username is not None or parts.password is not None:
        raise given.refuse("invalid_url", "a name and password do not belong here: use a secret header.")
    if parts.fragment or "#" in url:
        raise given.refuse("invalid_url", "what follows a '#' is never sent.")
    _check_host(given, parts)
    return url


def _check_host(given: Field, parts: SplitResult) -> None:
    """What can be said before the call. Where the name leads to is judged at each call."""
    host = parts.hostname or ""
    try:
        address = str(ip_address(host))
    except ValueError:
        if not _HOST.fullmatch(host):
            raise given.refuse("invalid_url", "expected a host name or an address.") from None
        return
    why = refusal(address, settings.FENCEPOST.http_allow_networks)
    if why is not None:
        raise given.refuse("not_allowed", f"{address} {why}: no call may go there.")


def _side_effects(given: Field) -> str:
    return given.choice(SideEffects.values)


def _seconds(given: Field) -> int | None:
    return None if given.value is None else given.integer(at_least=1, at_most=LONGEST_S)


def _overlap(given: Field) -> int:
    return given.integer(at_least=0, at_most=MOST_OVERLAP_S)


def _flag(given: Field) -> bool:
    if not isinstance(given.value, bool):
        raise given.refuse("invalid_type", "expected true or false.")
    return given.value


def _description(given: Field) -> str:
    text = given.text()
    fault = text_fault(text)
    if fault is not None or len(text) > definitions.TEXT_LENGTH:
        raise given.refuse(
            *(fault or ("too_long", f"expected at most {definitions.TEXT_LENGTH:,} characters."))
        )
    return text


def _secret(given: Field) -> str | None:
    """An error must not show it."""
    if given.value is None:
        return None
    if not isinstance(given.value, str) or not credentials.is_signing_secret(given.value):
        detail = "expected a secret of Standard Webhooks: 'whsec_' and the base64 of 24 to 64 random bytes."
        raise given.refuse("invalid_secret", detail)
    return given.value


def _headers(given: Field) -> dict[str, str | None]:
    if not isinstance(given.value, Mapping) or len(given.value) > MOST_HEADERS:
        raise given.refuse("invalid_type", f"expected an object of at most {MOST_HEADERS} headers.")
    folded = [str(name).lower() for name in given.value]
    for name, value in given.value.items():
        _check_header(given, str(name), value)
    if len(set(folded)) < len(folded):
        raise given.refuse("repeated", "a header is given twice.")
    return dict(given.value)


def _check_header(given: Field, name: str, value: Any) -> None:
    if not _HEADER.fullmatch(name):
        raise given.refuse("invalid_header", "a name has characters that no header's name may have.")
    one = given.child(name, None)
    if name.lower() in _OURS or name.lower().startswith(_OUR_PREFIXES):
        raise one.refuse("reserved", "this header is Fencepost's own.")
    if value is None:
        return
    if not isinstance(value, str) or len(value) > HEADER_LENGTH or not _VALUE.fullmatch(value):
        detail = f"expected 1 to {HEADER_LENGTH:,} printable ASCII characters, none of the outer ones blank."
        raise one.refuse("invalid_header", detail)


_PARSERS: Final[dict[str, Any]] = {
    "url": _url,
    "side_effects": _side_effects,
    "timeout_s": _seconds,
    "heartbeat_timeout_s": _seconds,
    "description": _description,
    "headers": _headers,
}


# Writing ------------------------------------------------------------------------------------------


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _told(values: Mapping[str, Any]) -> dict[str, Any]:
    """For the audit log."""
    return {name: without_query(value) if name == "url" else value for name, value in values.items()}


def _refuse_more(owner: Tenant) -> None:
    if Target.objects.filter(owner=owner, enabled=True).count() >= MOST_TARGETS:
        raise Conflict(f"A tenant may have {MOST_TARGETS} targets of its own.", code="quota")


def _refuse_taken(owner: Tenant | None, name: str) -> None:
    """Also a name that the tenant sees of others: a schedule names its target by that alone."""
    seen = Q(owner=owner) if owner is None else Q(owner=owner) | Q(everyone=True) | Q(tenants=owner)
    if Target.objects.filter(seen, name=name).exists():
        detail = f"there is a target '{name}' already."
        raise ValidationFailed(FieldError(field="name", code="taken", detail=detail))


def _lock(owner: Tenant | None, target_id: UUID) -> Target:
    rows = Target.objects.select_for_update().filter(owner=owner, kind=TargetKind.HTTP, id=target_id)
    target = rows.first()
    if target is None:
        raise NotFound("No such target.")
    return target


def _open(target: Target) -> Credentials:
    try:
        return Credentials.open(target.sealed)
    except Unreadable as error:
        raise Conflict(f"{error} An operator has to put it back.", code="unreadable_credentials") from None


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or ""), parts.port


def _record(
    actor: Actor,
    action: str,
    target: Target,
    at: datetime,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    record(
        actor,
        f"target.{action}",
        tenant=target.owner,
        at=at,
        subject_kind="target",
        subject_id=target.id,
        before=before,
        after=after,
    )
