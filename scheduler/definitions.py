"""From a request body to a definition that can be stored, or to the list of everything wrong with it.

The body is the one of 06-api.md. A field that is absent or null has its default: the target's own for
`retry` and the limits in `_OF_TARGET`, where it has one, else the one below. What is not built yet is
refused.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from scheduler import payloads
from scheduler.core.errors import TriggerError
from scheduler.core.identity import whole_millisecond
from scheduler.core.reading import Field, did_you_mean, shown
from scheduler.core.rest import Mode
from scheduler.core.triggers import MAX_CALENDAR_ENTRIES, Trigger, parse_trigger, trigger_of
from scheduler.errors import FieldError, ValidationFailed
from scheduler.models import Calendar, Schedule, ScheduleRevision, ScheduleState, Target
from tenants.access import scoped
from tenants.models import Tenant

Value = TypeVar("Value")

NAME_LENGTH: Final = 200
CALENDAR_NAME_LENGTH: Final = 100
TEXT_LENGTH: Final = 10_000
REFERENCE_LENGTH: Final = 2_000
TAGS: Final = 20
TAG_LENGTH: Final = 50
NEVER: Final = datetime.min.replace(tzinfo=UTC)
FARTHEST_ONCE: Final = timedelta(days=3653)

MOST_FAILURES: Final = 1000

_DAY_S: Final = 86_400
_YEAR_S: Final = 366 * _DAY_S

DEFAULT_RETRY: Final[dict[str, Any]] = {
    "max_attempts": 5,
    "initial_interval_s": 1,
    "backoff": 2.0,
    "max_interval_s": 300,
    "deadline_s": None,
}

# Whole numbers, of seconds where the name says so: (default, lowest, highest).
_NUMBERS: Final = {
    "flexible_window_s": (0, 0, _YEAR_S),
    "catch_up_limit": (100, 1, 1000),
    "catch_up_after_s": (60, 1, _YEAR_S),
    "timeout_s": (300, 1, 7 * _DAY_S),
    "cancel_grace_s": (30, 0, _DAY_S),
    "late_after_s": (30, 1, _YEAR_S),
    "buffer_limit": (1000, 1, 100_000),
}

# The same where null, the default, means that there is no limit.
_LIMITS: Final = {
    "max_occurrences": (1, 1_000_000_000),
    "catch_up_window_s": (1, _YEAR_S),
    "schedule_to_start_s": (1, _YEAR_S),
    "heartbeat_timeout_s": (1, 7 * _DAY_S),
}

# Which of the numbers above a target has defaults of its own for.
_OF_TARGET: Final = ("timeout_s", "cancel_grace_s", "heartbeat_timeout_s")

# Policies by their values: (built, part of the contract but not built yet). The first is the default.
_CHOICES: Final = {
    "catch_up": (("run_latest_only", "run_all", "skip"), ()),
    "overlap": (("skip", "buffer_one", "buffer_all", "cancel_running", "allow"), ()),
    "priority": (("normal",), ("high", "low")),
    "mode": (("fixed_rate", "fixed_delay"), ()),
    "on_excluded": (("skip", "next_business_day"), ()),
}

_DECISIONS: Final = (
    "payload",
    "payload_ref",
    "trigger",
    "start_at",
    "end_at",
    "max_occurrences",
    "exclusions",
    "on_excluded",
    "flexible_window_s",
    "mode",
    "catch_up",
    "catch_up_limit",
    "catch_up_window_s",
    "catch_up_after_s",
    "overlap",
    "buffer_limit",
    "retry",
    "timeout_s",
    "cancel_grace_s",
    "schedule_to_start_s",
    "heartbeat_timeout_s",
    "on_failure",
    "late_after_s",
    "priority",
    "tags",
    "description",
)

FIELDS: Final = frozenset(["name", "target", *_DECISIONS, *_CHOICES])

_BELOW_MILLISECONDS: Final = re.compile(r"(\.\d{3})\d+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, kw_only=True)
class Definition:
    """Everything a schedule's author decides, complete and checked. Durations are whole seconds."""

    name: str
    target: Target
    payload: dict[str, Any]
    payload_ref: str | None
    trigger: dict[str, Any]
    start_at: datetime | None
    end_at: datetime | None
    max_occurrences: int | None
    exclusions: list[dict[str, Any]]
    on_excluded: str
    calendars: dict[str, list[Any]]  # those that `exclusions` names, as they are now
    flexible_window_s: int
    mode: str
    catch_up: str
    catch_up_limit: int
    catch_up_window_s: int | None
    catch_up_after_s: int
    overlap: str
    buffer_limit: int
    retry: dict[str, Any]
    timeout_s: int
    cancel_grace_s: int
    schedule_to_start_s: int | None
    heartbeat_timeout_s: int | None
    pause_after: int | None
    late_after_s: int
    priority: str
    tags: list[str]
    description: str

    @property
    def on_failure(self) -> dict[str, int | None]:
        """As the API has it."""
        return {"pause_after": self.pause_after}

    def parsed_trigger(self) -> Trigger:
        return trigger_of(self)


@dataclass(frozen=True, kw_only=True)
class Current:
    """What is in force when a body edits it."""

    schedule: Schedule
    revision: ScheduleRevision


def allowed_targets(tenant: Tenant) -> QuerySet[Target]:
    """What this tenant may schedule."""
    known = Q(everyone=True) | Q(tenants=tenant) | Q(owner=tenant)
    return Target.objects.filter(known, enabled=True).distinct()


def find_target(tenant: Tenant, name: str) -> Target:
    """One that the tenant may schedule; its own before the platform's. Raises TriggerError."""
    allowed = allowed_targets(tenant)
    own_first = allowed.order_by(F("owner").asc(nulls_last=True))
    found = None if payloads.text_fault(name) else own_first.filter(name=name).first()
    if found is None:
        hint = did_you_mean(name, list(allowed.values_list("name", flat=True)))
        raise Field(path="target", value=name).refuse(
            "unknown_target", f"unknown target {shown(name)}.{hint}"
        )
    return found


def read(
    tenant: Tenant, body: Mapping[str, Any], *, now: datetime, current: Current | None = None
) -> Definition:
    """Check a whole body. Raises ValidationFailed naming every faulty field.

    With `current` the body edits it: an interval that names no anchor keeps the one it has, and what is not
    changed is not held against times that passed or permissions that were withdrawn meanwhile.
    """
    return _Reading(tenant, body, now=now, current=current).definition()


def read_on_request(
    tenant: Tenant, body: Mapping[str, Any], *, now: datetime, current: Current | None = None
) -> Definition:
    """As `read`, for a schedule whose runs have payloads of their own: its own is empty, and held against
    nothing.
    """
    reading = _Reading(tenant, {**body, "payload": None}, now=now, current=current, on_request=True)
    return reading.definition()


def check_payload(tenant: Tenant, target: Target, payload: Any) -> None:
    """Raises ValidationFailed when a run of `target` could not have this payload."""
    reading = _Reading(tenant, {"payload": payload}, now=NEVER, current=None)
    reading.payload(target)
    reading.raise_errors()


def read_instants(tenant: Tenant, body: Mapping[str, Any], *, now: datetime) -> Trigger:
    """The trigger of a draft that need not be complete yet, for a preview. Raises ValidationFailed."""
    reading = _Reading(tenant, body, now=now, current=None)
    reading.refuse_unknown_fields()
    reading.timing()
    reading.raise_errors()
    assert reading.parsed is not None
    return reading.parsed


def living(tenant: Tenant) -> QuerySet[Schedule]:
    """The tenant's schedules that are not cancelled."""
    return scoped(Schedule.objects.all(), tenant).exclude(state=ScheduleState.CANCELLED)


def schedules_naming(tenant: Tenant, calendar: str) -> QuerySet[Schedule]:
    """Those that the calendar excludes days of, by the revision in force."""
    in_force = ScheduleRevision.objects.filter(
        schedule=OuterRef("pk"), number=OuterRef("revision"), calendars__has_key=calendar
    )
    return living(tenant).filter(Exists(in_force))


def check_calendar(name: Any, days: Any, *, field: str = "days") -> None:
    """Raises ValidationFailed when the calendar cannot be read by a schedule that names it. `field`: where
    the days came from.
    """
    probe = "calendar"
    try:
        if name is None:
            raise Field(path="name", value=None).refuse("required", "this field is required.")
        _name(Field(path="name", value=name), CALENDAR_NAME_LENGTH)
        Field(path=field, value=days).items(at_least=0, at_most=MAX_CALENDAR_ENTRIES)
        parse_trigger(
            {"cron": {"expressions": ["0 0 * * *"], "timezone": "UTC"}},
            exclusions=[{"calendar": probe}],
            calendars={probe: days},
        )
    except TriggerError as error:
        place = error.field.replace(f"calendars.{probe}", field).replace("exclusions", field)
        place = field if place == "trigger" else place  # too much of it
        raise ValidationFailed(FieldError(field=place, code=error.code, detail=error.detail)) from None


def body_of(name: str, revision: ScheduleRevision | Definition) -> dict[str, Any]:
    """The body that would define the same: every field of the contract, JSON values only."""
    target = revision.target_name if isinstance(revision, ScheduleRevision) else revision.target.name
    own = {field: _json(getattr(revision, field)) for field in _DECISIONS}
    choices = {field: built[0] for field, (built, _) in _CHOICES.items()}
    return {**choices, "name": name, "target": target, **own}


def _json(value: Any) -> Any:
    return rfc3339(value) if isinstance(value, datetime) else value


def rfc3339(instant: datetime) -> str:
    """`2026-12-01T08:00:00Z`, with a fraction only where there is one."""
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")


class _Reading:
    """One pass over a body. Each field is read on its own, so that all faults are told at once."""

    def __init__(
        self,
        tenant: Tenant,
        body: Mapping[str, Any],
        *,
        now: datetime,
        current: Current | None,
        on_request: bool = False,
    ) -> None:
        self.tenant = tenant
        self.body = body
        self.given = {name: value for name, value in body.items() if value is not None}
        self.now = now
        self.current = current
        self.on_request = on_request
        self.errors: list[FieldError] = []
        self.parsed: Trigger | None = None

    def definition(self) -> Definition:
        self.refuse_unknown_fields()
        target = self.field("target", self._target, None, required=True)
        values: dict[str, Any] = {
            "name": self.field("name", _name, "", required=True),
            "payload": {} if self.on_request else self.payload(target),
            "payload_ref": self.field("payload_ref", lambda field: _text(field, REFERENCE_LENGTH), None),
            "pause_after": self.field("on_failure", _pause_after, None),
            "retry": self.field("retry", _retry, _retry_of(target)),
            "tags": self.field("tags", _tags, list[str]()),
            "description": self.field("description", lambda field: _text(field, TEXT_LENGTH), ""),
            **self.timing(),
            **{name: self._number(name, target) for name in _NUMBERS},
            **{name: self._limit(name, target) for name in _LIMITS},
            **{name: self._choice(name) for name in ("catch_up", "overlap", "priority")},
        }
        self._settle_silence(values)
        self.raise_errors()
        assert target is not None
        return Definition(target=target, **values)

    def raise_errors(self) -> None:
        if self.errors:
            raise ValidationFailed(*self.errors)

    def field(
        self, name: str, parse: Callable[[Field], Value], default: Value, *, required: bool = False
    ) -> Value:
        if name not in self.given:
            if required:
                self.refuse(name, "required", "this field is required.")
            return default
        try:
            return parse(Field(path=name, value=self.given[name]))
        except TriggerError as error:
            self.refuse(error.field, error.code, error.detail)
            return default

    def refuse(self, field: str, code: str, detail: str) -> None:
        self.errors.append(FieldError(field=field, code=code, detail=detail))

    def refuse_unknown_fields(self) -> None:
        for name in self.body:
            if name not in FIELDS:
                hint = did_you_mean(name, FIELDS)
                self.refuse(printable(name), "unknown_field", f"unknown field {shown(name)}.{hint}")

    def _choice(self, name: str) -> str:
        built, planned = _CHOICES[name]

        def parse(field: Field) -> str:
            chosen = field.choice([*built, *planned])
            if chosen in planned:
                usable = " and ".join(f"'{value}'" for value in built)
                raise field.refuse("not_supported_yet", f"'{chosen}' is not supported yet; {usable} are.")
            return chosen

        return self.field(name, parse, built[0])

    def _number(self, name: str, target: Target | None) -> int:
        default, lowest, highest = _NUMBERS[name]
        own = _own_number(target, name)
        default = default if own is None else own
        return self.field(name, lambda field: field.integer(at_least=lowest, at_most=highest), default)

    def _limit(self, name: str, target: Target | None) -> int | None:
        lowest, highest = _LIMITS[name]
        own = _own_number(target, name)
        return self.field(name, lambda field: field.integer(at_least=lowest, at_most=highest), own)

    def _settle_silence(self, values: dict[str, Any]) -> None:
        """A silence as long as the attempt may be bounds nothing: an error where somebody asks for it, none
        where it is the target's and this schedule's attempts are shorter.
        """
        silence_s, timeout_s = values["heartbeat_timeout_s"], values["timeout_s"]
        if silence_s is None or silence_s < timeout_s:
            return
        values["heartbeat_timeout_s"] = None
        if "heartbeat_timeout_s" in self.given:
            detail = f"expected less than timeout_s, which is {timeout_s}."
            self.refuse("heartbeat_timeout_s", "out_of_range", detail)

    def _target(self, field: Field) -> Target:
        name = field.text()
        if self.current is not None and name == self.current.revision.target_name:
            return self.current.revision.target
        return find_target(self.tenant, name)

    def payload(self, target: Target | None) -> dict[str, Any]:
        payload: Any = self.given.get("payload", {})
        if not isinstance(payload, dict):
            self.refuse("payload", "invalid_type", f"expected an object, got {shown(payload)}.")
            return {}
        self.errors += payloads.check(
            payload,
            max_bytes=self.tenant.payload_max_bytes,
            target=target.name if target else "",
            parameters=target.parameters if target else {},
        )
        return payload

    def timing(self) -> dict[str, Any]:
        """What decides about instants: the fields of `TriggerTerms`, and the mode."""
        exclusions = self.given.get("exclusions", [])
        calendars = self._calendars(exclusions) if exclusions else {}
        terms: dict[str, Any] = {
            "start_at": self.field("start_at", _instant, None),
            "end_at": self.field("end_at", _instant, None),
            "exclusions": exclusions,
            "on_excluded": self._choice("on_excluded"),
        }
        trigger = self.field("trigger", self._trigger, dict[str, Any](), required=True)
        mode = self._choice("mode")
        if trigger:
            # The rest is judged together with a trigger that is already known to be right.
            try:
                self.parsed = parse_trigger(trigger, calendars=calendars, **terms)
                self._refuse_mode(mode, trigger)
                self._refuse_unreachable()
            except TriggerError as error:
                self.refuse(error.field, error.code, error.detail)
        named = {entry.get("calendar") for entry in exclusions} if self.parsed else set()
        used = {name: days for name, days in calendars.items() if name in named}
        return {**terms, "trigger": trigger, "mode": mode, "calendars": used}

    def _calendars(self, exclusions: Any) -> dict[str, list[Any]]:
        """Those that are named, and the names of the others, for one that is misspelt."""
        entries = exclusions if isinstance(exclusions, list) else []
        named = {str(entry.get("calendar")) for entry in entries if isinstance(entry, dict)}
        known = scoped(Calendar.objects.all(), self.tenant)
        names = {name: list[Any]() for name in known.values_list("name", flat=True)}
        wanted = named & names.keys()
        return {**names, **dict(known.filter(name__in=wanted).values_list("name", "days"))}

    def _refuse_mode(self, mode: str, trigger: dict[str, Any]) -> None:
        if mode == Mode.FIXED_DELAY and "once" in trigger:
            self.refuse("mode", "not_applicable", "what runs once has no next instant.")

    def _trigger(self, field: Field) -> dict[str, Any]:
        # Whatever a person sent, of any type: parse_trigger is who says what is no trigger.
        parse_trigger(field.value, default_anchor=self.now)  # type: ignore[arg-type]
        trigger = _normalised(field.value)
        if "interval" in trigger:
            trigger["interval"].setdefault("anchor", self._anchor())
        if "once" in trigger and (self.current is None or trigger != self.current.revision.trigger):
            self._refuse_bad_moment(trigger, field.child("once", None).child("at", None))
        return trigger

    def _anchor(self) -> str:
        """The phase of an interval that names none: what it was, or the second of its creation."""
        kept = self.current.revision.trigger.get("interval", {}).get("anchor") if self.current else None
        return kept or rfc3339(self.now.replace(microsecond=0))

    def _refuse_bad_moment(self, trigger: dict[str, Any], at: Field) -> None:
        moment = parse_trigger(trigger).next_after(self.now)
        if moment is None:
            raise at.refuse("in_the_past", f"the time is past; it is {rfc3339(self.now)} now.")
        if moment > self.now + FARTHEST_ONCE:
            raise at.refuse("too_far", "the time is more than 10 years ahead.")

    def _refuse_unreachable(self) -> None:
        """A new schedule must fire. An edit may end one, by an `end_at` that has passed."""
        assert self.parsed is not None
        if self.current is None and self.parsed.next_after(self.now) is None:
            field = "end_at" if self.given.get("end_at") else "trigger"
            self.refuse(field, "never_fires", "no instant is left: this would never fire.")


def _normalised(trigger: Any) -> dict[str, Any]:
    """As the author wrote it, without nulls, and without what lies below the millisecond: run ids cannot
    hold that, and an instant that is not the one stored would be met twice."""
    return {
        kind: {
            name: _BELOW_MILLISECONDS.sub(r"\1", value) if name in ("at", "anchor") else value
            for name, value in body.items()
            if value is not None
        }
        for kind, body in trigger.items()
        if body is not None
    }


def printable(name: str) -> str:
    """A stranger's field name as part of an error: safe to encode, however odd it is."""
    return name if re.fullmatch(r"[A-Za-z0-9_.-]{1,40}", name) else "?"


def _instant(field: Field) -> datetime:
    return whole_millisecond(field.instant())


def _text(field: Field, length: int) -> str:
    text = field.text()
    fault = payloads.text_fault(text)
    if fault is not None:
        raise field.refuse(*fault)
    if len(text) > length:
        raise field.refuse("too_long", f"expected at most {length:,} characters, got {len(text):,}.")
    return text


def _name(field: Field, length: int = NAME_LENGTH) -> str:
    name = _text(field, length)
    if not name.strip() or name != name.strip() or _CONTROL.search(name):
        raise field.refuse(
            "invalid_text", "expected a name without control characters or blanks at its ends."
        )
    return name


def _tags(field: Field) -> list[str]:
    tags = [_text(item, TAG_LENGTH) for item in field.items(at_least=0, at_most=TAGS)]
    if any(not tag or _CONTROL.search(tag) for tag in tags) or len(set(tags)) < len(tags):
        raise field.refuse("invalid_tags", "expected different, printable, non-empty texts.")
    return tags


def _own_number(target: Target | None, name: str) -> int | None:
    return getattr(target, name) if target is not None and name in _OF_TARGET else None


def _retry_of(target: Target | None) -> dict[str, Any]:
    own = target.retry if target is not None and target.retry else {}
    return {**DEFAULT_RETRY, **{name: own[name] for name in DEFAULT_RETRY if own.get(name) is not None}}


def _retry(field: Field) -> dict[str, Any]:
    members = field.members(DEFAULT_RETRY)
    retry = dict(DEFAULT_RETRY)
    if "max_attempts" in members:
        retry["max_attempts"] = members["max_attempts"].integer(at_least=1, at_most=100)
    for name, lowest, highest in (
        ("initial_interval_s", 0, _DAY_S),
        ("backoff", 1, 100),
        ("max_interval_s", 0, 7 * _DAY_S),
        ("deadline_s", 1, _YEAR_S),
    ):
        if name in members:
            retry[name] = _number(members[name], lowest, highest)
    return retry


def _pause_after(field: Field) -> int | None:
    members = field.members(("pause_after",))
    if "pause_after" not in members:
        return None
    return members["pause_after"].integer(at_least=1, at_most=MOST_FAILURES)


def _number(field: Field, lowest: float, highest: float) -> int | float:
    if isinstance(field.value, bool) or not isinstance(field.value, int | float):
        raise field.refuse("invalid_type", f"expected a number, got {shown(field.value)}.")
    if not lowest <= field.value <= highest:  # false for NaN too
        raise field.refuse("out_of_range", f"expected a number from {lowest:g} to {highest:g}.")
    return field.value
