"""Forms turn what people type into the request bodies of the API; definitions judge the bodies."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.contrib.auth.forms import AuthenticationForm

from scheduler.errors import FieldError
from tenants.dashboard import timing
from tenants.dashboard.timing import CATCH_UPS, OVERLAPS, TimingForm, lines_of

UNITS = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}

TRIGGER_FIELDS = frozenset({"kind", "cron", "more_crons", "day_match", "timezone", "every", "unit"})
INSTANT_FIELDS = TRIGGER_FIELDS | timing.OF_INSTANTS

# Request fields by their dotted path -> the form field that people fill in. The longest prefix wins.
_FIELD_OF_PATH = {
    "trigger.cron.timezone": "timezone",
    "trigger.cron": "cron",
    "trigger.interval": "every",
    "retry.max_attempts": "max_attempts",
    "retry.deadline_s": "deadline_s",
    "on_failure": "pause_after",
    "retry": "max_attempts",
}


class SignInForm(AuthenticationForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["username"].label = "E-mail"
        self.fields["username"].widget = forms.EmailInput(
            attrs={"autofocus": True, "autocomplete": "username", "maxlength": 150}
        )


class ScheduleForm(TimingForm):
    """A new schedule. `draft()` is the body that `POST /api/v1/schedules` would take."""

    name = forms.CharField(max_length=200, help_text="How your team will call it, such as nightly-report.")
    target = forms.ChoiceField()  # its choices are the tenant's
    kind = forms.ChoiceField(
        label="When",
        choices=[("cron", "At times of day (cron)"), ("interval", "At a fixed interval")],
        widget=forms.RadioSelect,
        initial="cron",
    )
    cron = forms.CharField(
        label="Cron expression",
        required=False,
        initial="0 9 * * MON-FRI",
        help_text="Minute, hour, day of month, month, day of week.",
        widget=forms.TextInput(attrs={"class": "mono", "autocomplete": "off", "spellcheck": "false"}),
    )
    timezone = forms.CharField(
        label="Time zone",
        required=False,
        initial="UTC",
        help_text="Times are local to this zone, through its clock changes.",
        widget=forms.TextInput(attrs={"list": "time-zones", "autocomplete": "off", "spellcheck": "false"}),
    )
    every = forms.IntegerField(label="Every", required=False, initial=15)
    unit = forms.ChoiceField(choices=[(unit, unit) for unit in UNITS], initial="minutes", label="Unit")
    payload = forms.CharField(
        required=False,
        initial="{}",
        help_text="A JSON object, handed to the job.",
        widget=forms.Textarea(attrs={"class": "mono", "rows": 4, "spellcheck": "false"}),
    )
    overlap = forms.ChoiceField(
        label="When the last run is still going",
        choices=OVERLAPS,
    )
    catch_up = forms.ChoiceField(
        label="After an outage",
        choices=CATCH_UPS,
    )
    max_attempts = forms.IntegerField(
        label="Attempts", required=False, help_text="At most, the first included. Empty: the job's own."
    )
    timeout_s = forms.IntegerField(
        label="Time limit", required=False, help_text="Seconds for each attempt. Empty: the job's own."
    )
    deadline_s = forms.IntegerField(
        label="Give up after",
        required=False,
        help_text="Seconds from the due time; no attempt starts later. Empty: never.",
    )
    pause_after = forms.IntegerField(
        label="Pause after failures", required=False, help_text="In a row. Empty: goes on."
    )
    description = forms.CharField(required=False, widget=forms.Textarea(attrs={"rows": 2}))

    def __init__(
        self, *args: Any, targets: Iterable[str], calendars: Iterable[str] = (), **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.offer_calendars(calendars)
        self.fields["target"] = forms.ChoiceField(
            choices=[(name, name) for name in targets], help_text="A job, or an HTTP endpoint that is called."
        )

    def clean_payload(self) -> dict[str, Any]:
        """Whether its members fit the job is judged with the rest of the definition."""
        text = self.cleaned_data["payload"].strip() or "{}"
        try:
            payload = json.loads(text)
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            raise forms.ValidationError(f"This is not JSON: {error.msg} at {place}.") from None
        except (ValueError, RecursionError):
            raise forms.ValidationError("This is not JSON that can be read.") from None
        if not isinstance(payload, dict):
            raise forms.ValidationError('This must be a JSON object, such as {"kind": "daily"}.')
        return payload

    def clean(self) -> dict[str, Any]:
        """An interval that is not asked for is out of sight: its error would be too."""
        if self.cleaned_data.get("kind") == "cron":
            self.errors.pop("every", None)
        return self.cleaned_data

    def draft(self) -> dict[str, Any]:
        """Only after `is_valid()`. What was left empty is left out, so that the target's defaults hold."""
        data = self.cleaned_data
        draft = {name: data[name] for name in ("name", "target", "payload", "overlap", "catch_up")}
        draft |= self.timing()
        if data["description"]:
            draft["description"] = data["description"]
        if data["timeout_s"] is not None:
            draft["timeout_s"] = data["timeout_s"]
        retry = {name: data[name] for name in ("max_attempts", "deadline_s") if data[name] is not None}
        if retry:
            draft["retry"] = retry
        if data["pause_after"] is not None:
            draft["on_failure"] = {"pause_after": data["pause_after"]}
        return draft

    def timing(self) -> dict[str, Any]:
        """The trigger and all else about time that the values describe, right or wrong."""
        trigger = _trigger_of(self.cleaned_data)
        zone = trigger["cron"]["timezone"] if "cron" in trigger else "UTC"
        return {"trigger": trigger, **timing.body_of(self.cleaned_data, zone)}

    def initial_trigger(self) -> dict[str, Any]:
        return _trigger_of({name: field.initial for name, field in self.fields.items()})

    def has_errors_about_instants(self) -> bool:
        return any(name in self.errors for name in INSTANT_FIELDS)

    def keep_errors_about_instants(self) -> None:
        """For a preview of a form that is not complete yet."""
        for name in set(self.errors) - INSTANT_FIELDS:
            del self.errors[name]

    def shows_detail(self) -> bool:
        """Whether the part about time that is folded away has something in it, or to correct."""
        return not self._touched().isdisjoint(TimingForm.base_fields.keys() - timing.OF_POLICIES)

    def shows_policies(self) -> bool:
        """The same for the part below. A choice says too little to open it: each list has one."""
        folded = {
            "overlap",
            "catch_up",
            "description",
            "max_attempts",
            "deadline_s",
            "timeout_s",
            "pause_after",
        }
        return not (self.errors.keys().isdisjoint(folded) and self._touched().isdisjoint(timing.OF_POLICIES))

    def _touched(self) -> set[str]:
        return {*self.errors, *self.changed_data} if self.is_bound else set()

    def fields_about_instants(self) -> list[forms.BoundField]:
        """Whose errors the live preview sets and clears."""
        return [field for field in self if field.name in INSTANT_FIELDS - {"kind", "unit"}]

    def refuse(self, errors: Sequence[FieldError]) -> None:
        """Put each error at the field it is about; what has no field here goes on top, with its path."""
        for error in errors:
            field, line = timing.place_of(error.field, self.cleaned_data) or (form_field(error.field), "")
            detail = line + _sentence(error.detail)
            if error.field.startswith("payload."):
                detail = f"{error.field.removeprefix('payload.')}: {detail}"
            if field in self.fields:
                self.add_error(field, detail)
            else:
                self.add_error(None, f"{error.field}: {detail}")


def _trigger_of(data: Mapping[str, Any]) -> dict[str, Any]:
    if data.get("kind") == "interval":
        seconds = UNITS.get(data.get("unit") or "seconds", 1)
        every = data.get("every")
        return {"interval": {"every_s": every * seconds if isinstance(every, int) else every}}
    expressions = [(data.get("cron") or "").strip(), *lines_of(data.get("more_crons") or "")]
    cron = {"expressions": expressions, "timezone": (data.get("timezone") or "").strip()}
    by_default = data.get("day_match") in (None, "", TimingForm.base_fields["day_match"].initial)
    return {"cron": cron if by_default else {**cron, "day_match": data["day_match"]}}


def form_field(path: str) -> str:
    """The name of the form field for a dotted path of the request body."""
    steps = path.split(".")
    prefixes = (".".join(steps[:length]) for length in range(len(steps), 0, -1))
    return next((_FIELD_OF_PATH[prefix] for prefix in prefixes if prefix in _FIELD_OF_PATH), steps[0])


def time_zones() -> list[str]:
    """What the time zone field offers; whatever zoneinfo knows beyond that is accepted too."""
    places = (name for name in available_timezones() if "/" in name and not name.startswith("Etc/"))
    return ["UTC", *sorted(places)]


def _sentence(detail: str) -> str:
    return detail[:1].upper() + detail[1:]
