-- Schedules that are paused after so many failures in a row. Only those whose revision asks for it are looked at.

-- name: lock_schedules
-- Before slots and runs, as everywhere. Who writes the end of a run that may pause its schedule writes it alone: an
-- apply locks several schedules in an order of its own, and two of ours would meet it in a circle.
SELECT FROM schedule WHERE id = ANY(%(schedule_ids)s) ORDER BY id FOR UPDATE

-- name: standing
-- A locked schedule that its revision in force would pause, with where its timeline stands.
SELECT clock_timestamp() AS now, r.pause_after, s.next_due_at, s.last_due_at, r.effective_from, r.max_occurrences
FROM schedule s
JOIN schedule_revision r ON r.schedule_id = s.id AND r.number = s.revision
WHERE s.id = %(schedule_id)s AND s.state = 'active' AND r.pause_after IS NOT NULL

-- name: failed_in_a_row
-- Of its latest runs that have ended one way or the other, by due instant, how many failed: so that the answer does
-- not depend on whose end came first. What ended before a person resumed it counts no more. Served by
-- occurrence_by_schedule.
SELECT count(*) FILTER (WHERE latest.state <> 'SUCCEEDED')
FROM (
    SELECT o.state FROM occurrence o
    WHERE o.schedule_id = %(schedule_id)s AND o.state IN ('SUCCEEDED', 'FAILED', 'DEAD_LETTERED')
      AND o.finished_at > coalesce(
          (SELECT max(p.ended_at) FROM schedule_pause p WHERE p.schedule_id = %(schedule_id)s), '-infinity')
    ORDER BY o.due_at DESC, o.id DESC
    LIMIT %(pause_after)s
) AS latest

-- name: pause
-- What a person's pause writes, by the policy: state, interval, and audit entry.
WITH paused AS (
    UPDATE schedule s
    SET state = 'paused', state_note = %(note)s, next_due_at = NULL, last_due_at = %(last_due_at)s,
        updated_at = %(now)s
    WHERE s.id = %(schedule_id)s
    RETURNING s.id, s.tenant_id
), interval AS (
    INSERT INTO schedule_pause (schedule_id, began_at, paused_by, note)
    SELECT id, %(began_at)s, %(actor)s, %(note)s FROM paused
)
INSERT INTO audit_entry (tenant_id, at, actor, address, action, subject_kind, subject_id, after)
SELECT tenant_id, %(now)s, %(actor)s, '', 'schedule.pause', 'schedule', id, %(after)s FROM paused

-- name: lately_dead
-- Schedules of which a claim has ended a run that it would not hold, a moment ago: it has not locked the schedule.
-- Served by occurrence_dead.
SELECT DISTINCT o.schedule_id
FROM (SELECT clock_timestamp() - make_interval(secs => %(within_s)s) AS since) AS moment
JOIN occurrence o ON o.state = 'DEAD_LETTERED' AND o.finished_at > moment.since
JOIN schedule s ON s.id = o.schedule_id AND s.state = 'active'
JOIN schedule_revision r ON r.schedule_id = s.id AND r.number = s.revision AND r.pause_after IS NOT NULL
LIMIT %(limit)s
