-- What was lost on the way, by the database clock alone.

-- name: dead_leases
-- Runs whose holder's session is over, or that no session holds, and those of which their endpoint was silent for
-- too long; the oldest first.
SELECT l.run_id, l.due_at, l.fence, o.schedule_id, o.overlap <> 'allow' AS slotted,
       r.mode = 'fixed_delay' AS fixed_delay, o.attempt_count - o.attempts_forgiven AS tries, r.retry, r.pause_after,
       coalesce(o.counts_from, o.due_at) + make_interval(secs => (r.retry->>'deadline_s')::float8) AS deadline_at,
       g.side_effects
FROM lease l
LEFT JOIN session s ON s.id = l.session_id
JOIN occurrence o ON o.due_at = l.due_at AND o.id = l.run_id
JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
JOIN target g ON g.id = r.target_id
WHERE CASE WHEN l.expires_at IS NOT NULL THEN l.expires_at <= clock_timestamp()
           ELSE s.id IS NULL OR s.expires_at <= clock_timestamp() END
ORDER BY l.granted_at
LIMIT %(limit)s

-- name: overdue_leases
-- Runs past their time limit and grace, and with `silent` those of jobs that promised to report and do not: threads
-- cannot be killed, their fences can. Those of dead sessions are left to the way back, which is limited. By two
-- indexes: the moment is read once, since a volatile bound would read all leases.
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), late AS (
    SELECT l.*, false AS is_silent FROM moment m JOIN lease l ON l.ends_by <= m.now
    UNION ALL
    SELECT l.*, true FROM moment m JOIN lease l ON l.silent_by <= m.now AND l.ends_by > m.now
    WHERE %(silent)s
)
SELECT l.run_id, l.due_at, l.fence, o.schedule_id, o.overlap <> 'allow' AS slotted,
       r.mode = 'fixed_delay' AS fixed_delay, o.attempt_count - o.attempts_forgiven AS tries, r.retry, r.pause_after,
       coalesce(o.counts_from, o.due_at) + make_interval(secs => (r.retry->>'deadline_s')::float8) AS deadline_at,
       g.side_effects, l.is_silent
FROM late l
CROSS JOIN moment m
LEFT JOIN session s ON s.id = l.session_id AND s.expires_at > m.now
JOIN occurrence o ON o.due_at = l.due_at AND o.id = l.run_id
JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
JOIN target g ON g.id = r.target_id
WHERE l.expires_at > m.now OR s.id IS NOT NULL
ORDER BY l.ends_by
LIMIT %(limit)s

-- name: look
-- When one of the sweeps last looked is on record, so that the gap of an outage shows also to a sweep that began
-- after it. The first look of all is no gap.
UPDATE sweep_turn t
SET looked_at = moment.now,
    held_until = CASE
        WHEN t.looked_at > '-infinity' AND t.looked_at < moment.now - make_interval(secs => %(gap_s)s)
        THEN moment.now + make_interval(secs => %(hold_s)s)
        ELSE t.held_until END
FROM (SELECT clock_timestamp() AS now) AS moment
RETURNING t.held_until > moment.now AS held, t.held_until = moment.now + make_interval(secs => %(hold_s)s) AS begins

-- name: take_turn
-- One sweep in each stretch of `wait_s` may put orphans back, however many there are. Whoever dies with the turn
-- loses nothing: it comes round again.
UPDATE sweep_turn t SET taken_at = moment.now
FROM (SELECT clock_timestamp() AS now) AS moment
WHERE t.taken_at <= moment.now - make_interval(secs => %(wait_s)s)
RETURNING t.taken_at

-- name: strain
-- What the breaker goes by, of workers. Busy is what live sessions hold: leases of dead ones occupy nobody, and
-- counted as busy they would keep the breaker open for ever. A session that was closed properly leaves no row.
SELECT coalesce(sum(s.capacity) FILTER (WHERE s.expires_at > moment.now), 0)::int AS capacity,
       coalesce(sum(held.leases) FILTER (WHERE s.expires_at > moment.now), 0)::int AS busy,
       count(*) FILTER (WHERE s.expires_at > moment.now) AS live,
       count(*) FILTER (WHERE s.expires_at <= moment.now) AS lost
FROM (SELECT clock_timestamp() AS now) AS moment
CROSS JOIN session s
CROSS JOIN LATERAL (SELECT count(*) AS leases FROM lease l WHERE l.session_id = s.id) AS held
WHERE s.kind = 'worker' AND s.expires_at > moment.now - make_interval(secs => %(window_s)s)

-- name: redispatch_unclaimed
-- QUEUED for longer than the grace, with no row on the agenda: the message was lost, or waits behind others.
-- While no live worker has had a free slot since its last renewal but one it is the latter, and another message
-- would only add to the pile.
WITH stuck AS (
    SELECT o.id, o.due_at
    FROM occurrence o
    WHERE o.state = 'QUEUED' AND o.queued_at < clock_timestamp() - make_interval(secs => %(grace_s)s)
      AND NOT EXISTS (SELECT FROM outbox b WHERE b.run_id = o.id)
      AND EXISTS (
          SELECT FROM session s
          WHERE s.kind = 'worker' AND s.expires_at > clock_timestamp() AND s.busy + s.prefetched < s.capacity)
    ORDER BY o.queued_at
    LIMIT %(limit)s
    FOR UPDATE OF o SKIP LOCKED
), moved AS (
    UPDATE occurrence o
    SET generation = o.generation + 1, queued_at = clock_timestamp()
    FROM stuck k
    WHERE o.due_at = k.due_at AND o.id = k.id AND o.state = 'QUEUED'
    RETURNING o.id, o.due_at, o.shard, o.generation
)
INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation)
SELECT clock_timestamp(), id, due_at, shard, generation FROM moved
ON CONFLICT DO NOTHING

-- name: rearm_without_waker
-- Nobody would ever look at these again. There is no such row unless something is wrong: an alert says so.
INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation)
SELECT clock_timestamp(), o.id, o.due_at, o.shard, o.generation + 1
FROM occurrence o
WHERE o.state IN ('PENDING', 'RETRY_WAIT', 'SUSPENDED')
  AND o.dispatch_at < clock_timestamp() - make_interval(secs => %(after_s)s)
  AND NOT EXISTS (SELECT FROM outbox b WHERE b.run_id = o.id)
ORDER BY o.dispatch_at
LIMIT %(limit)s
ON CONFLICT DO NOTHING
RETURNING run_id

-- name: make_partitions
SELECT fencepost_make_partitions(3)
