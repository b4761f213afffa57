-- Runs of unknown outcome, for the hooks of their jobs.

-- name: look
-- A look is claimed by moving the next one: of several workers one asks, and one that dies with its question has it
-- asked again. Served by occurrence_unknown.
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), found AS (
    SELECT o.due_at, o.id, coalesce(o.payload, r.payload) AS payload, r.payload_ref, r.target_name
    FROM moment m
    JOIN occurrence o ON o.state = 'UNKNOWN' AND o.reconcile_at <= m.now
    JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
    JOIN target g ON g.id = r.target_id
    WHERE r.target_name = ANY(%(targets)s) AND g.kind = 'job'  -- a tenant's endpoint may have the same name
    ORDER BY o.reconcile_at
    LIMIT 1
    FOR UPDATE OF o SKIP LOCKED
)
UPDATE occurrence o
SET reconcile_tries = o.reconcile_tries + 1,
    reconcile_at = m.now + make_interval(secs => least(
        %(longest_s)s::float8, %(again_s)s::float8 * 2 ^ least(o.reconcile_tries, 20)))
FROM found f, moment m, tenant t
WHERE o.due_at = f.due_at AND o.id = f.id AND t.id = o.tenant_id
RETURNING o.id AS run_id, o.due_at, o.schedule_id, o.revision, o.origin_key, o.fence, o.attempt_count AS attempt, o.error,
          t.slug AS tenant, f.target_name AS target, f.payload, f.payload_ref

-- name: may_run_again
-- Of a locked schedule.
SELECT s.state <> 'cancelled' FROM schedule s WHERE s.id = %(schedule_id)s

-- name: record
INSERT INTO audit_entry (tenant_id, at, actor, address, action, subject_kind, subject_id, before, after)
SELECT o.tenant_id, clock_timestamp(), %(actor)s, '', 'run.reconcile', 'run', o.id, %(before)s, %(after)s
FROM occurrence o
WHERE o.due_at = %(due_at)s AND o.id = %(run_id)s
