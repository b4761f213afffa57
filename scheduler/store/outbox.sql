-- The agenda. A row says: at dispatch_at somebody must look at this run, at this generation of it.
-- PENDING and RETRY_WAIT are released into QUEUED by the row whose generation is one ahead; a QUEUED run is
-- published by the row with its own generation, which stands until the broker has confirmed.

-- name: due_rows
-- What is due, earliest first, with the run as it stands. No locks: they are taken in their order below.
SELECT b.id, b.dispatch_at, b.run_id, b.due_at, b.generation, b.tries, o.schedule_id, o.overlap <> 'allow' AS slotted
FROM outbox b
LEFT JOIN occurrence o ON o.due_at = b.due_at AND o.id = b.run_id
WHERE b.dispatch_at <= clock_timestamp() AND b.shard = ANY(%(shards)s)
ORDER BY b.dispatch_at, b.id
LIMIT %(limit)s

-- name: late_siblings
-- Rows of schedules that were found late: all that waited for nothing but their time belong to one catch-up.
SELECT b.id, b.dispatch_at, b.run_id, b.due_at, b.generation, b.tries, o.schedule_id, o.overlap <> 'allow' AS slotted
FROM occurrence o
JOIN outbox b ON b.run_id = o.id AND b.due_at = o.due_at
WHERE o.schedule_id = ANY(%(schedule_ids)s) AND o.state = 'PENDING' AND o.wait_reason = 'due'
  AND o.origin = 'schedule' AND o.dispatch_at <= %(now)s

-- name: lock_slots_free_of_waiting
-- A slot that somebody holds locked is looked at in the next round, not waited for.
SELECT schedule_id FROM overlap_slot
WHERE schedule_id = ANY(%(schedule_ids)s)
ORDER BY schedule_id
FOR UPDATE SKIP LOCKED

-- name: slots
-- Locked slots with their holder and their queue. A statement of its own after the lock: its snapshot has
-- what was parked or freed while the lock was waited for. Served by occurrence_parked.
SELECT t.schedule_id, t.run_id AS holder, t.due_at AS holder_due_at,
       coalesce((h.overdue OR h.counts_from IS NOT NULL) AND h.overlap = 'buffer_all', false) AS holder_is_promised,
       queue.parked, queue.first_parked, queue.replaceable
FROM overlap_slot t
LEFT JOIN occurrence h ON h.due_at = t.due_at AND h.id = t.run_id
CROSS JOIN LATERAL (
    SELECT count(*) AS parked, (array_agg(o.id ORDER BY o.due_at, o.id))[1] AS first_parked,
           (array_agg(o.id ORDER BY o.due_at, o.id) FILTER (
               WHERE o.overlap IN ('buffer_one', 'cancel_running')))[1] AS replaceable
    FROM occurrence o
    WHERE o.schedule_id = t.schedule_id AND o.state = 'PENDING' AND o.wait_reason = 'overlap'
) AS queue
WHERE t.schedule_id = ANY(%(schedule_ids)s)

-- name: rows_of_parked
-- Agenda rows of parked runs that a newer one may displace.
SELECT b.id, b.dispatch_at, b.run_id, b.due_at, b.generation, b.tries, o.schedule_id, o.overlap <> 'allow' AS slotted
FROM unnest(%(run_ids)s::uuid[]) AS w(run_id)
JOIN outbox b ON b.run_id = w.run_id
JOIN occurrence o ON o.due_at = b.due_at AND o.id = b.run_id

-- name: lock_candidates
-- The runs as they are now, under lock; those locked by others wait for the next round.
SELECT o.id AS run_id, o.due_at, o.state, o.generation, o.dispatch_at, o.schedule_id, o.overlap, o.origin,
       o.wait_reason, o.overdue, r.target_name AS target, g.kind,
       coalesce(lower(substring(g.url FROM '^https?://([^/?#]+)')), '') AS endpoint,
       r.catch_up, r.catch_up_limit, r.catch_up_window_s, r.catch_up_after_s, r.priority,
       o.counts_from IS NOT NULL AS asked_anew, o.started_at IS NOT NULL AS started, r.schedule_to_start_s,
       -- Catch-up and backfill are bounded where they are made, redrives by people: the buffer takes all of them.
       CASE WHEN o.overdue OR o.counts_from IS NOT NULL THEN 1000000 ELSE r.buffer_limit END AS buffer_limit
FROM unnest(%(run_ids)b::uuid[], %(due)b::timestamptz[]) AS w(run_id, due_at)
JOIN occurrence o ON o.due_at = w.due_at AND o.id = w.run_id
JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
JOIN target g ON g.id = r.target_id
ORDER BY o.id
FOR UPDATE OF o SKIP LOCKED

-- name: release
-- The states move only where the row on the agenda is still there and still one ahead.
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), verdict AS (
    SELECT * FROM unnest(
        %(ids)b::bigint[], %(at)b::timestamptz[], %(run_ids)b::uuid[], %(due)b::timestamptz[],
        %(verdicts)b::text[], %(reasons)b::text[], %(overdue)b::boolean[], %(overlaps)b::text[],
        %(look_by)b::timestamptz[]
    ) AS v(id, dispatch_at, run_id, due_at, verdict, reason, overdue, overlap, look_by)
), dropped AS (
    DELETE FROM outbox b USING verdict v
    WHERE b.dispatch_at = v.dispatch_at AND b.id = v.id AND v.verdict IN ('drop', 'skip')
    RETURNING b.run_id
), standing AS (
    -- Until the broker confirms, the row stands for a relay that takes over: it looks again by then.
    UPDATE outbox b SET dispatch_at = m.now + make_interval(secs => %(republish_s)s), tries = b.tries + 1
    FROM verdict v, moment m
    WHERE b.dispatch_at = v.dispatch_at AND b.id = v.id AND v.verdict IN ('queue', 'publish')
    RETURNING b.run_id, b.due_at, b.generation, v.verdict, v.overdue, v.overlap
), waiting AS (
    UPDATE outbox b SET dispatch_at = least(m.now + make_interval(secs => %(recheck_s)s), v.look_by)
    FROM verdict v, moment m
    WHERE b.dispatch_at = v.dispatch_at AND b.id = v.id AND v.verdict = 'park'
    RETURNING b.run_id, b.due_at, v.overdue, v.overlap
), parked AS (
    -- A missed run that is promised keeps that on its row: what comes later neither displaces nor stops it.
    UPDATE occurrence o SET wait_reason = 'overlap', overdue = w.overdue, overlap = w.overlap
    FROM waiting w
    WHERE o.due_at = w.due_at AND o.id = w.run_id AND o.state = 'PENDING' AND o.wait_reason <> 'overlap'
), queued AS (
    UPDATE occurrence o
    SET state = 'QUEUED', wait_reason = NULL, generation = s.generation, queued_at = m.now,
        overdue = s.overdue, overlap = s.overlap
    FROM standing s, moment m
    WHERE s.verdict = 'queue' AND o.due_at = s.due_at AND o.id = s.run_id
      AND o.state IN ('PENDING', 'RETRY_WAIT', 'SUSPENDED') AND o.generation + 1 = s.generation
      AND o.dispatch_at <= m.now
    RETURNING o.id, o.due_at, o.schedule_id, o.overlap
), occupied AS (
    UPDATE overlap_slot t SET run_id = q.id, due_at = q.due_at
    FROM queued q WHERE q.overlap <> 'allow' AND t.schedule_id = q.schedule_id AND t.run_id IS DISTINCT FROM q.id
), skipped AS (
    UPDATE occurrence o
    SET state = 'SKIPPED', skip_reason = v.reason, wait_reason = NULL, finished_at = m.now
    FROM verdict v JOIN dropped d ON d.run_id = v.run_id CROSS JOIN moment m
    WHERE v.verdict = 'skip' AND o.due_at = v.due_at AND o.id = v.run_id AND o.state = 'PENDING'
    RETURNING o.schedule_id, o.skip_reason, o.overlap
), woken AS (
    -- One that has expired may have been next in line, and woken for that: whoever is next now is not in this
    -- batch. Woken at a slot that is taken, it waits again.
    UPDATE outbox b SET dispatch_at = m.now
    FROM moment m, (
        SELECT DISTINCT schedule_id FROM skipped WHERE skip_reason = 'expired' AND overlap <> 'allow') AS left_line
    CROSS JOIN LATERAL (
        SELECT o.id FROM occurrence o
        WHERE o.schedule_id = left_line.schedule_id AND o.state = 'PENDING' AND o.wait_reason = 'overlap'
          AND o.id NOT IN (SELECT run_id FROM verdict)
        ORDER BY o.due_at, o.id
        LIMIT 1) AS next
    WHERE b.run_id = next.id
)
SELECT s.run_id, s.due_at, s.generation, s.verdict = 'queue' AS queued
FROM standing s
WHERE s.verdict = 'publish' OR s.run_id IN (SELECT id FROM queued)

-- name: confirmed
DELETE FROM outbox b
USING unnest(%(run_ids)s::uuid[], %(generations)s::int[]) AS c(run_id, generation)
WHERE b.run_id = c.run_id AND b.generation = c.generation

-- name: unconfirmed
-- Not published for certain: tried again after a pause that grows with the tries, never forgotten.
UPDATE outbox b
SET dispatch_at = clock_timestamp() + make_interval(secs => least(10, 0.2 * 2 ^ least(b.tries, 6)))
FROM unnest(%(run_ids)s::uuid[], %(generations)s::int[]) AS c(run_id, generation)
WHERE b.run_id = c.run_id AND b.generation = c.generation

-- name: next_dispatch
-- Seconds until the next row is due, by the database clock; null: nothing on the agenda.
SELECT extract(epoch FROM min(b.dispatch_at) - clock_timestamp())::float8
FROM outbox b WHERE b.shard = ANY(%(shards)s)
