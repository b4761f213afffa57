-- Sessions: a process says that it lives. Leases are held by sessions, so that a renewal is one small row
-- however many runs the process holds.

-- name: open_session
INSERT INTO session (id, kind, worker, capacity, started_at, renewed_at, expires_at)
SELECT %(id)s, %(kind)s, %(worker)s, %(capacity)s, now, now, now + make_interval(secs => %(length_s)s)
FROM (SELECT clock_timestamp() AS now) AS moment

-- name: renew_session
-- Also when it has expired: its leases are its own until the sweep has ended them, one by one, and the renewal
-- tells which are left. An outage of Postgres takes the time of sessions, not the runs of their workers.
UPDATE session
SET renewed_at = moment.now, expires_at = moment.now + make_interval(secs => %(length_s)s),
    capacity = %(capacity)s, busy = %(busy)s, prefetched = %(prefetched)s
FROM (SELECT clock_timestamp() AS now) AS moment
WHERE id = %(id)s
RETURNING moment.now

-- name: held_leases
-- What the session holds by the ledger, and which of it somebody wants stopped. Those are few: found first, by
-- occurrence_to_stop, instead of by the run of each lease (bench/ledger.py: liveness).
WITH to_stop AS MATERIALIZED (
    SELECT o.id FROM occurrence o WHERE o.state = 'RUNNING' AND o.cancel_requested_at IS NOT NULL
)
SELECT l.run_id, l.fence, l.run_id IN (SELECT id FROM to_stop) AS cancel_requested
FROM lease l
WHERE l.session_id = %(id)s

-- name: disown_leases
-- Leases that the process does not know of, although they are older than its list: the claim's answer was
-- lost. Without a session they are the sweep's at once.
UPDATE lease SET session_id = '00000000-0000-0000-0000-000000000000'
WHERE session_id = %(id)s AND granted_at < %(listed_at)s AND NOT fence = ANY(%(fences)s)
RETURNING run_id

-- name: close_session
DELETE FROM session WHERE id = %(id)s

-- name: live_sessions
SELECT count(*) FROM session WHERE kind = %(kind)s AND expires_at > clock_timestamp()

-- name: forget_sessions
-- Dead ones stay an hour for people to see.
DELETE FROM session WHERE expires_at < clock_timestamp() - interval '1 hour'
