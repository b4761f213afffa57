-- What edits, pauses, cancellations and requests of people do to the ledger. The caller has locked the
-- schedule's row in a statement of its own: whatever a tick wrote before is visible to what follows.

-- name: lock_look_ahead
-- Instants that lie ahead and that nobody has seen. A row that a release holds is waited for; if it comes back
-- QUEUED it is no longer ours to withdraw. Served by occurrence_by_schedule.
SELECT o.due_at, o.id
FROM occurrence o
WHERE o.schedule_id = %(schedule_id)s AND o.due_at > %(now)s
  AND o.origin = 'schedule' AND o.state = 'PENDING'
ORDER BY o.id
FOR UPDATE

-- name: withdraw
-- Rows locked above, deleted as if they had never been made. A statement of its own: its snapshot shows
-- the agenda as the release we waited for has left it.
WITH withdrawn AS (
    DELETE FROM occurrence o
    USING unnest(%(run_ids)s::uuid[], %(due)s::timestamptz[]) AS w(run_id, due_at)
    WHERE o.due_at = w.due_at AND o.id = w.run_id AND o.state = 'PENDING'
    RETURNING o.id
)
DELETE FROM outbox b USING withdrawn w WHERE b.run_id = w.id

-- name: last_nominal
-- The latest instant of a schedule that has a row; null when it never had one. A run that was called off before
-- it was due does not count: instants that lie before it were withdrawn, and must be met again.
SELECT o.due_at
FROM occurrence o
WHERE o.schedule_id = %(schedule_id)s AND o.origin = 'schedule'
  AND NOT (o.state = 'CANCELLED' AND o.due_at > %(now)s)
ORDER BY o.due_at DESC
LIMIT 1

-- name: keep_called_off
-- What was called off before it was due stays so under the next revision: as a row of that revision it keeps its
-- instant from being met again.
UPDATE occurrence o
SET revision = %(revision)s
WHERE o.schedule_id = %(schedule_id)s AND o.due_at > %(effective_from)s
  AND o.origin = 'schedule' AND o.state = 'CANCELLED'

-- name: hold_on_request
-- The schedule that holds a tenant's runs on request of one target, kept from being deleted or edited until the
-- caller's transaction ends. Shared: two long transactions that ask for runs do not wait for each other.
SELECT s.id FROM schedule s
WHERE s.tenant_id = %(tenant_id)s AND s.on_request_of_id = %(target_id)s AND s.state <> 'cancelled'
FOR KEY SHARE

-- name: lock_request
-- Two transactions that ask under one key: the second waits until the first one's run is visible, or gone.
SELECT pg_advisory_xact_lock(hashtextextended(%(schedule_id)s::text || %(origin_key)s::text, 0))

-- name: lock_slot
SELECT FROM overlap_slot WHERE schedule_id = %(schedule_id)s FOR UPDATE

-- name: lock_run
SELECT FROM occurrence WHERE due_at = %(due_at)s AND id = %(id)s FOR UPDATE

-- name: lock_unfinished
-- All runs of a schedule that have not ended, of any origin. Reads the schedule's history once: deleting is rare.
SELECT o.due_at, o.id
FROM occurrence o
WHERE o.schedule_id = %(schedule_id)s AND o.state IN ('PENDING', 'QUEUED', 'RUNNING', 'RETRY_WAIT', 'SUSPENDED')
ORDER BY o.id
FOR UPDATE

-- name: cancel
-- Runs that the caller has locked, their slot before them: those that wait end here, those that run are asked
-- to stop, those that are over stay as they are. One row of the answer for each that was touched.
WITH wanted AS (
    SELECT * FROM unnest(%(run_ids)s::uuid[], %(due)s::timestamptz[]) AS w(run_id, due_at)
), touched AS (
    UPDATE occurrence o
    SET state = CASE WHEN o.state = 'RUNNING' THEN o.state ELSE 'CANCELLED' END,
        wait_reason = NULL,
        finished_at = CASE WHEN o.state = 'RUNNING' THEN o.finished_at ELSE %(now)s END,
        cancel_requested_at = coalesce(o.cancel_requested_at, %(now)s)
    FROM wanted w
    WHERE o.due_at = w.due_at AND o.id = w.run_id
      AND o.state IN ('PENDING', 'QUEUED', 'RUNNING', 'RETRY_WAIT', 'SUSPENDED')
    RETURNING o.id, o.due_at, o.state, o.schedule_id, o.revision
), asked AS (
    -- An endpoint that has accepted the run learns it by its next heartbeat; nobody can end it but the sweep.
    UPDATE lease l SET ends_by = least(l.ends_by, %(now)s + make_interval(secs => r.cancel_grace_s))
    FROM touched t JOIN schedule_revision r ON r.schedule_id = t.schedule_id AND r.number = t.revision
    WHERE l.run_id = t.id AND t.state = 'RUNNING' AND l.expires_at IS NOT NULL
), agenda AS (
    DELETE FROM outbox b USING touched t WHERE b.run_id = t.id AND t.state = 'CANCELLED'
), freed AS (
    UPDATE overlap_slot s SET run_id = NULL, due_at = NULL
    FROM touched t WHERE s.run_id = t.id AND t.state = 'CANCELLED'
    RETURNING s.schedule_id
), woken AS (
    UPDATE outbox b SET dispatch_at = %(now)s
    FROM freed f
    CROSS JOIN LATERAL (
        SELECT o.id FROM occurrence o
        WHERE o.schedule_id = f.schedule_id AND o.state = 'PENDING' AND o.wait_reason = 'overlap'
          AND o.id NOT IN (SELECT id FROM touched)
        ORDER BY o.due_at, o.id
        LIMIT 1) AS next
    WHERE b.run_id = next.id
)
SELECT id, state FROM touched

-- name: redrive
-- A locked run that has failed for good waits again, for its release like any other: the same run with the same
-- key, a whole budget of attempts and a whole deadline. A person has asked for it: at a slot that is taken it waits,
-- whatever its schedule's policy.
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), redriven AS (
    UPDATE occurrence o
    SET state = 'PENDING', wait_reason = 'due', dispatch_at = m.now, attempts_forgiven = o.attempt_count,
        counts_from = m.now, overlap = CASE WHEN o.overlap = 'allow' THEN o.overlap ELSE 'buffer_all' END,
        finished_at = NULL, dismissed_at = NULL, reconciled_at = NULL, cancel_requested_at = NULL,
        dead_letter_reason = NULL, result = NULL, error = NULL
    FROM moment m
    WHERE o.due_at = %(due_at)s AND o.id = %(id)s AND o.state IN ('FAILED', 'DEAD_LETTERED')
    RETURNING o.id, o.due_at, o.shard, o.dispatch_at, o.generation
)
INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation)
SELECT dispatch_at, id, due_at, shard, generation + 1 FROM redriven
RETURNING run_id

-- name: reconcile
-- A locked run of which nobody knew how it ended: a person, or its job's hook, says it. One that is to be tried again is not over: it
-- keeps its slot, and has a whole budget of attempts.
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now, %(state)s::text AS state, %(state)s::text = 'PENDING' AS again
), told AS (
    UPDATE occurrence o
    SET state = m.state,
        finished_at = CASE WHEN NOT m.again THEN m.now END,
        reconciled_at = CASE WHEN NOT m.again THEN m.now END,
        wait_reason = CASE WHEN m.again THEN 'due' END,
        dispatch_at = CASE WHEN m.again THEN m.now ELSE o.dispatch_at END,
        attempts_forgiven = CASE WHEN m.again THEN o.attempt_count ELSE o.attempts_forgiven END,
        counts_from = CASE WHEN m.again THEN m.now ELSE o.counts_from END,
        cancel_requested_at = CASE WHEN NOT m.again THEN o.cancel_requested_at END,
        error = CASE WHEN m.state = 'FAILED' THEN o.error END
    FROM moment m
    WHERE o.due_at = %(due_at)s AND o.id = %(id)s AND o.state = 'UNKNOWN'
      AND (%(fence)s::bigint IS NULL OR o.fence = %(fence)s)
    RETURNING o.id, o.due_at, o.shard, o.dispatch_at, o.generation, o.state
), agenda AS (
    INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation)
    SELECT dispatch_at, id, due_at, shard, generation + 1 FROM told WHERE state = 'PENDING'
)
SELECT id FROM told

-- name: dismiss
UPDATE occurrence o SET dismissed_at = clock_timestamp()
WHERE o.due_at = %(due_at)s AND o.id = %(id)s AND o.state IN ('FAILED', 'DEAD_LETTERED')
  AND o.dismissed_at IS NULL
RETURNING o.id

-- name: requested
-- The run that this request has asked for before. Bounded in time, for origin_key has no index of its own.
SELECT o.id, o.due_at, o.payload
FROM occurrence o
WHERE o.schedule_id = %(schedule_id)s AND o.due_at > %(since)s
  AND o.origin = 'trigger' AND o.origin_key = %(origin_key)s

-- name: counts_by_state
-- Of the latest runs of each schedule, so that a long history costs no more than a short one.
SELECT w.schedule_id, latest.state, count(*) AS runs
FROM unnest(%(schedule_ids)s::uuid[]) AS w(schedule_id)
CROSS JOIN LATERAL (
    SELECT o.state FROM occurrence o
    WHERE o.schedule_id = w.schedule_id
    ORDER BY o.due_at DESC, o.id DESC
    LIMIT %(latest)s
) AS latest
GROUP BY w.schedule_id, latest.state

-- name: last_runs
-- For each schedule its latest run that has come due.
SELECT latest.due_at, latest.id
FROM unnest(%(schedule_ids)s::uuid[]) AS w(schedule_id)
CROSS JOIN LATERAL (
    SELECT o.due_at, o.id FROM occurrence o
    WHERE o.schedule_id = w.schedule_id AND o.due_at <= %(now)s
    ORDER BY o.due_at DESC, o.id DESC
    LIMIT 1
) AS latest

-- name: readiness
-- How the machine is, in one row. A shard that no tick ever took counts as without owner since ever. The oldest
-- due age looks at the agenda and, shard by shard through schedule_due, at instants that no tick has met.
SELECT
    (SELECT count(*) FROM session s WHERE s.kind = 'tick' AND s.expires_at > moment.now) AS ticks,
    %(shards)s - count(l.shard) FILTER (WHERE l.owner IS NOT NULL AND l.expires_at > moment.now) AS shards_unowned,
    %(shards)s - count(l.shard) FILTER (
        WHERE l.expires_at > moment.now - make_interval(secs => %(patience_s)s)) AS shards_forsaken,
    greatest(0, extract(epoch FROM moment.now - least(
        (SELECT min(b.dispatch_at) FROM outbox b),
        (SELECT min(first.next_due_at)
         FROM generate_series(0, %(shards)s - 1) AS shard(number)
         CROSS JOIN LATERAL (
             SELECT c.next_due_at FROM schedule c
             WHERE c.shard = shard.number AND c.state = 'active' AND c.next_due_at IS NOT NULL
             ORDER BY c.next_due_at
             LIMIT 1
         ) AS first)
    )))::float8 AS oldest_due_age_s
FROM (SELECT clock_timestamp() AS now) AS moment
LEFT JOIN shard_lease l ON l.kind = 'tick' AND l.shard < %(shards)s
GROUP BY moment.now
