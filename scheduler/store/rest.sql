-- Schedules at rest: active without a next instant, until a run of theirs has ended or is decided.

-- name: resting_schedules
-- Under lock, so that what is decided over them is still true when it is written. Taken after the run that
-- has ended, against the order of locks: therefore what others hold is passed over, and the sweep comes back
-- to it. Those whose last run is still under way are not looked at. `schedule_ids` null: whatever rests.
-- Served by the partial index schedule_resting.
SELECT s.id, r.effective_from, r.trigger, r.start_at, r.end_at, r.exclusions, r.on_excluded, r.calendars,
       r.mode, r.max_occurrences
FROM schedule s
JOIN schedule_revision r ON r.schedule_id = s.id AND r.number = s.revision
WHERE s.state = 'active' AND s.next_due_at IS NULL
  AND (%(schedule_ids)s::uuid[] IS NULL OR s.id = ANY(%(schedule_ids)s))
  AND NOT EXISTS (
      SELECT FROM occurrence o
      WHERE o.schedule_id = s.id AND o.due_at = s.last_due_at AND o.origin = 'schedule' AND o.finished_at IS NULL)
ORDER BY s.shard, s.id
LIMIT %(limit)s
FOR UPDATE OF s SKIP LOCKED

-- name: nominal_runs
-- What a locked schedule has run. A statement of its own after the lock, so that it sees what was ended while
-- the lock was waited for. The last run is the one by due instant: a fixed delay waits for that.
SELECT CASE WHEN %(counted)s THEN fencepost_counted_runs(%(schedule_id)s) ELSE 0 END AS counted,
       %(counted)s AND EXISTS (
           SELECT FROM occurrence o
           WHERE o.schedule_id = %(schedule_id)s AND o.origin = 'schedule'
             AND o.state IN ('PENDING', 'QUEUED')) AS undecided,
       latest.due_at AS last_due_at, latest.finished_at AS last_ended_at
FROM (SELECT 1) AS one
LEFT JOIN LATERAL (
    SELECT o.due_at, o.finished_at FROM occurrence o
    WHERE o.schedule_id = %(schedule_id)s AND o.origin = 'schedule'
    ORDER BY o.due_at DESC
    LIMIT 1
) AS latest ON true

-- name: aim
-- Out of rest: towards an instant, or to the end. The caller holds the rows locked.
UPDATE schedule s
SET next_due_at = a.next_due_at, state = CASE WHEN a.next_due_at IS NULL THEN 'completed' ELSE s.state END
FROM unnest(%(schedule_ids)s::uuid[], %(next)s::timestamptz[]) AS a(schedule_id, next_due_at)
WHERE s.id = a.schedule_id AND s.state = 'active' AND s.next_due_at IS NULL
