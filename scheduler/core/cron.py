"""The cron dialect: text to fields, and the days and minutes that they name. Knows no zones.

Five fields, `minute hour day-of-month month day-of-week`, each a comma-separated list of `*` or `?`, values,
ranges and steps, plus the calendar forms `L`, `L-n`, `LW`, `nW`, `nL` and `n#k`. Ranges may wrap where the
field is a cycle of fixed length (hours, months, weekdays); minutes and days of the month must ascend.
"""

import calendar
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from scheduler.core.reading import Refusal

MAX_LENGTH: Final = 1000

MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_MONTHS: Final = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_WEEKDAYS: Final = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
_SATURDAY, _SUNDAY = 6, 0


class DayMatch(StrEnum):
    """How the two day fields combine. CLASSIC is Vixie cron's rule, EITHER the wording of POSIX."""

    CLASSIC = "classic"
    EITHER = "either"
    BOTH = "both"


class MonthShape(NamedTuple):
    """All that matching needs to know of a month; there are 84 different ones."""

    month: int
    first_weekday: int  # of the 1st; 0 is Sunday
    length: int

    def weekday(self, day: int) -> int:
        return (self.first_weekday + day - 1) % 7


# A calendar form is a function from the shape of a month to the day it names there, or None.
CalendarForm = Callable[[MonthShape], int | None]


@dataclass(frozen=True, kw_only=True)
class CronField:
    """One parsed field: plain values, calendar forms, and how much of a star its author wrote."""

    text: str
    values: frozenset[int]
    forms: tuple[CalendarForm, ...] = field(default=(), compare=False)

    @property
    def begins_with_star(self) -> bool:
        return self.text[0] in "*?"

    @property
    def is_bare_star(self) -> bool:
        return self.text in ("*", "?")


@dataclass(frozen=True, kw_only=True)
class CronExpression:
    """A parsed expression. Equal when the text and the day rule are."""

    text: str
    day_match: DayMatch
    minute: CronField = field(compare=False)
    hour: CronField = field(compare=False)
    day_of_month: CronField = field(compare=False)
    month: CronField = field(compare=False)
    day_of_week: CronField = field(compare=False)
    _memo: dict[MonthShape, tuple[int, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def is_rolling(self) -> bool:
        """Whether it follows elapsed time rather than naming a time of day."""
        every_hour = len(self.hour.values) == 24
        return self.minute.begins_with_star or self.hour.begins_with_star or every_hour

    @property
    def restricts_both_day_fields(self) -> bool:
        return not (self._is_unrestricted(self.day_of_month) or self._is_unrestricted(self.day_of_week))

    def _is_unrestricted(self, day_field: CronField) -> bool:
        if self.day_match is DayMatch.CLASSIC:
            return day_field.begins_with_star
        return day_field.is_bare_star

    @cached_property
    def _seconds_of_day(self) -> tuple[int, ...]:
        return _seconds_of_day(self.hour.values, self.minute.values)

    def seconds_on(self, day: date) -> Sequence[int]:
        """The matching times of this date as seconds since midnight, ascending."""
        return self._seconds_of_day if day.day in self._days(day.year, day.month) else ()

    def next_date(self, day: date, limit: date) -> date | None:
        """The first matching date later than `day` and not later than `limit`."""
        year, month = day.year, day.month
        days = self._days(year, month)
        index = bisect_right(days, day.day)
        while index == len(days):
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)
            if (year, month) > (limit.year, limit.month):
                return None
            days, index = self._days(year, month), 0
        found = date(year, month, days[index])
        return found if found <= limit else None

    def previous_date(self, day: date, limit: date) -> date | None:
        """The last matching date earlier than `day` and not earlier than `limit`."""
        year, month = day.year, day.month
        days = self._days(year, month)
        index = bisect_left(days, day.day)
        while index == 0:
            year, month = (year, month - 1) if month > 1 else (year - 1, 12)
            if (year, month) < (limit.year, limit.month):
                return None
            days = self._days(year, month)
            index = len(days)
        found = date(year, month, days[index - 1])
        return found if found >= limit else None

    def _days(self, year: int, month: int) -> tuple[int, ...]:
        if month not in self.month.values:
            return ()
        shape = _month_shape(year, month)
        days = self._memo.get(shape)
        if days is None:
            days = self._memo[shape] = tuple(sorted(self.days_in(shape)))
        return days

    def days_in(self, shape: MonthShape) -> frozenset[int]:
        """The days of such a month that match."""
        if shape.month not in self.month.values:
            return frozenset()
        of_month = self._days_of_month(shape)
        of_week = self._days_of_week(shape)
        if self.day_match is not DayMatch.BOTH and self.restricts_both_day_fields:
            return of_month | of_week
        return of_month & of_week

    def _days_of_month(self, shape: MonthShape) -> frozenset[int]:
        plain = (day for day in self.day_of_month.values if day <= shape.length)
        return frozenset(plain) | _named_days(self.day_of_month, shape)

    def _days_of_week(self, shape: MonthShape) -> frozenset[int]:
        days = range(1, shape.length + 1)
        plain = (day for day in days if shape.weekday(day) in self.day_of_week.values)
        return frozenset(plain) | _named_days(self.day_of_week, shape)


@lru_cache(maxsize=1024)
def _seconds_of_day(hours: frozenset[int], minutes: frozenset[int]) -> tuple[int, ...]:
    # Shared: the table of `* * * * *` has 1440 entries, and many schedules name the same times.
    return tuple(3600 * hour + 60 * minute for hour in sorted(hours) for minute in sorted(minutes))


@lru_cache(maxsize=8192)
def _month_shape(year: int, month: int) -> MonthShape:
    first_weekday, length = calendar.monthrange(year, month)  # 0 is Monday
    return MonthShape(month=month, first_weekday=(first_weekday + 1) % 7, length=length)


def _named_days(day_field: CronField, shape: MonthShape) -> frozenset[int]:
    named = (form(shape) for form in day_field.forms)
    return frozenset(day for day in named if day is not None)


# ---------------------------------------------------------------------------- calendar forms


def _last_day(before: int) -> CalendarForm:
    def form(shape: MonthShape) -> int | None:
        return shape.length - before if before < shape.length else None

    return form


def _nearest_weekday(day: int | None) -> CalendarForm:
    """The weekday nearest to `day` (None: to the last day) that lies in the same month."""

    def form(shape: MonthShape) -> int | None:
        wanted = day or shape.length
        if wanted > shape.length:
            return None
        weekday = shape.weekday(wanted)
        if weekday == _SATURDAY:
            return wanted - 1 if wanted > 1 else wanted + 2
        if weekday == _SUNDAY:
            return wanted + 1 if wanted < shape.length else wanted - 2
        return wanted

    return form


def _last_weekday(weekday: int) -> CalendarForm:
    def form(shape: MonthShape) -> int | None:
        return shape.length - (shape.weekday(shape.length) - weekday) % 7

    return form


def _nth_weekday(weekday: int, nth: int) -> CalendarForm:
    def form(shape: MonthShape) -> int | None:
        day = 1 + (weekday - shape.first_weekday) % 7 + 7 * (nth - 1)
        return day if day <= shape.length else None

    return form


# ---------------------------------------------------------------------------- parsing


@dataclass(frozen=True, kw_only=True)
class _FieldKind:
    """What a field accepts. `highest` may exceed `last`: 7 is read as Sunday, but a step never reaches it."""

    name: str
    first: int
    last: int
    highest: int
    wraps: bool
    names: dict[str, int]

    @property
    def size(self) -> int:
        return self.last - self.first + 1


_MINUTE = _FieldKind(name="minute", first=0, last=59, highest=59, wraps=False, names={})
_HOUR = _FieldKind(name="hour", first=0, last=23, highest=23, wraps=True, names={})
_DAY_OF_MONTH = _FieldKind(name="day-of-month", first=1, last=31, highest=31, wraps=False, names={})
_MONTH = _FieldKind(
    name="month", first=1, last=12, highest=12, wraps=True, names={n: i for i, n in enumerate(_MONTHS, 1)}
)
_DAY_OF_WEEK = _FieldKind(
    name="day-of-week", first=0, last=6, highest=7, wraps=True, names={n: i for i, n in enumerate(_WEEKDAYS)}
)
_KINDS: Final = (_MINUTE, _HOUR, _DAY_OF_MONTH, _MONTH, _DAY_OF_WEEK)

_ITEM: Final = re.compile(
    r"(?P<star>[*?])(?:/(?P<star_step>[0-9]+))?"
    r"|(?P<first>[0-9]+|[A-Z]{3})(?:-(?P<last>[0-9]+|[A-Z]{3}))?(?:/(?P<step>[0-9]+))?"
)
_DAY_FORM: Final = re.compile(r"(?P<last>L)(?:-(?P<before>[0-9]+))?|LW|(?P<day>[0-9]+)W")
_WEEKDAY_FORM: Final = re.compile(r"(?P<weekday>[0-9]|[A-Z]{3})(?:(?P<last>L)|#(?P<nth>[0-9]+))")
_FOREIGN: Final = re.compile(r"[^ \t0-9A-Za-z*?,/#@-]")


def parse_expression(text: str, day_match: DayMatch) -> CronExpression:
    """The expression that `text` says, or Refusal with the field, the position and the reason."""
    _refuse_foreign(text)
    stripped = text.strip(" \t")
    expanded = _expand_macro(stripped) if stripped.startswith("@") else stripped
    words = expanded.upper().split()
    if len(words) != 5:
        raise Refusal("field_count", _wrong_count(len(words)))
    minute, hour, day_of_month, month, day_of_week = (
        _read_field(kind, word) for kind, word in zip(_KINDS, words, strict=True)
    )
    return CronExpression(
        text=" ".join(words),
        day_match=day_match,
        minute=minute,
        hour=hour,
        day_of_month=day_of_month,
        month=month,
        day_of_week=day_of_week,
    )


def _refuse_foreign(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise Refusal("too_long", f"an expression has at most {MAX_LENGTH} characters.")
    found = _FOREIGN.search(text)
    if found:
        raise Refusal(
            "invalid_character",
            f"character U+{ord(found[0]):04X} at position {found.start() + 1} is not allowed.",
        )


def _expand_macro(text: str) -> str:
    expansion = MACROS.get(text.lower())
    if expansion is not None:
        return expansion
    if text.lower() == "@reboot":
        raise Refusal("not_a_time", "'@reboot' names no time: a schedule outlives every process.")
    raise Refusal("unknown_macro", f"unknown macro '{text[:20]}': use one of {', '.join(MACROS)}.")


def _wrong_count(count: int) -> str:
    if count in (6, 7):
        return (
            f"{count} fields: seconds and years are not supported. Write five fields, "
            "'minute hour day-of-month month day-of-week'; for seconds use an interval."
        )
    return f"expected five fields, 'minute hour day-of-month month day-of-week', got {count}."


def _read_field(kind: _FieldKind, word: str) -> CronField:
    values: set[int] = set()
    forms: list[CalendarForm] = []
    position = 1
    for text in word.split(","):
        item = _Item(kind=kind, text=text, position=position)
        form = item.calendar_form()
        if form is None:
            values |= item.plain_values()
        else:
            forms.append(form)
        position += len(text) + 1
    return CronField(text=word, values=frozenset(values), forms=tuple(forms))


@dataclass(frozen=True, kw_only=True)
class _Item:
    """One entry of a field's list, with what every error about it must name."""

    kind: _FieldKind
    text: str
    position: int

    def _refuse(self, code: str, reason: str) -> Refusal:
        shown = self.text if len(self.text) <= 20 else self.text[:20] + "..."
        return Refusal(code, f"{self.kind.name} field, position {self.position}, '{shown}': {reason}.")

    def plain_values(self) -> set[int]:
        found = _ITEM.fullmatch(self.text)
        if found is None:
            raise self._refuse("invalid_syntax", self._reason_for_unreadable())
        if found["star"]:
            return set(range(self.kind.first, self.kind.last + 1, self._step(found["star_step"])))
        first, step = self._value(found["first"]), self._step(found["step"])
        if found["last"] is not None:
            return self._range(first, self._value(found["last"]), step)
        if found["step"] is not None:
            return set(range(self._cyclic(first), self.kind.last + 1, step))
        return {self._cyclic(first)}

    def _reason_for_unreadable(self) -> str:
        if not self.text:
            return "an empty entry in the list"
        if self.text.endswith("/"):
            return "the step is missing"
        if "L" in self.text or "W" in self.text or "#" in self.text:
            return "L, L-n, LW and nW belong in day-of-month, nL and n#k in day-of-week"
        return "not a value, a range or a step"

    def _range(self, first: int, last: int, step: int) -> set[int]:
        if first <= last:
            return {self._cyclic(value) for value in range(first, last + 1, step)}
        if not self.kind.wraps:
            raise self._refuse("empty_range", "the range ends before it begins")
        size = self.kind.size
        return {
            (value - self.kind.first) % size + self.kind.first
            for value in range(first, last + size + 1, step)
        }

    def _step(self, digits: str | None) -> int:
        step = 1 if digits is None else self._number(digits)
        if not 1 <= step <= self.kind.size:
            raise self._refuse("invalid_step", f"a step lies between 1 and {self.kind.size}")
        return step

    def _value(self, word: str) -> int:
        if not word.isdigit():
            return self._name(word)
        value = self._number(word)
        if not self.kind.first <= value <= self.kind.highest:
            raise self._refuse(
                "out_of_range", f"values lie between {self.kind.first} and {self.kind.highest}"
            )
        return value

    def _name(self, word: str) -> int:
        if word not in self.kind.names:
            known = f"use {', '.join(self.kind.names)}" if self.kind.names else "this field has no names"
            raise self._refuse("unknown_name", f"unknown name; {known}")
        return self.kind.names[word]

    def _cyclic(self, value: int) -> int:
        return 0 if value > self.kind.last else value

    def _number(self, digits: str) -> int:
        return int(digits[-9:]) if len(digits.lstrip("0")) <= 9 else 10**9

    def calendar_form(self) -> CalendarForm | None:
        if self.kind is _DAY_OF_MONTH:
            return self._day_form()
        if self.kind is _DAY_OF_WEEK:
            return self._weekday_form()
        return None

    def _day_form(self) -> CalendarForm | None:
        found = _DAY_FORM.fullmatch(self.text)
        if found is None:
            return None
        if found["day"] is not None:
            return _nearest_weekday(self._value(found["day"]))
        if found["last"] is None:
            return _nearest_weekday(None)
        before = self._number(found["before"] or "0")
        if before > 30:
            raise self._refuse("out_of_range", "L-n goes back at most 30 days")
        return _last_day(before)

    def _weekday_form(self) -> CalendarForm | None:
        found = _WEEKDAY_FORM.fullmatch(self.text)
        if found is None:
            return None
        weekday = self._cyclic(self._value(found["weekday"]))
        if found["last"]:
            return _last_weekday(weekday)
        nth = self._number(found["nth"])
        if not 1 <= nth <= 5:
            raise self._refuse("out_of_range", "n#k takes a k from 1 to 5")
        return _nth_weekday(weekday, nth)
