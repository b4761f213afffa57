-- Runs that an HTTP endpoint has accepted (202) and will end by itself. Their lease is held by no session: it has
-- an expiry of its own, renewed by the endpoint's heartbeats. The caller has locked the runs.

-- name: hand_over
-- From the worker's session to the endpoint, by the fence that the call carried. Not a new fence: the endpoint was
-- told this one. One that promises no heartbeats holds its run as long as the attempt may take. A run that was to
-- stop before has its grace from here on.
UPDATE lease l
SET session_id = '00000000-0000-0000-0000-000000000000',
    expires_at = coalesce(m.now + make_interval(secs => r.heartbeat_timeout_s), 'infinity'),
    ends_by = CASE WHEN o.cancel_requested_at IS NULL THEN l.ends_by
                   ELSE least(l.ends_by, m.now + make_interval(secs => r.cancel_grace_s)) END
FROM (SELECT clock_timestamp() AS now) AS m,
     unnest(%(run_ids)s::uuid[], %(due)s::timestamptz[], %(fences)s::bigint[]) AS w(run_id, due_at, fence)
JOIN occurrence o ON o.due_at = w.due_at AND o.id = w.run_id
JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
WHERE l.run_id = w.run_id AND l.fence = w.fence AND o.state = 'RUNNING'
RETURNING l.fence

-- name: reported
-- Fences under which the endpoint has ended the attempt already: it was faster than the answer that announced it.
SELECT a.fence
FROM unnest(%(run_ids)s::uuid[], %(due)s::timestamptz[], %(fences)s::bigint[]) AS w(run_id, due_at, fence)
JOIN attempt a ON a.due_at = w.due_at AND a.run_id = w.run_id AND a.fence = w.fence
WHERE a.outcome NOT IN ('lost', 'timed_out')

-- name: heartbeat
-- Renewed also when it has expired: the lease is the endpoint's until the sweep has ended it. Before the worker has
-- handed it over there is nothing to renew, and the progress is kept all the same.
WITH renewed AS (
    UPDATE lease l
    SET expires_at = CASE WHEN l.expires_at IS NOT NULL
        THEN coalesce(clock_timestamp() + make_interval(secs => r.heartbeat_timeout_s), 'infinity') END
    FROM occurrence o
    JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
    WHERE o.due_at = %(due_at)s AND o.id = %(run_id)s AND l.run_id = o.id AND l.fence = %(fence)s
    RETURNING l.run_id, nullif(l.expires_at, 'infinity') AS expires_at, l.ends_by
)
UPDATE occurrence o
SET progress = CASE WHEN %(progress)s::jsonb = '{}'::jsonb THEN o.progress
                    ELSE coalesce(o.progress, '{}'::jsonb) || %(progress)s::jsonb END
FROM renewed n
WHERE o.due_at = %(due_at)s AND o.id = n.run_id AND o.state = 'RUNNING' AND o.fence = %(fence)s
RETURNING n.expires_at, n.ends_by, o.cancel_requested_at IS NOT NULL AS cancel_requested

-- name: park
-- The worker has no call to spare for the endpoint of these runs. They go back to waiting, keep their slot, and are
-- released again after a pause that grows with each time: releases beyond the attempts that came of them.
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), parked AS (
    UPDATE occurrence o
    SET state = 'PENDING', wait_reason = 'endpoint_busy',
        dispatch_at = m.now + make_interval(secs => (0.5 + w.jitter / 2) * least(
            %(most_s)s, %(least_s)s * 2 ^ least(greatest(o.generation - 1 - o.attempt_count, 0), 10)))
    FROM moment m,
         unnest(%(run_ids)s::uuid[], %(due)s::timestamptz[], %(generations)s::int[], %(jitters)s::float8[])
             AS w(run_id, due_at, generation, jitter)
    WHERE o.due_at = w.due_at AND o.id = w.run_id AND o.state = 'QUEUED' AND o.generation = w.generation
    RETURNING o.id, o.due_at, o.shard, o.dispatch_at, o.generation
)
INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation)
SELECT dispatch_at, id, due_at, shard, generation + 1 FROM parked
RETURNING run_id
