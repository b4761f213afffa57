from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.identity import (
    NOMINAL,
    due_at_of,
    idempotency_key,
    run_id,
    shard_of,
    sub_key,
    whole_millisecond,
)

INSTANTS = st.integers(0, 7_258_118_400_000_000).map(
    lambda microseconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
)


@given(INSTANTS, st.binary(min_size=10, max_size=10))
def test_a_run_id_tells_its_due_instant(due_at: datetime, randomness: bytes) -> None:
    made = run_id(due_at, randomness)
    assert due_at_of(made) == whole_millisecond(due_at)
    assert (made.version, made.variant) == (7, "specified in RFC 4122")


@given(st.uuids())
def test_any_uuid_tells_some_instant(anything: UUID) -> None:
    assert due_at_of(anything).tzinfo is UTC


def test_shards_are_even_also_over_ids_made_at_one_time() -> None:
    due_at = datetime(2026, 1, 1, tzinfo=UTC)
    counts = Counter(shard_of(run_id(due_at, uuid4().bytes[:10])) for _ in range(25600))
    assert len(counts) == 256
    assert max(counts.values()) < 200


def test_keys_are_stable_and_differ_by_effect_and_run() -> None:
    due_at, schedule = datetime(2026, 1, 1, tzinfo=UTC), UUID(int=5)
    key = idempotency_key(due_at, schedule, 1, NOMINAL)
    assert key == idempotency_key(due_at, schedule, 1, NOMINAL)
    assert (
        len({key, idempotency_key(due_at, schedule, 2, NOMINAL), sub_key(key, "a"), sub_key(key, "b")}) == 4
    )
