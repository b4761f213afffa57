"""Reading of JSON that a stranger wrote: typed values, dotted paths, errors that say what would be right."""

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final, TypeVar

from scheduler.core.errors import TriggerError

CALENDAR_START: Final = datetime(1900, 1, 1, tzinfo=UTC)
CALENDAR_END: Final = datetime(2200, 1, 1, tzinfo=UTC)

_RFC_3339: Final = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?)"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_SHOWN: Final = 40

Moment = TypeVar("Moment", date, datetime)
Parsed = TypeVar("Parsed")


class Refusal(ValueError):
    """A text that a parser refuses: `code` and `detail` of the TriggerError-to-be, which adds the path."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


def shown(value: object) -> str:
    """`value` for an error text: short, and safe to encode even when it holds lone surrogates."""
    if isinstance(value, str):
        text = value if len(value) <= _SHOWN else value[:_SHOWN] + "..."
        return repr(text).encode("utf-8", "backslashreplace").decode()
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list) else f"a Python {type(value).__name__}"


def did_you_mean(word: str, options: Collection[str]) -> str:
    """A hint to append to an error text; empty when nothing comes close."""
    if len(word) > _SHOWN:
        return ""
    folded = {option.casefold(): option for option in options}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f" Did you mean '{folded[close[0]]}'?" if close else ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One JSON value together with the path under which its author knows it."""

    path: str
    value: object

    def refuse(self, code: str, detail: str) -> TriggerError:
        return TriggerError(self.path, code, detail)

    def child(self, name: str | int, value: object) -> "Field":
        return Field(path=f"{self.path}.{name}", value=value)

    def members(self, allowed: Collection[str], *, required: Collection[str] = ()) -> dict[str, "Field"]:
        """The object's members by name; null counts as absent, unknown names are refused."""
        if not isinstance(self.value, Mapping):
            raise self.refuse("invalid_type", f"expected an object, got {shown(self.value)}.")
        for name in self.value:
            if name not in allowed:
                raise self.child(_path_segment(name), None).refuse(
                    "unknown_field", f"unknown field {shown(name)}.{did_you_mean(name, allowed)}"
                )
        found = {name: self.child(name, value) for name, value in self.value.items() if value is not None}
        for name in required:
            if name not in found:
                raise self.child(name, None).refuse("required", "this field is required.")
        return found

    def items(self, *, at_least: int, at_most: int) -> list["Field"]:
        if not isinstance(self.value, list):
            raise self.refuse("invalid_type", f"expected a list, got {shown(self.value)}.")
        if not at_least <= len(self.value) <= at_most:
            raise self.refuse(
                "out_of_range", f"expected {at_least} to {at_most} entries, got {len(self.value)}."
            )
        return [self.child(index, value) for index, value in enumerate(self.value)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self.refuse("invalid_type", f"expected a text, got {shown(self.value)}.")
        return self.value

    def parsed(self, parse: Callable[[str], Parsed]) -> Parsed:
        """What `parse` makes of the text; its Refusal becomes an error of this field."""
        try:
            return parse(self.text())
        except Refusal as refusal:
            raise self.refuse(refusal.code, refusal.detail) from None

    def integer(self, *, at_least: int, at_most: int) -> int:
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self.refuse("invalid_type", f"expected a whole number, got {shown(self.value)}.")
        if not at_least <= self.value <= at_most:
            raise self.refuse("out_of_range", f"expected a number from {at_least} to {at_most}.")
        return self.value

    def choice(self, options: Collection[str]) -> str:
        text = self.text()
        if text not in options:
            listed = ", ".join(f"'{option}'" for option in options)
            raise self.refuse(
                "invalid_choice", f"{shown(text)} is not one of {listed}.{did_you_mean(text, options)}"
            )
        return text

    def timestamp(self) -> datetime:
        """An RFC 3339 time: aware (in UTC) when it names its offset, naive when it does not."""
        text = self.text()
        found = _RFC_3339.fullmatch(text)
        if found is None:
            raise self.refuse(
                "invalid_timestamp", f"{shown(text)} is not a time such as '2026-12-01T08:00:00Z'."
            )
        parsed = self._calendar(datetime.fromisoformat, f"{found[1]}T{found[2]}{(found[3] or '').upper()}")
        if parsed.tzinfo is not None:
            return self.within_calendar(parsed)
        self.within_calendar(parsed.replace(tzinfo=UTC))
        return parsed

    def instant(self) -> datetime:
        """An RFC 3339 time that names its offset, in UTC."""
        parsed = self.timestamp()
        if parsed.tzinfo is None:
            raise self.refuse("offset_required", "the time needs an offset, such as 'Z' or '+01:00'.")
        return parsed

    def within_calendar(self, instant: datetime) -> datetime:
        """`instant` in UTC, if the calendar that triggers live in (1900 to 2199) has it."""
        if not CALENDAR_START <= instant < CALENDAR_END:
            raise self.refuse("out_of_range", "the time lies outside the years 1900 to 2199.")
        return instant.astimezone(UTC)

    def day(self) -> date:
        text = self.text()
        if _DATE.fullmatch(text) is None:
            raise self.refuse("invalid_date", f"{shown(text)} is not a date such as '2026-12-24'.")
        day = self._calendar(date.fromisoformat, text)
        if not CALENDAR_START.date() <= day < CALENDAR_END.date():
            raise self.refuse("out_of_range", "the date lies outside the years 1900 to 2199.")
        return day

    def _calendar(self, parse: Callable[[str], Moment], text: str) -> Moment:
        try:
            return parse(text)
        except ValueError:
            raise self.refuse("out_of_range", f"{shown(text)} is not in the calendar.") from None


def _path_segment(name: object) -> str:
    return name if isinstance(name, str) and re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", name) else "?"
