-- What must hold in any ledger at any time, as questions for what breaks it. `manage.py verify` asks them all
-- in one snapshot. Each of the rules answers (subject, detail); no row means that it holds.
-- Windows are half open, (since, until], by due_at; a null `since` reaches back to the beginning.

-- name: reigns
-- I1: each revision with the stretch of time (begins_after, ends_at] for whose due instants it answers, and the
-- pauses within. The revision in force answers up to, not including, the schedule's next instant; one that has
-- handed out its max_occurrences answers up to the last of them.
-- Descending ids, so that `nominal_rows` can come from occurrence_by_schedule read backwards, and be merged.
SELECT s.id AS schedule_id, s.state = 'faulted' AS faulted, r.number AS revision, r.trigger, r.start_at, r.end_at,
       r.exclusions, r.on_excluded, r.calendars, r.mode = 'fixed_delay' AS fixed_delay,
       greatest(r.effective_from, s.rules_changed_at, %(since)s::timestamptz) AS begins_after, s.rules_changed_at,
       least(%(until)s::timestamptz, coalesce(
           r.ended_at,
           lead(r.effective_from) OVER (PARTITION BY s.id ORDER BY r.number),
           s.next_due_at - interval '1 microsecond',
           CASE WHEN r.max_occurrences IS NOT NULL AND s.state IN ('active', 'completed')
                THEN coalesce(s.last_due_at, r.effective_from) END)) AS ends_at,
       ARRAY(SELECT p.began_at FROM schedule_pause p
             WHERE p.schedule_id = s.id ORDER BY p.began_at) AS paused_at,
       ARRAY(SELECT least(coalesce(p.resumed_from, 'infinity'), %(until)s::timestamptz) FROM schedule_pause p
             WHERE p.schedule_id = s.id ORDER BY p.began_at) AS resumed_from
FROM schedule s
JOIN schedule_revision r ON r.schedule_id = s.id
ORDER BY s.id DESC, r.number

-- name: nominal_rows
-- I1: what became of due instants. A row after the window counts when it stands for instants inside.
-- A run that was called off before it was due outlives the timeline it came from.
SELECT o.schedule_id, o.revision, o.due_at, o.coalesced, o.coalesced_from,
       o.state = 'CANCELLED' AND o.finished_at < o.due_at AS called_off
FROM occurrence o
WHERE o.origin = 'schedule'
  AND o.due_at > coalesce(%(since)s::timestamptz, '-infinity')
  AND (o.due_at <= %(until)s OR o.coalesced_from <= %(until)s)
ORDER BY o.schedule_id DESC, o.due_at, o.revision

-- name: completed_twice
-- I2: at most one completion of a run was accepted.
SELECT a.run_id::text AS subject, format('%%s attempts are recorded as succeeded', count(*)) AS detail
FROM attempt a
WHERE a.outcome = 'succeeded'
  AND a.due_at > coalesce(%(since)s::timestamptz, '-infinity') AND a.due_at <= %(until)s
GROUP BY a.due_at, a.run_id
HAVING count(*) > 1

-- name: success_without_attempt
-- I2: a run has succeeded if and only if the attempt under its newest fence has, or a person has said so.
SELECT o.id::text AS subject,
       format('is %%s, but its attempt under fence %%s is recorded as %%s',
              o.state, coalesce(o.fence::text, 'none'), coalesce(a.outcome, 'open or absent')) AS detail
FROM occurrence o
LEFT JOIN attempt a ON a.due_at = o.due_at AND a.run_id = o.id AND a.fence = o.fence
WHERE (o.state = 'SUCCEEDED') <> (coalesce(a.outcome, '') = 'succeeded') AND o.reconciled_at IS NULL
  AND o.due_at > coalesce(%(since)s::timestamptz, '-infinity') AND o.due_at <= %(until)s

-- name: attempt_left_open
-- I2: only the attempt that holds a running run has no outcome yet.
SELECT a.run_id::text AS subject,
       format('attempt %%s under fence %%s is open, but the run is %%s under fence %%s',
              a.number, a.fence, coalesce(o.state, 'absent'), o.fence) AS detail
FROM attempt a
LEFT JOIN occurrence o ON o.due_at = a.due_at AND o.id = a.run_id
WHERE a.outcome IS NULL AND (o.id IS NULL OR o.state <> 'RUNNING' OR o.fence <> a.fence)
  AND a.due_at > coalesce(%(since)s::timestamptz, '-infinity') AND a.due_at <= %(until)s

-- name: fence_not_rising
-- I3: each attempt of a run has a larger fence than the one before it.
SELECT f.run_id::text AS subject,
       format('attempt %%s has fence %%s after fence %%s', f.number, f.fence, f.before) AS detail
FROM (
    SELECT a.run_id, a.number, a.fence,
           lag(a.fence) OVER (PARTITION BY a.due_at, a.run_id ORDER BY a.number, a.started_at) AS before
    FROM attempt a
    WHERE a.due_at > coalesce(%(since)s::timestamptz, '-infinity') AND a.due_at <= %(until)s
) f
WHERE f.fence <= f.before

-- name: fence_not_newest
-- I3: the run carries the fence of its newest attempt; a smaller one would let an older holder write.
SELECT o.id::text AS subject,
       format('carries fence %%s, its newest attempt %%s', coalesce(o.fence::text, 'none'), max(a.fence)) AS detail
FROM occurrence o
JOIN attempt a ON a.due_at = o.due_at AND a.run_id = o.id
WHERE o.due_at > coalesce(%(since)s::timestamptz, '-infinity') AND o.due_at <= %(until)s
GROUP BY o.due_at, o.id
HAVING o.fence IS DISTINCT FROM max(a.fence)

-- name: fence_used_twice
-- I3: no two claims of the whole ledger got the same fence.
SELECT min(a.run_id::text) AS subject, format('fence %%s was given to %%s attempts', a.fence, count(*)) AS detail
FROM attempt a
GROUP BY a.fence
HAVING count(*) > 1

-- name: rest_without_end
-- I4: an active schedule without a next instant waits for a run of its to end. Where that has happened, and
-- the sweep did not come by within a minute, nobody will ever arm it. `subject` is the schedule.
SELECT s.id::text AS subject, 'is active, has no next instant, and waits for no run' AS detail
FROM schedule s
WHERE s.state = 'active' AND s.next_due_at IS NULL
  AND NOT EXISTS (
      SELECT FROM occurrence o
      WHERE o.schedule_id = s.id AND o.origin = 'schedule'
        AND (o.finished_at IS NULL OR o.finished_at > %(until)s::timestamptz - interval '1 minute'))
  AND s.updated_at < %(until)s::timestamptz - interval '1 minute'

-- name: waiting_without_outbox
-- I4: a run that waits for a time has its row in the outbox; without it nobody would ever look again.
SELECT o.id::text AS subject, format('is %%s without an outbox row', o.state) AS detail
FROM occurrence o
WHERE o.state IN ('PENDING', 'RETRY_WAIT', 'SUSPENDED')
  AND NOT EXISTS (SELECT FROM outbox e WHERE e.run_id = o.id AND e.generation > o.generation)

-- name: outbox_without_run
-- I4: no envelope of a transaction that never was.
SELECT e.run_id::text AS subject, format('outbox row %%s announces a run that does not exist', e.id) AS detail
FROM outbox e
WHERE NOT EXISTS (SELECT FROM occurrence o WHERE o.due_at = e.due_at AND o.id = e.run_id)

-- name: running_without_lease
-- I4: whoever runs holds a lease under the run's fence, by which the sweep finds the run again.
SELECT o.id::text AS subject, format('is RUNNING under fence %%s without its lease', o.fence) AS detail
FROM occurrence o
WHERE o.state = 'RUNNING' AND NOT EXISTS (SELECT FROM lease l WHERE l.run_id = o.id AND l.fence = o.fence)

-- name: lease_without_run
-- I4: whatever ends an attempt takes its lease away.
SELECT l.run_id::text AS subject,
       format('fence %%s has a lease, but the run is %%s', l.fence, coalesce(o.state, 'absent')) AS detail
FROM lease l
LEFT JOIN occurrence o ON o.due_at = l.due_at AND o.id = l.run_id
WHERE o.id IS NULL OR o.state <> 'RUNNING' OR o.fence <> l.fence

-- name: slot_not_given_back
-- I4: a run that has ended holds no slot; its schedule would skip for ever. One that waits holds none either,
-- unless its outcome was unknown and it is to be tried again, or its endpoint was busy.
SELECT s.run_id::text AS subject,
       format('holds the slot of schedule %%s, but is %%s', s.schedule_id, coalesce(o.state, 'absent')) AS detail
FROM overlap_slot s
LEFT JOIN occurrence o ON o.due_at = s.due_at AND o.id = s.run_id
WHERE s.run_id IS NOT NULL
  AND (o.id IS NULL
       OR o.state NOT IN ('QUEUED', 'RUNNING', 'RETRY_WAIT', 'SUSPENDED', 'UNKNOWN')
          AND NOT (o.state = 'PENDING' AND (o.attempts_forgiven > 0 OR o.wait_reason = 'endpoint_busy')))

-- name: attempts_miscounted
-- I8: the counter that the limit is checked against is the number of attempts, less those that draining workers
-- handed back.
SELECT o.id::text AS subject, format('counts %%s attempts, has %%s', o.attempt_count, count(a.fence)) AS detail
FROM occurrence o
LEFT JOIN attempt a ON a.due_at = o.due_at AND a.run_id = o.id AND a.outcome IS DISTINCT FROM 'superseded'
WHERE o.due_at > coalesce(%(since)s::timestamptz, '-infinity') AND o.due_at <= %(until)s
GROUP BY o.due_at, o.id
HAVING o.attempt_count <> count(a.fence)

-- name: attempts_over_limit
-- I8: no run was tried more often than its revision allows; a redrive allows as often again.
SELECT o.id::text AS subject,
       format('counts %%s attempts, %%s of them forgiven; its revision allows %%s',
              o.attempt_count, o.attempts_forgiven, r.retry ->> 'max_attempts') AS detail
FROM occurrence o
JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
WHERE o.attempt_count - o.attempts_forgiven > (r.retry ->> 'max_attempts')::integer
  AND o.due_at > coalesce(%(since)s::timestamptz, '-infinity') AND o.due_at <= %(until)s

-- name: attempt_after_deadline
-- I8: since the last redrive no attempt began after the run's deadline.
SELECT o.id::text AS subject, format('attempt %%s began at %%s, after its deadline', a.number, a.started_at) AS detail
FROM occurrence o
JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
JOIN attempt a ON a.due_at = o.due_at AND a.run_id = o.id
WHERE a.started_at > coalesce(o.counts_from, o.due_at) + make_interval(secs => (r.retry ->> 'deadline_s')::float8)
  AND o.due_at > coalesce(%(since)s::timestamptz, '-infinity') AND o.due_at <= %(until)s

-- name: totals
-- What was looked at, and what the window lived through. `behind`: schedules whose next instant is inside the
-- window; the tick has not got to it, so it is late, not lost.
SELECT (SELECT count(*) FROM schedule) AS schedules,
       (SELECT count(*) FROM schedule s WHERE s.state = 'active' AND s.next_due_at <= %(until)s) AS behind,
       runs.total AS runs, runs.unfinished, runs.skipped, runs.late_writes_refused,
       attempts.total AS attempts, attempts.lost
FROM (
    SELECT count(*) AS total, count(*) FILTER (WHERE o.finished_at IS NULL) AS unfinished,
           count(*) FILTER (WHERE o.state = 'SKIPPED') AS skipped,
           coalesce(sum(o.late_writes_refused), 0)::bigint AS late_writes_refused
    FROM occurrence o
    WHERE o.due_at > coalesce(%(since)s::timestamptz, '-infinity') AND o.due_at <= %(until)s
) runs, (
    SELECT count(*) AS total, count(*) FILTER (WHERE a.outcome = 'lost') AS lost
    FROM attempt a
    WHERE a.due_at > coalesce(%(since)s::timestamptz, '-infinity') AND a.due_at <= %(until)s
) attempts
