from scheduler.models.definitions import (
    Calendar,
    CatchUp,
    Mode,
    OnExcluded,
    Overlap,
    PauseInterval,
    Schedule,
    ScheduleRevision,
    ScheduleState,
    SideEffects,
    Target,
    TargetKind,
)
from scheduler.models.ledger import Attempt, Occurrence, Session, ShardLease

__all__ = [
    "Attempt",
    "Calendar",
    "CatchUp",
    "Mode",
    "Occurrence",
    "OnExcluded",
    "Overlap",
    "PauseInterval",
    "Schedule",
    "ScheduleRevision",
    "ScheduleState",
    "Session",
    "ShardLease",
    "SideEffects",
    "Target",
    "TargetKind",
]
