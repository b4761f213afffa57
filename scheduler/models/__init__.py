from scheduler.models.definitions import (
    CatchUp,
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
    "CatchUp",
    "Occurrence",
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
