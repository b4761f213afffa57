-- A run changes hands: from the queue to one session's lease, and from the lease to its end.
-- Locks are taken in one order everywhere, each in a statement of its own before anything is decided:
-- schedule, overlap_slot, occurrence (by id), lease, outbox. A single statement that locks and acts would
-- miss, under READ COMMITTED, what was committed while it waited.

-- name: lock_slots
-- Whoever parks a run and whoever frees the slot meets here.
SELECT schedule_id, run_id FROM overlap_slot
WHERE schedule_id = ANY(%(schedule_ids)s)
ORDER BY schedule_id
FOR UPDATE

-- name: slots_of_doomed
-- A claim that finds its run without attempts left, or past its time, ends it, and gives its slot on: that is
-- locked before the run, as everywhere. Few are; the lock itself is taken together with the others. Runs whose
-- time will pass within the minute are among them: no claim lasts longer.
SELECT o.schedule_id
FROM unnest(%(run_ids)s::uuid[], %(due)s::timestamptz[]) AS w(run_id, due_at)
JOIN occurrence o ON o.due_at = w.due_at AND o.id = w.run_id
JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
WHERE o.state = 'QUEUED' AND o.overlap <> 'allow'
  AND (o.attempt_count - o.attempts_forgiven >= (r.retry->>'max_attempts')::int
       OR o.started_at IS NULL AND o.counts_from IS NULL
          AND o.dispatch_at + make_interval(secs => r.schedule_to_start_s) < clock_timestamp() + interval '1 minute'
       OR coalesce(o.counts_from, o.due_at) + make_interval(secs => (r.retry->>'deadline_s')::float8)
          < clock_timestamp() + interval '1 minute')

-- name: lock_runs
-- In id order, so that two batches with the same runs queue up instead of deadlocking.
SELECT o.id
FROM unnest(%(run_ids)s::uuid[], %(due)s::timestamptz[]) AS w(run_id, due_at)
JOIN occurrence o ON o.due_at = w.due_at AND o.id = w.run_id
ORDER BY o.id
FOR UPDATE OF o

-- name: claim
-- One row of the answer for each claim id, with the reason where it lost. The runs are locked by now.
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), wanted AS (
    SELECT * FROM unnest(%(run_ids)s::uuid[], %(due)s::timestamptz[], %(claim_ids)s::uuid[], %(traces)s::text[])
        AS w(run_id, due_at, claim_id, trace_id)
), holder AS (
    SELECT s.id, s.worker FROM session s, moment m
    WHERE s.id = %(session_id)s AND s.expires_at > m.now
), seen AS (
    SELECT w.claim_id, w.run_id, w.due_at, w.trace_id, h.id AS session_id, h.worker,
           r.timeout_s + r.cancel_grace_s AS bound_s,
           -- An endpoint can report only once it has accepted the run (accepted.sql).
           CASE WHEN r.heartbeat_timeout_s IS NOT NULL
                 AND NOT EXISTS (SELECT FROM target g WHERE g.id = r.target_id AND g.url <> '')
                THEN r.heartbeat_timeout_s END AS silence_s,
           CASE WHEN o.id IS NULL THEN 'not_found'
                WHEN o.state = 'CANCELLED' THEN 'cancelled'
                WHEN o.state <> 'QUEUED' THEN 'already_held'
                WHEN h.id IS NULL THEN 'session_lost'
                WHEN o.dispatch_at > m.now THEN 'too_early'
                WHEN o.started_at IS NULL AND o.counts_from IS NULL
                     AND m.now > o.dispatch_at + make_interval(secs => r.schedule_to_start_s) THEN 'not_in_time'
                WHEN m.now > coalesce(o.counts_from, o.due_at)
                           + make_interval(secs => (r.retry->>'deadline_s')::float8) THEN 'expired'
                WHEN o.attempt_count - o.attempts_forgiven >= (r.retry->>'max_attempts')::int THEN 'exhausted'
           END AS refusal
    FROM wanted w
    CROSS JOIN moment m
    LEFT JOIN holder h ON true
    LEFT JOIN occurrence o ON o.due_at = w.due_at AND o.id = w.run_id
    LEFT JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
), won AS (
    UPDATE occurrence o
    SET state = 'RUNNING', fence = nextval('fence_seq'), attempt_count = o.attempt_count + 1,
        started_at = coalesce(o.started_at, m.now)
    FROM seen s, moment m
    WHERE o.due_at = s.due_at AND o.id = s.run_id AND o.state = 'QUEUED' AND s.refusal IS NULL
    RETURNING o.id, o.due_at, o.fence, o.attempt_count
), leased AS (
    INSERT INTO lease (run_id, due_at, session_id, fence, claim_id, granted_at, ends_by, silence_s, silent_by)
    SELECT w.id, w.due_at, s.session_id, w.fence, s.claim_id, m.now, m.now + make_interval(secs => s.bound_s),
           s.silence_s, m.now + make_interval(secs => s.silence_s)
    FROM won w JOIN seen s ON s.run_id = w.id CROSS JOIN moment m
), attempted AS (
    INSERT INTO attempt (run_id, due_at, fence, number, session_id, worker, started_at, trace_id)
    SELECT w.id, w.due_at, w.fence, w.attempt_count, s.session_id, s.worker, m.now, s.trace_id
    FROM won w JOIN seen s ON s.run_id = w.id CROSS JOIN moment m
), doomed AS (
    UPDATE occurrence o
    SET state = CASE WHEN s.refusal = 'not_in_time' THEN 'SKIPPED' ELSE 'DEAD_LETTERED' END,
        skip_reason = CASE WHEN s.refusal = 'not_in_time' THEN 'expired' END,
        dead_letter_reason = CASE WHEN s.refusal <> 'not_in_time' THEN s.refusal END,
        finished_at = m.now
    FROM seen s, moment m
    WHERE o.due_at = s.due_at AND o.id = s.run_id AND o.state = 'QUEUED'
      AND s.refusal IN ('not_in_time', 'expired', 'exhausted')
    RETURNING o.id, o.schedule_id
), freed AS (
    UPDATE overlap_slot SET run_id = NULL, due_at = NULL
    WHERE run_id IN (SELECT id FROM doomed)
    RETURNING schedule_id
), woken AS (
    UPDATE outbox b SET dispatch_at = m.now
    FROM moment m, freed f
    CROSS JOIN LATERAL (
        SELECT o.id FROM occurrence o
        WHERE o.schedule_id = f.schedule_id AND o.state = 'PENDING' AND o.wait_reason = 'overlap'
        ORDER BY o.due_at, o.id
        LIMIT 1) AS next
    WHERE b.run_id = next.id
)
SELECT s.claim_id, CASE s.refusal WHEN 'not_in_time' THEN 'expired' ELSE s.refusal END AS refusal,
       d.schedule_id AS ended
FROM seen s LEFT JOIN doomed d ON d.id = s.run_id

-- name: claimed
-- Everything an attempt needs, by claim id: the one way to the answer, after a commit that was heard and
-- after one that was not.
SELECT l.claim_id, l.run_id, l.due_at, l.fence, l.granted_at, l.ends_by, l.silence_s AS heartbeat_timeout_s,
       o.attempt_count AS attempt, o.attempt_count - o.attempts_forgiven AS tries, o.schedule_id, o.revision,
       o.origin_key, o.overlap <> 'allow' AS slotted, r.mode = 'fixed_delay' AS fixed_delay, o.tenant_id,
       t.slug AS tenant, r.target_name AS target, coalesce(o.payload, r.payload) AS payload, r.payload_ref, r.retry,
       r.timeout_s, r.cancel_grace_s,
       coalesce(o.counts_from, o.due_at) + make_interval(secs => (r.retry->>'deadline_s')::float8) AS deadline_at,
       r.pause_after, o.progress->'resume' AS resume, g.side_effects, g.url, g.sealed, g.enabled
FROM lease l
JOIN occurrence o ON o.due_at = l.due_at AND o.id = l.run_id
JOIN schedule_revision r ON r.schedule_id = o.schedule_id AND r.number = o.revision
JOIN target g ON g.id = r.target_id
JOIN tenant t ON t.id = o.tenant_id
WHERE l.claim_id = ANY(%(claim_ids)s)

-- name: end_attempts
-- The end of attempts, whoever writes it: the holder, or the sweep where the session is dead or the time limit
-- has passed. The lease row is the fence: no lease with this fence, no effect. A holder whose session has run out
-- still ends what nobody has taken from it: both delete the same row, and one of them finds it.
-- A cancelled run ends as CANCELLED unless it succeeded all the same, or nobody knows whether it did. One that a draining worker hands back is
-- QUEUED again at once: it keeps its slot, a new generation announces it, and its attempt is not counted. A retry
-- that would begin past its deadline is none: the run is dead now, and not at that time.
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), ending AS (
    SELECT * FROM unnest(
        %(run_ids)s::uuid[], %(due)s::timestamptz[], %(fences)s::bigint[], %(states)s::text[],
        %(outcomes)s::text[], %(results)s::jsonb[], %(errors)s::jsonb[], %(delays)s::float8[],
        %(deadlines)s::timestamptz[]
    ) AS e(run_id, due_at, fence, state, outcome, result, error, delay_s, deadline_at)
), released AS (
    DELETE FROM lease l
    USING ending e, moment m
    WHERE l.run_id = e.run_id AND l.fence = e.fence
      AND CASE %(guard)s::text
          WHEN 'holder' THEN true
          WHEN 'dead' THEN CASE WHEN l.expires_at IS NOT NULL THEN l.expires_at <= m.now ELSE NOT EXISTS (
              SELECT FROM session s WHERE s.id = l.session_id AND s.expires_at > m.now) END
          WHEN 'overdue' THEN least(l.ends_by, l.silent_by) <= m.now
      END
    RETURNING l.run_id, l.fence
), ended AS (
    UPDATE occurrence o
    SET state = n.state,
        finished_at = CASE WHEN n.state NOT IN ('RETRY_WAIT', 'UNKNOWN', 'QUEUED') THEN m.now END,
        generation = o.generation + (n.state = 'QUEUED')::int,
        queued_at = CASE WHEN n.state = 'QUEUED' THEN m.now ELSE o.queued_at END,
        attempt_count = o.attempt_count - (n.outcome = 'superseded')::int,
        dispatch_at = CASE WHEN n.state = 'RETRY_WAIT'
                           THEN m.now + make_interval(secs => n.delay_s) ELSE o.dispatch_at END,
        reconcile_at = CASE WHEN n.state = 'UNKNOWN' THEN m.now END, reconcile_tries = 0,
        dead_letter_reason = CASE WHEN n.state = 'DEAD_LETTERED' THEN
                                  CASE WHEN n.is_late THEN 'expired' ELSE 'exhausted' END END,
        result = n.result, error = n.error
    FROM moment m, (
        SELECT e.run_id, e.due_at, e.fence, e.result, e.error, e.delay_s, late.is_late,
               CASE WHEN c.cancel_requested_at IS NOT NULL AND e.state NOT IN ('SUCCEEDED', 'UNKNOWN')
                    THEN 'CANCELLED'
                    WHEN late.is_late THEN 'DEAD_LETTERED' ELSE e.state END AS state,
               CASE WHEN c.cancel_requested_at IS NOT NULL AND e.outcome = 'superseded'
                    THEN 'cancelled' ELSE e.outcome END AS outcome
        FROM ending e
        JOIN released r ON r.run_id = e.run_id AND r.fence = e.fence
        JOIN occurrence c ON c.due_at = e.due_at AND c.id = e.run_id
        CROSS JOIN LATERAL (
            SELECT coalesce(e.state = 'RETRY_WAIT'
                            AND m.now + make_interval(secs => e.delay_s) > e.deadline_at, false) AS is_late
            FROM moment m) AS late
    ) n
    WHERE o.due_at = n.due_at AND o.id = n.run_id AND o.state = 'RUNNING' AND o.fence = n.fence
    RETURNING o.id, o.due_at, o.fence, o.state, o.shard, o.dispatch_at, o.generation, n.outcome, n.error
), closed AS (
    UPDATE attempt a
    SET outcome = n.outcome, finished_at = m.now, error = n.error
    FROM ended n, moment m
    WHERE a.due_at = n.due_at AND a.run_id = n.id AND a.fence = n.fence
), agenda AS (
    INSERT INTO outbox (dispatch_at, run_id, due_at, shard, generation)
    SELECT n.dispatch_at, n.id, n.due_at, n.shard, n.generation + 1
    FROM ended n WHERE n.state = 'RETRY_WAIT'
    UNION ALL
    SELECT m.now, n.id, n.due_at, n.shard, n.generation
    FROM ended n, moment m WHERE n.state = 'QUEUED'
), freed AS (
    UPDATE overlap_slot SET run_id = NULL, due_at = NULL
    WHERE run_id IN (SELECT id FROM ended WHERE state NOT IN ('RETRY_WAIT', 'UNKNOWN', 'QUEUED'))
    RETURNING schedule_id
), woken AS (
    -- The slot was locked before this statement began: whoever parked is visible, whoever will park waits.
    UPDATE outbox b SET dispatch_at = m.now
    FROM moment m, freed f
    CROSS JOIN LATERAL (
        SELECT o.id FROM occurrence o
        WHERE o.schedule_id = f.schedule_id AND o.state = 'PENDING' AND o.wait_reason = 'overlap'
        ORDER BY o.due_at, o.id
        LIMIT 1) AS next
    WHERE b.run_id = next.id
)
SELECT id AS run_id, fence, state FROM ended

-- name: resolve_unknown
-- The one late write that is taken: under the last fence of a run of which nobody knew how it ended, by whoever
-- held it then and does know. The attempt gets the outcome that it had.
WITH moment AS MATERIALIZED (
    SELECT clock_timestamp() AS now
), answer AS (
    SELECT * FROM unnest(
        %(run_ids)s::uuid[], %(due)s::timestamptz[], %(fences)s::bigint[], %(states)s::text[],
        %(outcomes)s::text[], %(results)s::jsonb[], %(errors)s::jsonb[]
    ) AS a(run_id, due_at, fence, state, outcome, result, error)
), resolved AS (
    UPDATE occurrence o
    SET state = a.state, finished_at = m.now, reconciled_at = m.now, result = a.result, error = a.error
    FROM answer a, moment m
    WHERE o.due_at = a.due_at AND o.id = a.run_id AND o.state = 'UNKNOWN' AND o.fence = a.fence
      AND a.state IN ('SUCCEEDED', 'FAILED')
    RETURNING o.id, o.due_at, o.fence, o.state, a.outcome, a.error
), amended AS (
    UPDATE attempt t
    SET outcome = n.outcome, finished_at = m.now, error = n.error
    FROM resolved n, moment m
    WHERE t.due_at = n.due_at AND t.run_id = n.id AND t.fence = n.fence
)
SELECT id AS run_id, fence, state FROM resolved

-- name: give_slots_on
-- Of runs that have ended in this transaction; `end_attempts` does it in the statement that ends them.
WITH freed AS (
    UPDATE overlap_slot SET run_id = NULL, due_at = NULL
    WHERE run_id = ANY(%(run_ids)s)
    RETURNING schedule_id
)
UPDATE outbox b SET dispatch_at = clock_timestamp()
FROM freed f
CROSS JOIN LATERAL (
    SELECT o.id FROM occurrence o
    WHERE o.schedule_id = f.schedule_id AND o.state = 'PENDING' AND o.wait_reason = 'overlap'
    ORDER BY o.due_at, o.id
    LIMIT 1) AS next
WHERE b.run_id = next.id

-- name: count_late_writes
-- A write under a fence that is void changes nothing but this count.
UPDATE occurrence o SET late_writes_refused = o.late_writes_refused + 1
FROM unnest(%(run_ids)s::uuid[], %(due)s::timestamptz[]) AS w(run_id, due_at)
WHERE o.due_at = w.due_at AND o.id = w.run_id

-- name: already_ended
-- Attempts whose end is on record as written: a completion that is repeated after a lost answer is no late write.
SELECT a.run_id, a.fence FROM attempt a
JOIN unnest(%(run_ids)s::uuid[], %(due)s::timestamptz[], %(fences)s::bigint[], %(outcomes)s::text[])
    AS w(run_id, due_at, fence, outcome)
  ON a.due_at = w.due_at AND a.run_id = w.run_id AND a.fence = w.fence AND a.outcome = w.outcome

-- name: report_progress
-- Shown to people, and found by the next attempt. Refused, like every write, once the lease is gone. The lease is
-- written only for a job that promised to report; after the run, which whoever ends the attempt has locked before it.
WITH noted AS (
    UPDATE occurrence o
    SET progress = %(progress)s
    FROM lease l
    WHERE o.due_at = %(due_at)s AND o.id = %(run_id)s AND o.state = 'RUNNING'
      AND l.run_id = o.id AND l.fence = %(fence)s
    RETURNING o.id
), heard AS (
    UPDATE lease l
    SET silent_by = clock_timestamp() + make_interval(secs => l.silence_s)
    FROM noted n
    WHERE l.run_id = n.id AND l.fence = %(fence)s AND l.silence_s IS NOT NULL
)
SELECT id FROM noted
