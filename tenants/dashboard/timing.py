"""The part of a schedule's form that most leave as it is: bounds, days of rest, spread, what was missed."""

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final
from zoneinfo import ZoneInfo

from django import forms

from scheduler.models import CatchUp, Mode, OnExcluded, Overlap

LOCAL_TIME: Final = "%Y-%m-%dT%H:%M"
_LINE: Final = re.compile(r"(\S+)(?:\s+to\s+(\S+))?", re.IGNORECASE)

# Fields of the body that are taken as they were filled in, and left out where they were not.
OF_LIMITS: Final = ("schedule_to_start_s", "cancel_grace_s", "heartbeat_timeout_s")
OF_POLICIES: Final = (
    "catch_up_limit",
    "catch_up_window_s",
    "catch_up_after_s",
    "buffer_limit",
    *OF_LIMITS,
)
PLAIN: Final = ("max_occurrences", "on_excluded", "flexible_window_s", "mode", *OF_POLICIES)
# What decides about instants, beside the trigger.
OF_INSTANTS: Final = frozenset({"start_at", "end_at", "exclusions", "calendars", "on_excluded"})

OVERLAPS: Final = [
    (Overlap.SKIP, "Skip the new run"),
    (Overlap.BUFFER_ONE, "Let the newest one wait"),
    (Overlap.BUFFER_ALL, "Let all wait, in order"),
    (Overlap.CANCEL_RUNNING, "Stop the last run"),
    (Overlap.ALLOW, "Let them run side by side"),
]
CATCH_UPS: Final = [
    (CatchUp.RUN_LATEST_ONLY, "Run once for all that was missed"),
    (CatchUp.RUN_ALL, "Run all that was missed, one after the other"),
    (CatchUp.SKIP, "Leave out what was missed"),
]


class LocalTimeField(forms.Field):
    """A time on the schedule's own clock: naive until its zone is known."""

    widget = forms.DateTimeInput(format=LOCAL_TIME, attrs={"type": "datetime-local"})

    def to_python(self, value: Any) -> datetime | None:
        if value in self.empty_values:
            return None
        try:
            local = datetime.fromisoformat(str(value).strip())
        except ValueError:
            raise forms.ValidationError("Write a local time such as 2026-12-24T09:00.") from None
        if local.tzinfo is not None:
            raise forms.ValidationError("Leave the offset out: the time is local to the schedule's zone.")
        return local


class TimingForm(forms.Form):
    """Its fields may all be left alone: then the defaults of the API hold."""

    more_crons = forms.CharField(
        label="More expressions",
        required=False,
        help_text="One a line. It fires whenever one of them does.",
        widget=forms.Textarea(attrs={"class": "mono", "rows": 2, "spellcheck": "false"}),
    )
    day_match = forms.ChoiceField(
        label="When both day fields are set",
        required=False,
        initial="classic",
        choices=[
            ("classic", "As cron does: one is enough"),
            ("either", "One is enough, also with */2"),
            ("both", "Both must match"),
        ],
    )
    start_at = LocalTimeField(label="Not before", required=False)
    end_at = LocalTimeField(
        label="Not after", required=False, help_text="Both included, by the schedule's own clock."
    )
    exclusions = forms.CharField(
        label="Days of rest",
        required=False,
        help_text="One a line: 2026-12-25, or 2026-12-24 to 2026-12-26.",
        widget=forms.Textarea(attrs={"class": "mono", "rows": 3, "spellcheck": "false"}),
    )
    calendars = forms.MultipleChoiceField(
        label="Calendars of rest", required=False, widget=forms.CheckboxSelectMultiple
    )
    on_excluded = forms.ChoiceField(
        label="What would fall on them",
        required=False,
        initial=OnExcluded.SKIP,
        choices=[
            (OnExcluded.SKIP, "Is left out"),
            (OnExcluded.NEXT_BUSINESS_DAY, "Moves to the next business day"),
        ],
    )
    max_occurrences = forms.IntegerField(
        label="Runs in all", required=False, help_text="After so many it ends. Empty: no limit."
    )
    flexible_window_s = forms.IntegerField(
        label="Spread over",
        required=False,
        help_text="Seconds. It begins at one place in them, always the same. Empty: at the instant.",
    )
    mode = forms.ChoiceField(
        label="Counted from",
        required=False,
        initial=Mode.FIXED_RATE,
        choices=[
            (Mode.FIXED_RATE, "The clock: runs do not delay each other"),
            (Mode.FIXED_DELAY, "The end of the last run"),
        ],
    )
    catch_up_after_s = forms.IntegerField(
        label="Missed when later than", required=False, help_text="Seconds. Empty: 60."
    )
    catch_up_limit = forms.IntegerField(
        label="Missed runs at most",
        required=False,
        help_text="If all are run; what is older is counted on the first of them. Empty: 100.",
    )
    catch_up_window_s = forms.IntegerField(
        label="Leave out what is older than", required=False, help_text="Seconds. Empty: nothing."
    )
    buffer_limit = forms.IntegerField(
        label="Waiting runs at most", required=False, help_text="If all wait. Empty: 1000."
    )
    schedule_to_start_s = forms.IntegerField(
        label="Must start within",
        required=False,
        help_text="Seconds; a run that has not started by then is skipped. Empty: no limit.",
    )
    cancel_grace_s = forms.IntegerField(
        label="Time to stop", required=False, help_text="Seconds after the time limit. Empty: the job's own."
    )
    heartbeat_timeout_s = forms.IntegerField(
        label="Longest silence",
        required=False,
        help_text="Seconds between reports of a job that makes them. Empty: the job's own.",
    )

    def offer_calendars(self, names: Iterable[str]) -> None:
        field = self.fields["calendars"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [(name, name) for name in names]

    def clean_exclusions(self) -> list[dict[str, str]]:
        """Dates as they were written: whether there is such a day is judged with the rest."""
        return [
            _exclusion(number, line)
            for number, line in enumerate(lines_of(self.cleaned_data["exclusions"]), start=1)
        ]


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _exclusion(number: int, line: str) -> dict[str, str]:
    found = _LINE.fullmatch(line)
    if found is None:
        detail = f"Line {number}: write 2026-12-25, or 2026-12-24 to 2026-12-26."
        raise forms.ValidationError(detail)
    first, last = found.groups()
    return {"from": first, "to": last} if last else {"date": first}


def body_of(data: Mapping[str, Any], zone: str) -> dict[str, Any]:
    """The fields of the body that these cleaned values set. `zone`: that of the trigger, right or wrong."""
    body = {name: data[name] for name in PLAIN if data.get(name) not in (None, "")}
    body |= {name: _in_zone(data[name], zone) for name in ("start_at", "end_at") if data.get(name)}
    named = [{"calendar": name} for name in data.get("calendars") or ()]
    exclusions = [*(data.get("exclusions") or ()), *named]
    return {**body, "exclusions": exclusions} if exclusions else body


def _in_zone(local: datetime, zone: str) -> str:
    """With the offset that the zone has then. A zone that is none is an error of its own field."""
    try:
        return local.replace(tzinfo=ZoneInfo(zone)).isoformat()
    except (ValueError, OSError, KeyError):
        return f"{local.isoformat()}Z"


def place_of(path: str, data: Mapping[str, Any]) -> tuple[str, str] | None:
    """The form field for a dotted path of the body, and the line of it that is meant, as in "Line 2: ".

    None for paths that are not of this part of the form.
    """
    steps = path.split(".")
    index = int(steps[-1]) if steps[-1].isdigit() else None
    if steps[:3] == ["trigger", "cron", "day_match"]:
        return "day_match", ""
    if steps[:3] == ["trigger", "cron", "expressions"] and index != 0:
        return "more_crons", f"Line {index}: " if index else ""
    if steps[0] == "exclusions" and len(steps) > 1 and steps[1].isdigit():
        line, dates = int(steps[1]), data.get("exclusions") or ()
        return ("exclusions", f"Line {line + 1}: ") if line < len(dates) else ("calendars", "")
    return None
