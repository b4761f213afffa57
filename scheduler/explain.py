"""Why a schedule did, did not, or will run at an instant: by the ledger, else by the revision in force."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from scheduler import queries
from scheduler.core.absence import is_due, why_not_due
from scheduler.core.identity import whole_millisecond
from scheduler.core.rest import Mode
from scheduler.core.states import State
from scheduler.core.triggers import Trigger, TriggerError, parse_trigger, trigger_of
from scheduler.models import Occurrence, PauseInterval, Schedule, ScheduleRevision, ScheduleState
from scheduler.orm import database_time


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """`reason`: `run`, `skipped`, `coalesced`, `planned`, `behind`, `paused`, `replaced`, `excluded`, `dst`,
    `out_of_bounds`, `not_due`, `before_creation`, `cancelled`, `limit`, `faulted`, `after_run` or
    `unaccounted`.

    `notes`: what clock, calendar or day rule did to an instant that is due.
    """

    at: datetime
    reason: str
    sentence: str
    revision: int | None = None
    run_id: UUID | None = None
    notes: tuple[str, ...] = ()


def explain(schedule: Schedule, at: datetime) -> Explanation:
    """The schedule was found for its tenant. `at` is taken to the whole millisecond, as due instants are."""
    at = whole_millisecond(at)
    run = _run_for(schedule, at)
    if run is not None and run.due_at == at:
        return _of_run(run, at)
    revision = _in_force(schedule, at)
    if revision is None:
        return _answer(at, "before_creation", "The schedule did not exist yet.")
    try:
        trigger = trigger_of(revision)
    except TriggerError as error:
        return _answer(at, "faulted", f"Its trigger cannot be read: {error}", revision)
    if run is not None and is_due(trigger, at):
        return _coalesced(run, at, trigger)
    return _of_definition(schedule, revision, trigger, at)


def _run_for(schedule: Schedule, at: datetime) -> Occurrence | None:
    """The run of this instant, or the one that stands for it among others."""
    runs = Occurrence.objects.filter(schedule=schedule)
    exact = runs.filter(due_at=at).order_by("-origin", "-revision")  # 'schedule' first, before a backfill
    nominal = exact.filter(origin="schedule").first()
    if nominal is not None:
        return nominal
    later = runs.filter(origin="schedule", due_at__gt=at, coalesced_from__lte=at)
    return exact.first() or later.order_by("due_at").first()


def _of_run(run: Occurrence, at: datetime) -> Explanation:
    skipped = run.state == State.SKIPPED
    sentence = queries.why(run)
    if run.coalesced > 1:
        sentence += f" It stands for {run.coalesced} instants from {_shown(run.coalesced_from)} on."
    return Explanation(
        at=at,
        reason="skipped" if skipped else "run",
        sentence=sentence,
        revision=run.revision,
        run_id=run.id,
    )


def _coalesced(run: Occurrence, at: datetime, trigger: Trigger) -> Explanation:
    verb = "left out together with" if run.state == State.SKIPPED else "coalesced into"
    sentence = (
        f"Missed, and {verb} the run of {_shown(run.due_at)}, which stands for {run.coalesced} instants."
    )
    return Explanation(
        at=at,
        reason="coalesced",
        sentence=sentence,
        revision=run.revision,
        run_id=run.id,
        notes=trigger.preview(at, 1)[0].notes,
    )


def _in_force(schedule: Schedule, at: datetime) -> ScheduleRevision | None:
    """The revision whose timeline `at` belongs to: of (effective_from, the next one's effective_from]."""
    return schedule.revisions.filter(effective_from__lt=at).order_by("-number").first()


def _of_definition(
    schedule: Schedule, revision: ScheduleRevision, trigger: Trigger, at: datetime
) -> Explanation:
    if revision.mode == Mode.FIXED_DELAY:
        return _after_run(schedule, revision, at)
    if not is_due(trigger, at):
        return _not_due(schedule, revision, trigger, at)
    reason, sentence = _of_due_instant(schedule, revision, at)
    return Explanation(
        at=at,
        reason=reason,
        sentence=sentence,
        revision=revision.number,
        notes=trigger.preview(at, 1)[0].notes,
    )


def _of_due_instant(schedule: Schedule, revision: ScheduleRevision, at: datetime) -> tuple[str, str]:
    """A due instant that no row speaks of."""
    pause = _pause_over(schedule, at)
    if pause is not None:
        until = f"until {_shown(pause.resumed_from)}" if pause.resumed_from else "and not resumed yet"
        note = f" ({pause.note})" if pause.note else ""
        return "paused", f"Paused by {pause.paused_by} from {_shown(pause.began_at)} {until}{note}."
    if schedule.rules_changed_at is not None and at <= schedule.rules_changed_at:
        return "not_due", "By the zone data of that time it was no due instant."
    if revision.ended_at is not None and at > revision.ended_at:
        return _after_the_end(schedule, revision)
    if schedule.state == ScheduleState.FAULTED:
        return "faulted", f"The schedule was set aside: {schedule.fault}"
    if schedule.next_due_at is not None and at >= schedule.next_due_at:
        return _ahead(at)
    if schedule.next_due_at is None and revision.max_occurrences is not None:
        return "limit", f"All {revision.max_occurrences} runs of max_occurrences are handed out."
    return "unaccounted", "No run and no reason is on record: run `manage.py verify`."


def _after_the_end(schedule: Schedule, revision: ScheduleRevision) -> tuple[str, str]:
    if schedule.state == ScheduleState.CANCELLED and revision.number == schedule.revision:
        return "cancelled", f"The schedule was cancelled at {_shown(revision.ended_at)}."
    return "limit", f"All {revision.max_occurrences} runs of max_occurrences were handed out."


def _ahead(at: datetime) -> tuple[str, str]:
    if at > database_time():
        return "planned", "It will run then, as the schedule stands."
    return "behind", "It is due; no tick has got to it yet."


def _pause_over(schedule: Schedule, at: datetime) -> PauseInterval | None:
    for pause in schedule.pauses.filter(began_at__lt=at).order_by("-began_at"):
        if pause.resumed_from is None or at <= pause.resumed_from:
            return pause
    return None


def _not_due(schedule: Schedule, revision: ScheduleRevision, trigger: Trigger, at: datetime) -> Explanation:
    earlier = schedule.revisions.filter(number=revision.number - 1).first()
    if earlier is not None and earlier.mode == Mode.FIXED_RATE and is_due(trigger_of(earlier), at):
        sentence = f"Revision {earlier.number} was due then; revision {revision.number} replaced it before."
        return _answer(at, "replaced", sentence, revision)
    why = why_not_due(trigger, parse_trigger(revision.trigger), at)
    return _answer(at, why.reason, why.sentence, revision)


def _after_run(schedule: Schedule, revision: ScheduleRevision, at: datetime) -> Explanation:
    if schedule.next_due_at == at:
        return _answer(at, *_ahead(at), revision)
    sentence = (
        "With a fixed delay each instant follows from the end of the run before; none fell on this one."
    )
    return _answer(at, "after_run", sentence, revision)


def _answer(
    at: datetime, reason: str, sentence: str, revision: ScheduleRevision | None = None
) -> Explanation:
    number = revision.number if revision else None
    return Explanation(at=at, reason=reason, sentence=sentence, revision=number)


def _shown(instant: datetime | None) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC" if instant else "an unknown time"
