"""From a request body to a definition that can be stored, or to the list of everything wrong with it.

The body is the one of 06-api.md. A field that is absent or null has its default: the target's own for
`retry` and the limits in `fields.OF_TARGET`, where it has one, else the one in `fields`. What is not built
yet is refused.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from scheduler import payloads
from scheduler.core.errors import TriggerError
from scheduler.core.reading import Field, did_you_mean, shown
from scheduler.core.rest import Mode
from scheduler.core.triggers import MAX_CALENDAR_ENTRIES, Trigger, parse_trigger
from scheduler.definitions import fields
from scheduler.definitions.definition import Current, Definition
from scheduler.definitions.lookup import find_target
from scheduler.errors import FieldError, ValidationFailed
from scheduler.models import Calendar, Target
from tenants.access import scoped
from tenants.models import Tenant

Value = TypeVar("Value")

NEVER: Final = datetime.min.replace(tzinfo=UTC)
_BELOW_MILLISECONDS: Final = re.compile(r"(\.\d{3})\d+")


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


def check_calendar(name: Any, days: Any, *, field: str = "days") -> None:
    """Raises ValidationFailed when the calendar cannot be read by a schedule that names it. `field`: where
    the days came from.
    """
    probe = "calendar"
    try:
        if name is None:
            raise Field(path="name", value=None).refuse("required", "this field is required.")
        fields.name_of(Field(path="name", value=name), fields.CALENDAR_NAME_LENGTH)
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
            "name": self.field("name", fields.name_of, "", required=True),
            "payload": {} if self.on_request else self.payload(target),
            "payload_ref": self.field(
                "payload_ref", lambda field: fields.text_of(field, fields.REFERENCE_LENGTH), None
            ),
            "pause_after": self.field("on_failure", fields.pause_after, None),
            "retry": self.field("retry", fields.retry_of, fields.default_retry(target)),
            "tags": self.field("tags", fields.tags_of, list[str]()),
            "description": self.field(
                "description", lambda field: fields.text_of(field, fields.TEXT_LENGTH), ""
            ),
            **self.timing(),
            **{name: self._number(name, target) for name in fields.NUMBERS},
            **{name: self._limit(name, target) for name in fields.LIMITS},
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
            if name not in fields.FIELDS:
                hint = did_you_mean(name, fields.FIELDS)
                self.refuse(fields.printable(name), "unknown_field", f"unknown field {shown(name)}.{hint}")

    def _choice(self, name: str) -> str:
        built, planned = fields.CHOICES[name]

        def parse(field: Field) -> str:
            chosen = field.choice([*built, *planned])
            if chosen in planned:
                usable = " and ".join(f"'{value}'" for value in built)
                raise field.refuse("not_supported_yet", f"'{chosen}' is not supported yet; {usable} are.")
            return chosen

        return self.field(name, parse, built[0])

    def _number(self, name: str, target: Target | None) -> int:
        default, lowest, highest = fields.NUMBERS[name]
        own = fields.own_number(target, name)
        default = default if own is None else own
        return self.field(name, lambda field: field.integer(at_least=lowest, at_most=highest), default)

    def _limit(self, name: str, target: Target | None) -> int | None:
        lowest, highest = fields.LIMITS[name]
        own = fields.own_number(target, name)
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
            "start_at": self.field("start_at", fields.instant, None),
            "end_at": self.field("end_at", fields.instant, None),
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
        return kept or fields.rfc3339(self.now.replace(microsecond=0))

    def _refuse_bad_moment(self, trigger: dict[str, Any], at: Field) -> None:
        moment = parse_trigger(trigger).next_after(self.now)
        if moment is None:
            raise at.refuse("in_the_past", f"the time is past; it is {fields.rfc3339(self.now)} now.")
        if moment > self.now + fields.FARTHEST_ONCE:
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
