-- Runs for instants of the past that somebody asked for.

-- name: instants_with_run
-- Instants of [begin, end) that have a run of their own already, nominal or from an earlier backfill. What was
-- skipped is a reason, not a run. Served by occurrence_by_schedule.
SELECT DISTINCT o.due_at
FROM occurrence o
WHERE o.schedule_id = %(schedule_id)s AND o.due_at >= %(begin)s AND o.due_at < %(end)s
  AND o.origin IN ('schedule', 'backfill') AND o.state <> 'SKIPPED'

-- name: insert
-- Overdue, so that they yield to what is newly due; on the agenda from now on, not from their due time, or they
-- would stand before it there. Their deadlines count from now, too. The caller holds the schedule locked.
WITH inserted AS (
    INSERT INTO occurrence (
        id, due_at, schedule_id, revision, origin, origin_key, tenant_id, shard, overlap, state, wait_reason,
        dispatch_at, counts_from, overdue, created_at, tzdata_version)
    SELECT p.id, p.due_at, s.id, p.revision, 'backfill', %(origin_key)s, s.tenant_id, s.shard, p.overlap, 'PENDING',
           'due', %(now)s, %(now)s, true, %(now)s, %(tzdata)s
    FROM unnest(%(ids)s::uuid[], %(due)s::timestamptz[], %(revisions)s::int[], %(overlaps)s::text[])
        AS p(id, due_at, revision, overlap)
    JOIN schedule s ON s.id = %(schedule_id)s
    ORDER BY p.due_at
    ON CONFLICT DO NOTHING
    RETURNING id, due_at, shard
), announced AS (
    INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation)
    SELECT %(now)s, id, due_at, shard, 1 FROM inserted ORDER BY due_at
)
SELECT count(*) FROM inserted
