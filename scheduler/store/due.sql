-- Schedules whose next instant has come near, and the rows their instants become.

-- name: due_schedules
-- The batch of a tick, earliest first. Reads without locks: `materialise` compares before it acts.
-- Served by the partial index schedule_due (shard, next_due_at).
SELECT s.id, s.tenant_id, s.shard, s.revision, s.next_due_at,
       r.trigger, r.start_at, r.end_at, r.exclusions, r.on_excluded, r.calendars, r.mode, r.max_occurrences,
       CASE WHEN r.max_occurrences IS NOT NULL THEN fencepost_counted_runs(s.id) END AS counted_runs,
       s.counted_runs AS kept_runs,
       r.flexible_window_s, r.catch_up, r.catch_up_limit, r.catch_up_window_s, r.catch_up_after_s, r.overlap
FROM schedule s
JOIN schedule_revision r ON r.schedule_id = s.id AND r.number = s.revision
WHERE s.state = 'active'
  AND s.next_due_at <= %(horizon)s
  AND s.shard = ANY(%(shards)s)
ORDER BY s.next_due_at
LIMIT %(limit)s

-- name: due_schedule
-- The same for one schedule, whose row the caller has locked, whatever its next instant.
SELECT s.id, s.tenant_id, s.shard, s.revision, s.next_due_at,
       r.trigger, r.start_at, r.end_at, r.exclusions, r.on_excluded, r.calendars, r.mode, r.max_occurrences,
       CASE WHEN r.max_occurrences IS NOT NULL THEN fencepost_counted_runs(s.id) END AS counted_runs,
       s.counted_runs AS kept_runs,
       r.flexible_window_s, r.catch_up, r.catch_up_limit, r.catch_up_window_s, r.catch_up_after_s, r.overlap
FROM schedule s
JOIN schedule_revision r ON r.schedule_id = s.id AND r.number = s.revision
WHERE s.id = %(schedule_id)s AND s.state = 'active' AND s.next_due_at IS NOT NULL

-- name: next_wake
-- The earliest instant any owned schedule asks for; null when nothing is planned.
SELECT min(s.next_due_at)
FROM schedule s
WHERE s.state = 'active' AND s.next_due_at IS NOT NULL AND s.shard = ANY(%(shards)s)

-- name: lock_schedules
-- In id order, and passing over what others hold: an edit, or `apply` with many of them, is not waited for.
SELECT id FROM schedule WHERE id = ANY(%(schedule_ids)s) ORDER BY id FOR UPDATE SKIP LOCKED

-- name: keep_counts
-- Of locked schedules: a run that has begun, or has ended, counts for good. Up to the first that may still be
-- skipped, and to now. From then on only what is later is counted anew, and older rows may go.
WITH decided AS (
    SELECT s.id, max(o.due_at) AS until, count(*) FILTER (WHERE o.state <> 'SKIPPED') AS runs
    FROM schedule s
    CROSS JOIN LATERAL (
        SELECT min(u.due_at) AS due_at FROM occurrence u
        WHERE u.schedule_id = s.id AND u.origin = 'schedule' AND u.state IN ('PENDING', 'QUEUED')
          AND u.due_at > coalesce(s.counted_until, '-infinity')) AS undecided
    JOIN occurrence o ON o.schedule_id = s.id AND o.origin = 'schedule'
        AND o.due_at > coalesce(s.counted_until, '-infinity')
        AND o.due_at < coalesce(undecided.due_at, 'infinity') AND o.due_at <= %(now)s
    WHERE s.id = ANY(%(schedule_ids)s)
    GROUP BY s.id
)
UPDATE schedule s SET counted_runs = s.counted_runs + d.runs, counted_until = d.until
FROM decided d WHERE s.id = d.id

-- name: materialise
-- Rows come only out of the schedules that this statement itself moved: of two ticks that read the same
-- instant, the second waits for the first's row lock, re-checks next_due_at and moves nothing.
-- The unique identity stands behind it, should an instant be met again.
WITH move AS (
    SELECT * FROM unnest(
        %(schedule_ids)b::uuid[], %(revisions)b::int[], %(expected)b::timestamptz[], %(next)b::timestamptz[],
        %(last)b::timestamptz[], %(rests)b::boolean[]
    ) AS m(schedule_id, revision, expected, next_due_at, last_due_at, rests)
), moved AS (
    UPDATE schedule s
    SET next_due_at = m.next_due_at,
        last_due_at = greatest(s.last_due_at, m.last_due_at),
        state = CASE WHEN m.next_due_at IS NULL AND NOT m.rests THEN 'completed' ELSE s.state END
    FROM move m
    WHERE s.id = m.schedule_id AND s.state = 'active'
      AND s.revision = m.revision AND s.next_due_at = m.expected
    RETURNING s.id, s.tenant_id, s.shard, s.revision
), planned AS (
    SELECT * FROM unnest(
        %(row_schedule_ids)b::uuid[], %(ids)b::uuid[], %(due)b::timestamptz[], %(dispatch)b::timestamptz[],
        %(skips)b::text[], %(overdue)b::boolean[], %(coalesced)b::int[], %(coalesced_from)b::timestamptz[],
        %(overlaps)b::text[]
    ) AS p(schedule_id, id, due_at, dispatch_at, skip_reason, overdue, coalesced, coalesced_from, overlap)
), inserted AS (
    INSERT INTO occurrence (
        id, due_at, schedule_id, revision, origin, tenant_id, shard, overlap, state, wait_reason, skip_reason,
        dispatch_at, overdue, coalesced, coalesced_from, created_at, finished_at, tzdata_version)
    SELECT p.id, p.due_at, p.schedule_id, m.revision, 'schedule', m.tenant_id, m.shard, p.overlap,
           CASE WHEN p.skip_reason IS NULL THEN 'PENDING' ELSE 'SKIPPED' END,
           CASE WHEN p.skip_reason IS NULL THEN 'due' END,
           p.skip_reason, p.dispatch_at, p.overdue, p.coalesced, p.coalesced_from, %(now)s::timestamptz,
           CASE WHEN p.skip_reason IS NOT NULL THEN %(now)s::timestamptz END, %(tzdata)s
    FROM planned p
    JOIN moved m ON m.id = p.schedule_id
    ORDER BY p.due_at, p.id
    ON CONFLICT DO NOTHING
    RETURNING id, due_at, shard, state, dispatch_at
), announced AS (
    INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation)
    SELECT i.dispatch_at, i.id, i.due_at, i.shard, 1
    FROM inserted i
    WHERE i.state = 'PENDING'
    ORDER BY i.dispatch_at
)
SELECT (SELECT coalesce(array_agg(id), '{}') FROM moved) AS moved, (SELECT count(*) FROM inserted) AS inserted

-- name: make_slots
-- Slot rows of schedules that are not `allow`. Made with the schedule; repeated here for those edited to need one.
INSERT INTO overlap_slot (schedule_id)
SELECT unnest(%(schedule_ids)s::uuid[])
ON CONFLICT DO NOTHING

-- name: fault_schedule
-- Poison: a stored trigger that cannot be read is set aside, the round goes on.
UPDATE schedule SET state = 'faulted', fault = %(fault)s, updated_at = %(now)s
WHERE id = %(schedule_id)s AND revision = %(revision)s AND state = 'active'
RETURNING id

-- name: request_run
-- A run that somebody asked for, due now or later, with a payload of its own where code asked.
WITH inserted AS (
    INSERT INTO occurrence (
        id, due_at, schedule_id, revision, origin, origin_key, tenant_id, shard, overlap, state, wait_reason,
        dispatch_at, created_at, tzdata_version, payload)
    SELECT %(id)s, %(due_at)s, s.id, s.revision, 'trigger', %(origin_key)s, s.tenant_id, s.shard, %(overlap)s,
           'PENDING', 'due', %(due_at)s, %(now)s, %(tzdata)s, %(payload)s::jsonb
    FROM schedule s
    WHERE s.id = %(schedule_id)s
    RETURNING id, due_at, shard
), announced AS (
    INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation)
    SELECT due_at, id, due_at, shard, 1 FROM inserted
)
SELECT id FROM inserted
